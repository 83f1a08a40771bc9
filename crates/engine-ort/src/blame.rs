//! Whether a failed execution is the fault of its inputs, as far as the runtime lets us tell.
//!
//! The runtime has a code for arguments that don't fit, but most of its operators say "failed" or throw when shapes or
//! values don't suit them. Such a failure is the inputs' if the model has computed others, and if the sentence tells of
//! nothing that could happen to any inputs.

use crate::runtime::RuntimeError;
use engine::EngineError;
use ort::sys::OrtErrorCode;

/// What is said of what befalls an execution whatever its inputs are: no memory, an end from outside. Single words
/// would be found in the names of functions that the runtime tells of.
const NOT_OF_INPUTS: [&str; 6] =
    ["bad_alloc", "Failed to allocate", "Available memory", "ut of memory", "finds no memory", "terminate flag"];
/// In front of what an operator says; before it are names that the model's author has chosen.
const SAID_BY_OPERATOR: &str = "Status Message: ";

/// A failed execution, by the runtime's code for it. `has_computed`: the model has computed other inputs.
pub(crate) fn failed(code: OrtErrorCode, refused: RuntimeError, has_computed: bool) -> EngineError {
    match code {
        OrtErrorCode::ORT_INVALID_ARGUMENT => of_inputs(refused),
        OrtErrorCode::ORT_FAIL | OrtErrorCode::ORT_RUNTIME_EXCEPTION if has_computed => of_inputs(refused),
        _ => EngineError::Execute(refused.0),
    }
}

/// What failed over inputs, unless it would have over others, too.
pub(crate) fn of_inputs(RuntimeError(sentence): RuntimeError) -> EngineError {
    let said = sentence.rsplit_once(SAID_BY_OPERATOR).map_or(&*sentence, |(_, said)| said);
    if NOT_OF_INPUTS.iter().any(|word| said.contains(word)) {
        EngineError::Execute(sentence)
    } else {
        EngineError::Unfit(sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OrtErrorCode::{ORT_EP_FAIL, ORT_FAIL, ORT_INVALID_ARGUMENT, ORT_RUNTIME_EXCEPTION};

    fn is_unfit(code: OrtErrorCode, sentence: &str, has_computed: bool) -> bool {
        matches!(failed(code, RuntimeError(sentence.into()), has_computed), EngineError::Unfit(said) if said == sentence)
    }

    #[test]
    fn what_an_operator_refuses_is_the_inputs_fault_if_others_were_computed() {
        let broadcast = "Non-zero status code returned while running Add node. Name:'Failed to allocate' Status Message: \
                         void f(std::allocator<char>) Attempting to broadcast an axis by a dimension other than 1. 3 by 4";
        assert!(is_unfit(ORT_INVALID_ARGUMENT, "indices element out of data bounds", false));
        assert!(is_unfit(ORT_RUNTIME_EXCEPTION, broadcast, true) && is_unfit(ORT_FAIL, broadcast, true));
        assert!(!is_unfit(ORT_RUNTIME_EXCEPTION, broadcast, false), "the model may be at fault");
        assert!(!is_unfit(ORT_EP_FAIL, broadcast, true), "the device may be at fault");
    }

    #[test]
    fn a_want_of_memory_and_an_end_from_outside_are_not() {
        for said in [
            "Non-zero status code returned while running Expand node. Name:'' Status Message: std::bad_alloc",
            "Failed to allocate memory for requested buffer of size 4000000000000",
            "Available memory of 4096 is smaller than requested bytes of 9216",
            "Exiting due to terminate flag being set to true.",
        ] {
            assert!(!is_unfit(ORT_RUNTIME_EXCEPTION, said, true) && !is_unfit(ORT_FAIL, said, true), "{said}");
        }
    }
}
