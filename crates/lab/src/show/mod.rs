//! What makes something to read from figures: tables, plots, claims, pages.

mod bars;
pub(crate) mod claim;
pub(crate) mod compare;
mod confirm;
mod gantt;
mod kept;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod svg;
pub(crate) mod table;
