//! The way from a model to its plan.

use crate::error::Error;
use crate::model::Model;
use crate::options::Options;
use crate::plan::Plan;
use crate::{arrange, fuse, lower};

/// Plans a model for fixed sizes and a precision. Equal models and options give equal plans.
pub fn compile(model: &Model, options: &Options) -> Result<Plan, Error> {
    let mut graph = lower::lower(model, options)?;
    graph.remove_unused();
    if options.fuse {
        fuse::fuse(&mut graph);
    }
    graph.remove_unused();
    arrange::arrange(&graph, options)
}
