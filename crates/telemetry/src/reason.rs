//! Why a request got no outputs, in the words that metrics, error bodies and the load generator share.

macro_rules! reasons {
    ($($variant:ident = $name:literal, $outcome:literal, $help:literal;)*) => {
        /// Why a request got no outputs. The names are part of the protocol: clients read them.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Reason {
            $(#[doc = $help] $variant,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word for machines.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Which outcome it belongs to: `refused`, `failed` or `cancelled`.
            pub const fn outcome(self) -> &'static str {
                match self { $(Self::$variant => $outcome,)* }
            }

            /// Whether more devices could have helped.
            pub const fn is_shortage(self) -> bool {
                matches!(self, Self::Overloaded | Self::DeadlineMissed | Self::QueueFull | Self::NoDevice)
            }

            /// What it means, for people.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

reasons! {
    DeadlineUnreachable = "deadline_unreachable", "refused",
        "Even with nothing else to do the answer would have come too late.";
    Overloaded = "overloaded", "refused",
        "Others are ahead, and behind them the answer would come too late.";
    DeadlineMissed = "deadline_missed", "refused",
        "It was planned, but its outputs were not there by the deadline.";
    QueueFull = "queue_full", "refused",
        "A queue or the table of requests has reached its bound.";
    ModelUnavailable = "model_unavailable", "refused",
        "The model isn't served, not yet ready, or no longer there.";
    NoDevice = "no_device", "refused",
        "There is no device to run it on.";
    ExecutionFailed = "execution_failed", "failed",
        "The engine could not compute it.";
    ShuttingDown = "shutting_down", "refused",
        "The server is going down.";
    Cancelled = "cancelled", "cancelled",
        "The client went away.";
    BadInput = "bad_input", "refused",
        "The request can't be understood or doesn't fit the model.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_have_the_same_name() {
        let names: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}
