//! The names of applications, as small numbers.
//!
//! What a request takes may depend on who sends it: the inputs of a search box are shorter than those of a summary. The
//! scheduler learns that for each application, by number.

use base::ApplicationId;
use std::sync::{Once, OnceLock};
use wire::Fault;

/// So many applications are told apart (P9); further ones count as the default one.
const MAX_APPLICATIONS: usize = 64;
/// Longer names are refused.
const MAX_NAME_BYTES: usize = 128;

/// All names that ever came. Those that are there stay, so that looking one up takes no lock.
pub(crate) struct Applications {
    names: [OnceLock<Box<str>>; MAX_APPLICATIONS],
    full: Once,
}

impl Default for Applications {
    fn default() -> Self {
        Self { names: [const { OnceLock::new() }; MAX_APPLICATIONS], full: Once::new() }
    }
}

impl Applications {
    /// The number of an application; no name is the default one.
    pub(crate) fn of(&self, name: &str) -> Result<ApplicationId, Fault> {
        if name.is_empty() {
            return Ok(ApplicationId::DEFAULT);
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(Fault::bad(format!(
                "the name of the application has {} bytes: it may have at most {MAX_NAME_BYTES}",
                name.len()
            )));
        }
        // A place that is free takes the name: then it is the one.
        let same = |place: &OnceLock<Box<str>>| **place.get_or_init(|| name.into()) == *name;
        if let Some(place) = self.names.iter().position(same) {
            return Ok(ApplicationId(place as u32 + 1));
        }
        self.full.call_once(|| {
            tracing::warn!(
                application = name,
                "more than {MAX_APPLICATIONS} applications: this one and further ones count as the default one"
            );
        });
        Ok(ApplicationId::DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_numbers_and_keep_them_up_to_the_bound() {
        let applications = Applications::default();
        assert_eq!(applications.of("").unwrap(), ApplicationId::DEFAULT);
        for round in 0..2 {
            for number in 1..=MAX_APPLICATIONS {
                let id = applications.of(&format!("a{number}")).unwrap();
                assert_eq!(id, ApplicationId(number as u32), "round {round}");
            }
        }
        assert_eq!(applications.of("one more").unwrap(), ApplicationId::DEFAULT);
        assert_eq!(applications.of("a7").unwrap(), ApplicationId(7));
        assert!(applications.of(&"x".repeat(129)).unwrap_err().to_string().contains("has 129 bytes"));
    }

    #[test]
    fn threads_that_bring_names_at_once_agree() {
        let applications = Applications::default();
        let ask = || -> Vec<ApplicationId> {
            (0..40).map(|number| applications.of(&format!("a{number}")).unwrap()).collect()
        };
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        let mut ids = answers[0].clone();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 40);
    }
}
