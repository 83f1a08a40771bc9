//! Makes one node of several.
use crate::ir::Graph;
pub(crate) fn fuse(_graph: &mut Graph) {}
