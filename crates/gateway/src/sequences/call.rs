//! The way of a request of a sequence: its place in the line, its turn, and what it is given.

use super::table::{Entered, LineTurn, ModelSequences, NoPlace, ReadClock};
use crate::call::{Call, CallHeaders};
use base::{DataType, Reason, Timestamp};
use controller::Tensor;
use models::{ControlRule, SequenceRules, SequenceSignal};
use std::sync::Arc;
use wire::{Fault, InferInput, InferRequest, RequestedOutput, SequenceId, SequenceMark};

/// A request's place in the line of its sequence.
pub(crate) struct SequencePlace {
    rules: Arc<SequenceRules>,
    sequences: Arc<ModelSequences>,
    mark: SequenceMark,
    entered: Entered,
}

/// A request whose turn it is.
pub(crate) struct SequenceTurn {
    rules: Arc<SequenceRules>,
    turn: LineTurn,
    is_last: bool,
}

impl Call<'_> {
    /// The place of a request in its sequence, where its model is asked in sequences. Taken before anything is waited
    /// for: requests that come one behind the other on a connection are computed in this order.
    pub(crate) fn enter(&self, request: &mut InferRequest<'_>) -> Result<Option<Box<SequencePlace>>, Fault> {
        let Some(rules) = &self.served().sequences else { return Ok(None) };
        let entry = self.entry();
        let (name, version) = (&entry.name, entry.version);
        let Some(mark) = request.sequence.take() else {
            return Err(Fault::bad(format!(
                "model {name:?} is asked in sequences: name the request's with the parameter sequence_id, a number that isn't 0 or a text"
            )));
        };
        let clock = || -> ReadClock {
            let controller = self.context.controller.clone();
            Arc::new(move || controller.now())
        };
        let sequences = self.context.shared.sequences.of(name, version, rules, clock);
        let entered = sequences.enter(&mark.id, mark.start).map_err(|why| no_place(why, name, &mark.id, rules))?;
        Ok(Some(Box::new(SequencePlace { rules: Arc::clone(rules), sequences, mark: *mark, entered })))
    }

    /// Waits until those before it are done, its deadline running, and adds what the server gives: signals, and what
    /// the request before left.
    pub(crate) async fn take_turn(
        &self,
        place: Box<SequencePlace>,
        request: &mut InferRequest<'_>,
        head: CallHeaders,
    ) -> Result<SequenceTurn, Fault> {
        let SequencePlace { rules, sequences, mark, entered } = *place;
        let limits = [request.parameters.timeout, head.limit, self.served().objective];
        let deadline_at = self.deadline_at(limits.into_iter().flatten().min());
        let turn = match entered {
            Entered::Now(turn) => turn,
            Entered::Waits(turn) => self.wait_for_turn(&sequences, turn, deadline_at).await?,
        };
        let states = turn.states(mark.start).map_err(|why| no_place(why, &self.entry().name, &mark.id, &rules))?;
        let kept = states.unwrap_or_else(|| rules.states.iter().map(|rule| rule.initial.clone()).collect());
        for (rule, tensor) in rules.states.iter().zip(kept) {
            request.inputs.push(given(&rule.input, tensor));
        }
        for rule in &rules.controls {
            request.inputs.push(given(&rule.input, signal(rule, &mark)?));
        }
        if let (Some(shown), true) = (&rules.shown, request.outputs.is_empty()) {
            let binary = request.parameters.binary_outputs;
            let output =
                |name: &String| RequestedOutput { name: name.clone().into(), binary, classes: 0, region: None };
            request.outputs.extend(shown.iter().map(output));
        }
        Ok(SequenceTurn { rules, turn, is_last: mark.end })
    }

    async fn wait_for_turn(
        &self,
        sequences: &Arc<ModelSequences>,
        turn: tokio::sync::oneshot::Receiver<LineTurn>,
        deadline_at: Timestamp,
    ) -> Result<LineTurn, Fault> {
        let mut turn = self.context.mailbox.deliver(turn);
        loop {
            // A sequence that has a place and no request may be over before the deadline is.
            let look_at = deadline_at.min(sequences.next_over_at().unwrap_or(Timestamp::NEVER));
            let left = look_at.since(self.context.controller.now());
            match tokio::time::timeout(left.into(), &mut turn).await {
                Ok(Ok(turn)) => return Ok(turn),
                Ok(Err(_)) => return Err(self.fault(Reason::ShuttingDown.into())),
                Err(_) if self.context.controller.now() >= deadline_at => {
                    return Err(self.fault(Reason::DeadlineMissed.into()));
                }
                Err(_) => sequences.end_idle(),
            }
        }
    }
}

