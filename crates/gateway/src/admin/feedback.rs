//! Feedback: how good an endpoint's answer was, joined to it by the request's id.

use crate::endpoint::selection::{answer_key, plan_of};
use crate::io::IoContext;
use crate::io::clients::Owner;
use crate::models::serving;
use base::Reason;
use models::{SelectionPlan, ServedModel};
use selection::{Code, Truth};
use serde::Deserialize;
use serde_json::{Value, json};
use telemetry::FeedbackOutcome;
use wire::Fault;

/// What clients send: the id, and one of the others.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FeedbackBody {
    id: String,
    label: Option<Value>,
    loss: Option<f64>,
}

/// Takes feedback in; what it says of members, as JSON.
pub(crate) fn feedback(
    context: &IoContext,
    owner: &Owner,
    (name, version): (&str, &str),
    body: &[u8],
) -> Result<Vec<u8>, Fault> {
    let entry = context.models.find(name, version)?;
    let served = serving(&entry)?;
    let Some((_, plan)) = plan_of(served) else {
        let message = format!("{name:?} doesn't select among models: feedback is for endpoints that do");
        return Err(Fault::new(Reason::Unsupported, message));
    };
    let outcome = join(context, owner, plan, served, (name, body));
    if let Err((outcome, _)) = &outcome {
        plan.state.metrics.fed_back(*outcome);
    }
    let (id, losses) = outcome.map_err(|(outcome, sentence)| match outcome {
        FeedbackOutcome::Unknown => Fault::new(Reason::NotFound, sentence),
        FeedbackOutcome::Again => Fault::new(Reason::AlreadyExists, sentence),
        FeedbackOutcome::Joined | FeedbackOutcome::Refused => Fault::bad(sentence),
    })?;
    let losses =
        losses.into_iter().filter_map(|loss| Some((plan.members.get(loss.member)?.name.clone(), loss.loss.into())));
    let losses: serde_json::Map<String, Value> = losses.collect();
    Ok(json!({ "model_name": entry.name, "model_version": entry.version.to_string(), "id": id, "losses": losses })
        .to_string()
        .into_bytes())
}

type Joined = (String, Vec<selection::MemberLoss>);

fn join(
    context: &IoContext,
    owner: &Owner,
    plan: &SelectionPlan,
    served: &ServedModel,
    (name, body): (&str, &[u8]),
) -> Result<Joined, (FeedbackOutcome, String)> {
    let refused = |sentence: String| (FeedbackOutcome::Refused, sentence);
    const EXAMPLE: &str = r#"write {"id": "the request's", "label": 3} or {"id": "the request's", "loss": 0.5}"#;
    let FeedbackBody { id, label, loss } = serde_json::from_slice(body)
        .map_err(|error| refused(format!("the feedback can't be read: {error}; {EXAMPLE}")))?;
    if id.is_empty() {
        return Err(refused(format!("the feedback has no id: {EXAMPLE}")));
    }
    let truth = match (label, loss) {
        (Some(label), None) => Truth::Rows(rows(plan, served, &label).map_err(refused)?),
        (None, Some(loss)) => Truth::loss(loss).map_err(refused)?,
        (Some(_), Some(_)) => return Err(refused(format!("the feedback has a label and a loss: {EXAMPLE}"))),
        (None, None) => return Err(refused(format!("the feedback has neither a label nor a loss: {EXAMPLE}"))),
    };
    let key = answer_key(name, owner, &id);
    let losses = plan.state.feedback(context.controller.now(), key, plan.judge.as_ref(), &truth)?;
    Ok((id, losses))
}

/// What each row should have said: one label, or a list of them.
fn rows(plan: &SelectionPlan, served: &ServedModel, label: &Value) -> Result<Vec<Code>, String> {
    let judge = plan.judge.as_ref().ok_or(
        "labels can't be compared with this endpoint's outputs: give a loss, or say in its file by which output answers are judged",
    )?;
    let names = served.labels.get(judge.output).map_or(&[][..], Vec::as_slice);
    let row = |label: &Value| match label {
        Value::Number(number) => judge.number(number.as_f64().unwrap_or(f64::NAN)),
        Value::Bool(flag) => judge.number(f64::from(u8::from(*flag))),
        Value::String(text) => match names.iter().position(|name| name == text) {
            Some(class) => Ok(class as Code),
            None if matches!(judge.reads, selection::Reads::Labels) => Ok(judge.text(text.as_bytes())),
            None => Err(format!(
                "no class is called {:.100?}: give its number, or one of the names in the model's labels",
                text
            )),
        },
        other => Err(format!(
            "the label is {:.100}: give a number, a text, or a list of one for each row",
            other.to_string()
        )),
    };
    match label {
        Value::Array(labels) => labels.iter().map(row).collect(),
        label => Ok(vec![row(label)?]),
    }
}
