//! How much memory and work a run may take: what is allocated is counted first, and may fail.

use crate::StepError;
use std::mem::size_of;

/// Elements that may be looked at for each byte that may be taken: with the 256 MiB of a large request, some seconds.
const WORK_FOR_A_BYTE: usize = 8;

/// What is left of the memory and of the work that a run may take.
#[derive(Debug)]
pub(crate) struct Bound {
    left: usize,
    most: usize,
    work: usize,
}

impl Bound {
    pub(crate) fn new(most: usize) -> Self {
        Self { left: most, most, work: most.saturating_mul(WORK_FOR_A_BYTE) }
    }

    /// Counts so many bytes that somebody else allocates; `None` where their number is larger than any memory.
    pub(crate) fn count(&mut self, bytes: Option<usize>) -> Result<(), StepError> {
        let left = bytes.and_then(|bytes| self.left.checked_sub(bytes));
        self.left = left.ok_or_else(|| {
            let needed = bytes.map_or("more than any memory has".to_owned(), |bytes| format!("{bytes} bytes more"));
            StepError::TooLarge(format!("it needs {needed}, of {} in all that it may take: send less", self.most))
        })?;
        Ok(())
    }

    /// Counts elements that are looked at.
    pub(crate) fn work(&mut self, elements: usize) -> Result<(), StepError> {
        self.work = self.work.checked_sub(elements).ok_or_else(|| {
            let most = self.most.saturating_mul(WORK_FOR_A_BYTE);
            StepError::TooLarge(format!("it takes longer than it may: it would look at more than {most} elements"))
        })?;
        Ok(())
    }

    /// The same for something that gives back all that it takes.
    pub(crate) fn rest(&self) -> Self {
        Self { ..*self }
    }

    /// Counts the work that was done with the rest.
    pub(crate) fn worked(&mut self, rest: &Self) {
        self.work = rest.work;
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// An empty vector with room for so many elements.
    pub(crate) fn room<T>(&mut self, elements: usize) -> Result<Vec<T>, StepError> {
        self.count(elements.checked_mul(size_of::<T>()))?;
        let mut room = Vec::new();
        let refused = |_| StepError::TooLarge("there is no memory for it now: try again".to_owned());
        room.try_reserve_exact(elements).map_err(refused)?;
        Ok(room)
    }

    /// A vector with so many copies of a value.
    pub(crate) fn filled<T: Copy>(&mut self, elements: usize, value: T) -> Result<Vec<T>, StepError> {
        let mut filled = self.room(elements)?;
        filled.resize(elements, value);
        Ok(filled)
    }
}
