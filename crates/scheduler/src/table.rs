//! Tables by number, of models or devices mostly: how they grow, and which models something has changed for.

use base::ModelId;

/// A number's place in a table, which grows as far as that.
pub(crate) fn grown<T: Default>(table: &mut Vec<T>, number: usize) -> &mut T {
    if table.len() <= number {
        table.resize_with(number + 1, T::default);
    }
    &mut table[number]
}

/// The same for one that has just come: nothing is left there of who had its number before.
pub(crate) fn anew<T: Default>(table: &mut Vec<T>, number: usize) -> &mut T {
    let there = grown(table, number);
    *there = T::default();
    there
}

/// Models that must be looked at again, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marked {
    list: Vec<ModelId>,
    /// By model: whether it is in the list.
    listed: Vec<bool>,
}

impl Marked {
    pub fn add(&mut self, model: ModelId) {
        if !std::mem::replace(grown(&mut self.listed, model.index()), true) {
            self.list.push(model);
        }
    }

    /// The one that was marked last; it no longer is.
    pub fn pop(&mut self) -> Option<ModelId> {
        let model = self.list.pop()?;
        self.listed[model.index()] = false;
        Some(model)
    }
}