impl SequenceTurn {
    /// Keeps what the next request is given, and lets it have its turn.
    pub(crate) fn done(self, outputs: &[Tensor]) {
        // Copied: a row of a batch would keep the whole batch in memory.
        let kept = |output: usize| {
            let Tensor { datatype, shape, data } = outputs.get(output)?;
            Some(Tensor { datatype: *datatype, shape: shape.clone(), data: bytes::Bytes::copy_from_slice(data) })
        };
        let states: Option<Vec<Tensor>> = self.rules.states.iter().map(|rule| kept(rule.output)).collect();
        self.turn.done(states.filter(|_| !self.is_last));
    }
}

fn given(name: &str, Tensor { datatype, shape, data }: Tensor) -> InferInput<'static> {
    InferInput { name: name.to_owned().into(), datatype, shape, data, region: None }
}

/// What an input says of a request's place in its sequence.
fn signal(rule: &ControlRule, mark: &SequenceMark) -> Result<Tensor, Fault> {
    let says = |yes: bool| Ok(rule.no_yes[usize::from(yes)].clone());
    match rule.signal {
        SequenceSignal::Start => says(mark.start),
        SequenceSignal::End => says(mark.end),
        SequenceSignal::Ready => says(true),
        SequenceSignal::Id => {
            let like = &rule.no_yes[1];
            let data = name_bytes(like.datatype, &mark.id).ok_or_else(|| {
                Fault::bad(format!(
                    "the sequence is called {}, and the model takes names of {}",
                    mark.id, like.datatype
                ))
            })?;
            Ok(Tensor { data: data.into(), ..like.clone() })
        }
    }
}

/// A sequence's name as one element.
fn name_bytes(datatype: DataType, id: &SequenceId) -> Option<Vec<u8>> {
    let number = match id {
        SequenceId::Number(number) => *number,
        SequenceId::Text(text) if datatype == DataType::Bytes => return Some(string(text)),
        SequenceId::Text(_) => return None,
    };
    match datatype {
        DataType::Bytes => Some(string(&number.to_string())),
        DataType::Uint64 => Some(number.to_le_bytes().to_vec()),
        DataType::Int64 => Some(i64::try_from(number).ok()?.to_le_bytes().to_vec()),
        DataType::Uint32 => Some(u32::try_from(number).ok()?.to_le_bytes().to_vec()),
        DataType::Int32 => Some(i32::try_from(number).ok()?.to_le_bytes().to_vec()),
        _ => None,
    }
}

fn string(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], text.as_bytes()].concat()
}

fn no_place(why: NoPlace, model: &str, id: &SequenceId, rules: &SequenceRules) -> Fault {
    match why {
        NoPlace::Unknown => Fault::bad(format!(
            "sequence {id} of model {model:?} has not begun, has ended, or had no request for {}: its first request must specify the START flag (sequence_start)",
            rules.idle
        )),
        NoPlace::Lost => Fault::bad(format!(
            "sequence {id} of model {model:?} was lost when the model was replaced: begin it anew, with the START flag (sequence_start)"
        )),
        NoPlace::LineFull => Fault::new(
            Reason::QueueFull,
            format!("too many requests of sequence {id} of model {model:?} wait for the one before: wait for answers"),
        ),
        NoPlace::TooMany => Fault::new(
            Reason::QueueFull,
            format!(
                "{} sequences of model {model:?} are there at a time, and too many wait until one ends: try again later",
                rules.most
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_elements_of_the_models_type() {
        let number = SequenceId::Number(1 << 40);
        assert_eq!(name_bytes(DataType::Uint64, &number), Some((1u64 << 40).to_le_bytes().to_vec()));
        assert_eq!(name_bytes(DataType::Int32, &number), None);
        assert_eq!(name_bytes(DataType::Bytes, &SequenceId::Number(12)), Some(b"\x02\x00\x00\x0012".to_vec()));
        let text = SequenceId::Text("ab".into());
        assert_eq!(name_bytes(DataType::Bytes, &text), Some(b"\x02\0\0\0ab".to_vec()));
        assert_eq!(name_bytes(DataType::Uint64, &text), None);
    }
}
