//! `punctual endpoint`: an endpoint drawn, and what is wrong with it.

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use repository::{EndpointKind, PipelineConfig, Repository, ScanEntry, StageConfig, StageWork};
use selection::PolicyTable;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What is done with an endpoint.
#[derive(Subcommand, Debug)]
pub enum EndpointCommand {
    /// Draw an endpoint as a Mermaid diagram, and say what is wrong with it.
    ///
    /// What only the models themselves say (types, shapes) is seen when it is served; mistakes in the file, and models
    /// that the repository hasn't, are seen here. With mistakes the exit code is 1.
    Show {
        /// The endpoint's folder, in its repository.
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

/// Does it.
pub fn run(command: &EndpointCommand) -> Result<()> {
    let EndpointCommand::Show { folder } = command;
    let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
    let (Some(root), Some(name)) = (folder.parent(), folder.file_name().and_then(|name| name.to_str())) else {
        bail!("{} is no folder of a repository", folder.display());
    };
    let mut repository = Repository::open([root])?;
    let entries = repository.scan_one(name, None);
    let kind = entries.into_iter().find_map(|entry| match entry {
        ScanEntry::Found(found) => found.config.endpoint.clone().map(Ok),
        ScanEntry::Broken(broken) => Some(Err(broken.reason)),
    });
    let kind = match kind {
        None => bail!("{} is a model: an endpoint has an endpoint.toml, or ensemble_scheduling", folder.display()),
        Some(Err(reason)) => bail!("{reason}"),
        Some(Ok(kind)) => kind,
    };
    print!("{}", mermaid(&kind));
    let missing = missing(root, &kind);
    if missing.is_empty() { Ok(()) } else { bail!("{}", missing.join("; ")) }
}

/// A sentence for each member that the repository hasn't.
fn missing(root: &Path, kind: &EndpointKind) -> Vec<String> {
    let is_missing = |name: &str| !root.join(name).is_dir();
    let sentence = |name: &str| format!("it asks the model {name:?}, which isn't in {}", root.display());
    kind.members().iter().filter(|member| is_missing(&member.model)).map(|member| sentence(&member.model)).collect()
}

/// The endpoint as a diagram.
fn mermaid(kind: &EndpointKind) -> String {
    match kind {
        EndpointKind::Pipeline(pipeline) => of_pipeline(pipeline),
        EndpointKind::Selection(selection) => of_selection(&selection.table),
    }
}

/// One arrow for each member: whole where it answers, dotted where it is only compared.
fn of_selection(table: &PolicyTable) -> String {
    let mut text = "flowchart LR\n    request([\"request\"])\n".to_owned();
    let by = table.by().map_or_else(String::new, |by| format!(" by {by}"));
    let _ = writeln!(text, "    kind{{{}}}\n    request --> kind", quoted(&format!("{}{by}", table.kind())));
    for (number, member) in table.members().iter().enumerate() {
        let is_shadow = matches!(table, PolicyTable::Shadow(_)) && number > 0;
        let arrow = if is_shadow { "-.->" } else { "-->" };
        let _ = writeln!(text, "    kind {arrow} member{number}[{}]", quoted(member));
        if !is_shadow {
            let _ = writeln!(text, "    member{number} --> answer");
        }
    }
    text.push_str("    answer([\"answer\"])\n");
    text
}

fn of_pipeline(pipeline: &PipelineConfig) -> String {
    let mut text = "flowchart LR\n".to_owned();
    let mut makers: BTreeMap<&str, String> = BTreeMap::new();
    for (number, input) in pipeline.inputs.iter().enumerate() {
        let _ = writeln!(text, "    in{number}([{}])", quoted(input));
        makers.insert(input, format!("in{number}"));
    }
    for (number, stage) in pipeline.stages.iter().enumerate() {
        // Steps have round corners: no device computes them.
        let (open, close) = if stage.work.member().is_some() { ("[", "]") } else { ("(", ")") };
        let _ = writeln!(text, "    stage{number}{open}{}{close}", quoted(&title(stage)));
        stage.outputs.values().for_each(|tensor| drop(makers.insert(tensor, format!("stage{number}"))));
    }
    let maker = |tensor: &str| makers.get(tensor).cloned().unwrap_or_default();
    for (number, stage) in pipeline.stages.iter().enumerate() {
        for tensor in stage.takes() {
            let each = if stage.for_each.contains(tensor) { "each row of " } else { "" };
            let _ = writeln!(text, "    {} -->|{}| stage{number}", maker(tensor), quoted(&format!("{each}{tensor}")));
        }
    }
    for (number, output) in pipeline.outputs.iter().enumerate() {
        let _ = writeln!(text, "    {} --> out{number}([{}])", maker(output), quoted(output));
    }
    text
}

fn title(stage: &StageConfig) -> String {
    let (does, version) = match &stage.work {
        StageWork::Member(member) => (&member.model, member.version),
        StageWork::Step(step) => (&step.name, None),
    };
    let (name, version) = (&stage.name, version.map_or_else(String::new, |version| format!(", version {version}")));
    if name == does { format!("{name}{version}") } else { format!("{name}: {does}{version}") }
}

/// A text as Mermaid takes it, whatever is in it.
fn quoted(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('\n', " ");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use repository::ModelConfig;

    #[test]
    fn a_selection_is_drawn() {
        let text = "kind = \"shadow\"\nmodel = \"old\"\nshadows = [\"new\"]";
        let config = ModelConfig::parse_endpoint(text, Path::new("endpoint.toml")).unwrap();
        expect![[r#"
            flowchart LR
                request(["request"])
                kind{"shadow"}
                request --> kind
                kind --> member0["old"]
                member0 --> answer
                kind -.-> member1["new"]
                answer(["answer"])
        "#]]
        .assert_eq(&mermaid(&config.endpoint.unwrap()));
    }

    #[test]
    fn a_pipeline_is_drawn() {
        let text = r#"
            kind = "pipeline"
            inputs = ["picture"]
            outputs = ["texts", "boxes"]
            [[stage]]
            model = "detect"
            inputs = { x = "picture" }
            outputs = { crops = "crops", boxes = "boxes" }
            [[stage]]
            name = "read \"all\""
            model = "recognise"
            version = 2
            inputs = { x = "crops" }
            outputs = { y = "texts" }
            for_each = ["crops"]
        "#;
        let config = ModelConfig::parse_endpoint(text, Path::new("endpoint.toml")).unwrap();
        expect![[r#"
            flowchart LR
                in0(["picture"])
                stage0["detect"]
                stage1["read &quot;all&quot;: recognise, version 2"]
                in0 -->|"picture"| stage0
                stage0 -->|"each row of crops"| stage1
                stage1 --> out0(["texts"])
                stage0 --> out1(["boxes"])
        "#]]
        .assert_eq(&mermaid(&config.endpoint.unwrap()));
    }
}
