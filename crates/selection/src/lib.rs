//! What stands above models: which members of an endpoint answer a request, how their answers become one, and what is
//! learnt from feedback.
//!
//! Everything here is pure. There is no clock (instants are given), no IO, no thread, and no randomness but numbers
//! that the caller draws. Equal calls give equal answers, so that the laboratory shows what the server does.
//!
//! ```text
//!  endpoint.toml ──> PolicyTable ── fits(signatures) ──> Fit: what it takes and gives, by what answers are compared
//!
//!  a request ──> Split | Learner::choose ──> one member ─────────────────┐
//!            ──> all members at once ──> combine(who has arrived) ───────┼──> answer, confidence
//!            ──> Cascade::goes_on, Variants::choose, by predicted times ─┘         │
//!                                                                       Answers::remember
//!  feedback ─────────────────────────────────────────────> Answers::take ──> Learner::learn
//! ```
//!
//! Bounds: members of an endpoint ([`MOST_MEMBERS`]), contexts with weights of their own ([`Contexts`]), bytes and age
//! of answers that wait for feedback ([`Answers`]).

mod answers;
mod cascade;
mod combine;
mod contexts;
mod experts;
mod fit;
mod judge;
mod learner;
mod split;
mod table;
mod variants;

pub use answers::{Answered, Answers, Unjoined};
pub use cascade::Cascade;
pub use combine::{Ballot, Combined, combine};
pub use contexts::{ContextChange, Contexts};
pub use experts::{Experts, Learning, RestoreProblem};
pub use fit::{Fit, OutputRow, default_outputs, fits};
pub use judge::{Code, Judge, Reads, Shown, sureness};
pub use learner::{Advice, Chosen, Learner, MemberLoss, Truth};
pub use split::{Split, unit_of};
pub use table::{
    AnswerBy, CascadeStage, CascadeTable, CombineBy, DefaultElement, EnsembleTable, Exp3Table, Exp4Table, FixedTable,
    JudgedTable, PolicyTable, ShadowTable, SplitTable, Sureness, VariantMember, VariantsTable, WeightedMember,
};
pub use variants::{Prediction, Variants};

/// Members that one endpoint may have: each request of an ensemble becomes so many.
pub const MOST_MEMBERS: usize = 64;
