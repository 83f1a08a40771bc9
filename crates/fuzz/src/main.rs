//! libFuzzer on one target, named by `FUZZ_TARGET`. `scripts/fuzz.py` builds and runs it.
#![no_main]
#![allow(unsafe_code, reason = "libFuzzer calls a C function, which the macro writes")]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<fuzz::Target> = OnceLock::new();

fn chosen() -> fuzz::Target {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    fuzz::find(&name).expect("FUZZ_TARGET names a target that there is")
}

fuzz_target!(|data: &[u8]| (TARGET.get_or_init(chosen).check)(data));
