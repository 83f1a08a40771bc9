//! How GPUs are divided into shares, and which models run in which share: batch size, space and time chosen together
//! (Gpulet, section 4).
//!
//! In one share models take turns. In each *cycle* every model of the share runs one batch, of the requests that came
//! in the last cycle:
//!
//! ```text
//!  share   ▕▓ a ▓▕▒▒ b ▒▒▕░ c ░▕  idle  ▕▓ a ▓▕▒▒ b ▒▒▕░ c ░▕
//!          └──────── cycle ─────────────┘
//!  a request of b waits for a cycle at most, then runs: cycle + l(b) <= objective
//! ```
//!
//! - [`search`](search::search): the fewest GPUs that carry everything, exactly, where there are few models.
//! - [`pools`](pools::pools): shares that models have together; what the server should use.
//! - [`follow`]: pools that follow the rates.
//! - [`rivals`]: Gpulet's own algorithm, and those that it was compared with.
//! - [`interference`]: what a batch takes beside another in the other share; [`SideBySide`]: how far it is meanwhile.
//!
//! Pure: rates, objectives and measured times in, a plan out.

mod arrangement;
mod cycle;
pub mod follow;
pub mod gpulet;
pub mod interference;
mod measured;
pub mod pools;
pub mod rivals;
pub mod search;
mod side_by_side;
mod times;
mod ways;

pub use arrangement::{Arrangement, Slot};
pub use cycle::Sharing;
pub use interference::{BatchInShare, Interference, MeasuredPair};
pub use measured::Measurements;
pub use side_by_side::SideBySide;
pub use times::ShareTimes;
pub use ways::Way;

/// A whole GPU, in percent.
pub const WHOLE: u32 = 100;

/// How a GPU may be divided unless somebody says otherwise, in percent: what shares were measured in. Two at most:
/// nobody has measured what three batches do to each other.
pub const DIVISIONS: [&[u32]; 4] = [&[WHOLE], &[50, 50], &[40, 60], &[20, 80]];

/// Sizes that a share may have, ascending, in percent: those of the divisions.
pub const SIZES: [u32; 6] = [20, 40, 50, 60, 80, WHOLE];

/// Shares of a GPU, at most.
pub const SLOTS: usize = 2;

/// Seconds in which a GPU behind a server computes nothing after each batch ([`Sharing::gap`]), until the server has
/// measured it; it follows from what 64 clients that wait got of `game` from an H200 with kernels by rule
/// (docs/benchmarks-gpu/auto_shares.json): in batches of 16, 4.85 ms for sixteen games on the whole GPU and 8.32 ms in
/// each half. If half a GPU takes twice as long for a row, and 0 to 10 % more beside the other half, the seven batches
/// leave 0.13 to 0.22 ms each. The engine alone, without a server, leaves 0.015 to 0.029 ms (model.json, flow.json).
pub const GAP_ON_GPUS: f64 = 0.17e-3;

/// A model, what is asked of it, and what it takes.
#[derive(Clone, Debug)]
pub struct SharedModel {
    /// For messages and tables.
    pub name: String,
    /// Requests a second.
    pub rate: f64,
    /// Seconds that a request has.
    pub objective: f64,
    /// What its batches take.
    pub times: ShareTimes,
}

/// How each GPU is divided, and what runs where.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SharePlan {
    /// Those that are needed.
    pub gpus: Vec<PlannedGpu>,
}

/// One GPU, divided.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PlannedGpu {
    /// Together a whole GPU at most.
    pub shares: Vec<PlannedShare>,
}

/// One share, and the models that take turns in it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PlannedShare {
    /// Of the GPU.
    pub percent: u32,
    /// Seconds in which every model has one turn.
    pub cycle: f64,
    /// In the order of their turns.
    pub turns: Vec<PlannedTurn>,
}

/// One model in a share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlannedTurn {
    /// Its place in the list of models.
    pub model: usize,
    /// The part of its requests that come here, a second.
    pub rate: f64,
    /// The largest batch that it needs.
    pub batch: u32,
    /// Seconds that this batch takes, beside what runs in the other share.
    pub takes: f64,
}

impl PlannedShare {
    /// The part of the time in which it computes.
    pub fn busy(&self) -> f64 {
        if self.cycle > 0.0 { self.turns.iter().map(|turn| turn.takes).sum::<f64>() / self.cycle } else { 0.0 }
    }
}

impl SharePlan {
    /// What of a model's requests is planned for, a second.
    pub fn rate_of(&self, model: usize) -> f64 {
        let turns = self.gpus.iter().flat_map(|gpu| &gpu.shares).flat_map(|share| &share.turns);
        turns.filter(|turn| turn.model == model).map(|turn| turn.rate).sum()
    }

    /// Whether every model's requests are planned for.
    pub fn carries(&self, models: &[SharedModel]) -> bool {
        // Parts of a rate are added up: the last digits may differ.
        models.iter().enumerate().all(|(index, model)| self.rate_of(index) >= model.rate * (1.0 - 1e-9))
    }
}
