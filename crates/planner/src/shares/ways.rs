//! The ways to plan shares, by name: ours, the rivals', and the ideal.

use super::search::{ideal, search};
use super::{Interference, SharePlan, SharedModel, Sharing, WHOLE, rivals};

/// How closely the most is found, as a part of it.
const CLOSE: f64 = 0.01;
/// Who doesn't carry this part of the rates carries nothing: some objective can't be met at any rate.
const LEAST: f64 = 1e-3;

/// A way to plan shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Squishy bin packing on whole GPUs.
    Squishy,
    /// The same on even halves; it doesn't know what they do to each other.
    Halves,
    /// Greedy best fit.
    Greedy,
    /// Gpulet's elastic partitioning, without its model of interference.
    Blind,
    /// Gpulet's elastic partitioning.
    Elastic,
    /// What the server uses.
    Ours,
    /// The same with all the time in the world.
    Ideal,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Squishy, Self::Halves, Self::Greedy, Self::Blind, Self::Elastic, Self::Ours, Self::Ideal];

    /// The name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Squishy => "squishy",
            Self::Halves => "halves",
            Self::Greedy => "greedy",
            Self::Blind => "blind",
            Self::Elastic => "elastic",
            Self::Ours => "ours",
            Self::Ideal => "ideal",
        }
    }

    /// What it is, in a few words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Squishy => "squishy bin packing, whole GPUs",
            Self::Halves => "squishy bin packing, even halves, interference unknown to it",
            Self::Greedy => "greedy best fit",
            Self::Blind => "elastic, interference unknown to it",
            Self::Elastic => "elastic",
            Self::Ours => "ours",
            Self::Ideal => "ideal",
        }
    }

    /// The way of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// Its plan; `None` where the GPUs don't carry everything, as far as it sees.
    pub fn plan(self, sharing: &Sharing<'_>) -> Option<SharePlan> {
        let blind = Sharing { interference: &Interference::NONE, ..*sharing };
        match self {
            Self::Squishy => rivals::squishy(sharing, WHOLE),
            Self::Halves => rivals::squishy(&blind, WHOLE / 2),
            Self::Greedy => rivals::greedy(sharing),
            Self::Blind => rivals::elastic(&blind),
            Self::Elastic => rivals::elastic(sharing),
            Self::Ours => search(sharing),
            Self::Ideal => ideal(sharing),
        }
    }

    /// Its plan for as many times of every rate as it sees a way to carry, and how many times that is: what is left of
    /// the GPUs is room for chance.
    pub fn plan_most(self, sharing: &Sharing<'_>) -> (SharePlan, f64) {
        let plan = |times: f64| {
            let model = |model: &SharedModel| SharedModel { rate: model.rate * times, ..model.clone() };
            let models: Vec<SharedModel> = sharing.models.iter().map(model).collect();
            self.plan(&Sharing { models: &models, ..*sharing })
        };
        let (mut low, mut high) = ((SharePlan::default(), 0.0), 1.0);
        if sharing.models.iter().all(|model| model.rate == 0.0) {
            return low;
        }
        while let Some(found) = plan(high) {
            (low, high) = ((found, high), 2.0 * high);
        }
        while high - low.1 > CLOSE * high && high > LEAST {
            let middle = (low.1 + high) / 2.0;
            match plan(middle) {
                Some(found) => low = (found, middle),
                None => high = middle,
            }
        }
        low
    }
}
