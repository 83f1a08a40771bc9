//! Identifiers. All are small and `Copy`; those that index tables are dense.

use core::fmt;

macro_rules! dense_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub u32);

        impl $name {
            /// The position of this id in a table.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

dense_id!(
    /// A model (one version of one name), as its scheduler knows it. The driver hands the numbers out, from 0 up, and
    /// gives one to another model once nothing is left of the one that had it.
    ModelId,
    "m"
);
dense_id!(
    /// A device: one executor for batches and one for loads. The driver hands the numbers out, from 0 up.
    DeviceId,
    "d"
);

dense_id!(
    /// Who sends requests: an application, whose inputs are of their own sort. The driver hands the numbers out.
    ApplicationId,
    "a"
);

dense_id!(
    /// A pipeline: a graph of models that answers as one. The driver hands the numbers out, from 0 up.
    PipelineId,
    "p"
);

impl ApplicationId {
    /// Everybody who doesn't say.
    pub const DEFAULT: Self = Self(0);
}

/// A model, for whoever asks the driver for it: a slot in the driver's table of models, and how often that slot was
/// used before.
///
/// Slots are given again, so that tables grow with the models that are there and not with those that ever were. The
/// generation keeps a late message about a model that is gone apart from the one that has its slot now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelNumber {
    /// Position in the table of models.
    pub slot: u32,
    /// How many models had this slot before.
    pub generation: u32,
}

impl ModelNumber {
    /// The slot's number for the scheduler.
    pub const fn id(self) -> ModelId {
        ModelId(self.slot)
    }
}

impl fmt::Debug for ModelNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}.{}", self.slot, self.generation)
    }
}

/// A request: a slot in the driver's table of requests, and how often that slot was used before.
///
/// Slots are dense and bounded (P9), so tables are indexed by them and never grow past the bound; the generation keeps
/// a late message about an earlier tenant of the slot apart from the present one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestId {
    /// Position in the table of requests.
    pub slot: u32,
    /// How many requests had this slot before.
    pub generation: u32,
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}.{}", self.slot, self.generation)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One LOAD, UNLOAD or EXEC that the scheduler ordered. Numbers ascend in the order of the orders.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ActionId(pub u64);

impl ActionId {
    /// From here up the numbers are the driver's own; the scheduler never gives them out.
    pub const DRIVERS: Self = Self(1 << 63);
}

impl fmt::Debug for ActionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{}", self.0)
    }
}

impl fmt::Display for ActionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
