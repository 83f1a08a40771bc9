use crate::*;

fn step(text: &str) -> Result<TensorStep, StepError> {
    let mut table: Table = text.parse().unwrap();
    let name = table.remove("step").unwrap();
    TensorStep::new(name.as_str().unwrap(), &table, Path::new("."))
}
