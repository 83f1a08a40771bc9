//! Files that are no models, caches that are broken, disks that are full, inputs that don't fit: sentences, never a
//! panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use base::DataType;
use common::{Case, ENGINE, Tensor, assert_close, execute, model_file, prepare, source};
use engine::{Engine, EngineError};
use engine_ort::{OrtEngine, OrtOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn refusal(file: &Path) -> String {
    match ENGINE.prepare(&source(file.to_owned(), None)) {
        Err(error @ (EngineError::BadModel { .. } | EngineError::Io { .. })) => {
            let text = error.to_string();
            assert!(text.contains(&file.display().to_string()), "{text}");
            assert!(!text.contains('\n') && !text.contains(".cc:"), "{text}");
            text
        }
        Err(other) => panic!("not blamed on the model: {other}"),
        Ok(_) => panic!("{} was accepted", file.display()),
    }
}

#[test]
fn files_that_are_no_models_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let whole = fs::read(model_file("mobilenetv2")).unwrap();
    assert!(refusal(&file("empty.onnx", b"")).ends_with("the file is empty: expected an ONNX model"));
    let text = refusal(&file("text.onnx", b"this is not a model, it is a line of text"));
    assert!(text.ends_with("it is not an ONNX model, or only a part of one: export or copy it again"), "{text}");
    refusal(&file("zeros.onnx", &[0; 4096]));
    refusal(&file("half.onnx", &whole[..whole.len() / 2]));
    refusal(&file("cut.onnx", &whole[..whole.len() - 1]));
    refusal(&file("start.onnx", &whole[..100]));
    refusal(&file("one.onnx", &whole[..1]));
    assert!(refusal(&folder.path().join("absent.onnx")).contains("No such file"));
    refusal(folder.path());
}

/// Damage in the middle: whatever the runtime makes of it, it must not take the process with it.
#[test]
fn damaged_files_are_survived() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    for model in ["mlp", "add", "silero-vad"] {
        let whole = fs::read(model_file(model)).unwrap();
        for at in (0..whole.len()).step_by((whole.len() / 40).max(1)) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            fs::write(&path, damaged).unwrap();
            drop(ENGINE.prepare(&source(path.clone(), None)));
        }
    }
}

#[test]
fn a_missing_operator_is_named() {
    let text = refusal(&model_file("missing_operator"));
    assert!(text.contains("it needs the operator no.such.domain:NoSuchOperator, which"), "{text}");
}

#[test]
fn broken_caches_are_made_again() {
    let cache = tempfile::tempdir().unwrap();
    let case = Case::of("mobilenetv2").remove(0);
    let kept = || cache.path().read_dir().unwrap().next().unwrap().unwrap().path();
    let check = |what: &str| {
        let mut loaded = prepare("mobilenetv2", Some(cache.path())).unwrap().load(0).unwrap();
        assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, what);
    };
    check("fresh");
    let whole = fs::read(kept()).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for broken in [&whole[..whole.len() / 2], &whole[..10], &[], &flipped] {
        fs::write(kept(), broken).unwrap();
        check("after damage");
        assert_eq!(fs::read(kept()).unwrap().len(), whole.len());
    }
}

#[test]
fn a_cache_that_can_not_be_written_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file, not a folder");
    fs::write(&file, "").unwrap();
    let case = Case::of("mlp").remove(0);
    let mut loaded = prepare("mlp", Some(&file)).unwrap().load(0).unwrap();
    assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, "without cache");
}

/// Set in the process that the next two tests start: a folder in which there is almost no room.
const FULL_DISK: &str = "PUNCTUAL_TEST_FULL_DISK";

/// In that process: a model that can't be written anywhere is served nevertheless, and leaves nothing behind.
#[test]
#[ignore = "two other tests start it where there is no room"]
fn serves_without_room() {
    let folder = std::env::var_os(FULL_DISK).unwrap();
    let case = Case::of("mobilenetv2").remove(0);
    let prepared = prepare("mobilenetv2", Some(Path::new(&folder))).unwrap();
    for _ in 0..2 {
        let mut loaded = prepared.load(0).unwrap();
        assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, "on a full disk");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "nothing is left behind");
}

fn assert_serves_without_room(mut command: Command, folder: &Path, temporary: &Path) {
    let output = command.env(FULL_DISK, folder).env("TMPDIR", temporary).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}{complained}");
}

/// Runs this program again where no file may become larger than 1 MB, which every system can do: writing fails in the
/// middle, as on a full disk.
#[test]
fn files_that_can_not_be_written_to_their_end_are_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    // Blocks of 512 bytes. The signal would end the process.
    let script = r#"trap '' XFSZ && ulimit -f 2048 && exec "$0" --ignored --exact serves_without_room"#;
    let mut again = Command::new("sh");
    again.args(["-c", script]).arg(std::env::current_exe().unwrap());
    assert_serves_without_room(again, folder.path(), temporary.path());
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "nothing is left behind");
}

/// The same on a disk of 1 MB that is really full, with room for temporary files elsewhere and without, where the
/// system allows name spaces.
#[test]
fn a_full_disk_is_done_without() {
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system allows no name spaces, so there is no small disk to fill");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=1m none "$1" && exec "$0" --ignored --exact serves_without_room"#;
    for temporary in [other.path(), folder.path()] {
        let mut again = Command::new("unshare");
        again.args(["-rm", "sh", "-c", script]).arg(std::env::current_exe().unwrap()).arg(folder.path());
        assert_serves_without_room(again, folder.path(), temporary);
    }
}

#[test]
fn a_library_that_is_not_there_is_a_sentence() {
    let options = OrtOptions { library: Some(PathBuf::from("/nowhere/libonnxruntime.so")), ..OrtOptions::default() };
    // The process may have loaded one already, through another test: then this path isn't looked at.
    if let Err(error) = OrtEngine::new(&options) {
        let text = error.to_string();
        assert!(text.starts_with("ONNX Runtime is not available: /nowhere/libonnxruntime.so: "), "{text}");
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused_and_the_model_goes_on() {
    let case = Case::of("add").remove(0);
    let mut loaded = prepare("add", None).unwrap().load(0).unwrap();
    let good = &case.inputs;
    let with = |change: &dyn Fn(&mut Tensor)| {
        let mut inputs = good.clone();
        change(&mut inputs[1]);
        inputs
    };
    let cases = [
        (vec![good[0].clone()], "1 inputs were given, the model has 2"),
        (with(&|tensor| tensor.datatype = DataType::Int32), "input b is INT32, expected FP32"),
        (with(&|tensor| tensor.data.truncate(15)), "input b has 15 bytes, which is not what the shape [1, 4] takes"),
        (with(&|tensor| tensor.shape = vec![-1, 4]), "input b has the shape [-1, 4], which no memory can hold"),
        (with(&|tensor| tensor.shape = vec![i64::MAX, 4]), "which no memory can hold"),
        (with(&|tensor| tensor.shape = vec![2, 2]), ""),
    ];
    for (inputs, expected) in cases {
        let error = execute(&mut *loaded, &inputs).unwrap_err();
        assert!(matches!(&error, EngineError::Unfit(text) if text.contains(expected)), "{error:?}");
        assert_close(&execute(&mut *loaded, good).unwrap(), &case.outputs, "after a refusal");
    }
}

#[test]
fn values_that_a_type_does_not_have_are_refused() {
    let mut loaded = prepare("identity_bool", None).unwrap().load(0).unwrap();
    let input = Tensor { datatype: DataType::Bool, shape: vec![1, 2], data: vec![1, 2].into() };
    assert!(execute(&mut *loaded, &[input]).unwrap_err().to_string().contains("neither 0 nor 1"));
    let mut loaded = prepare("identity_bytes", None).unwrap().load(0).unwrap();
    let input = Tensor { datatype: DataType::Bytes, shape: vec![1, 1], data: vec![9, 0, 0, 0, 65].into() };
    let text = execute(&mut *loaded, &[input]).unwrap_err().to_string();
    assert!(text.contains("input input: string 0 says 9 bytes, but 1 follow"), "{text}");
}

#[test]
fn an_execution_that_fails_is_a_sentence_and_the_model_goes_on() {
    let case = Case::of("failing").remove(0);
    let mut loaded = prepare("failing", None).unwrap().load(0).unwrap();
    let wrong = Tensor { datatype: DataType::Fp32, shape: vec![1, 4], data: vec![0; 16].into() };
    let text = execute(&mut *loaded, std::slice::from_ref(&wrong)).unwrap_err().to_string();
    assert!(!text.contains('\n') && !text.contains(".cc:"), "{text}");
    assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, "after a failure");
    let error = execute(&mut *loaded, &[wrong]).unwrap_err();
    assert!(
        matches!(&error, EngineError::Unfit(said) if said.contains("cannot be reshaped")),
        "others can be computed: {error:?}"
    );
}

/// The worker catches panics and uses the model again. An output that was left over would be taken for the place of the
/// next one, which has another shape here.
#[test]
fn a_sink_that_panics_leaves_a_model_that_goes_on() {
    let cases = Case::of("add");
    assert!(
        cases.len() > 1 && cases.iter().all(|case| case.outputs.len() > 1),
        "several shapes and outputs are needed"
    );
    let mut loaded = prepare("add", None).unwrap().load(0).unwrap();
    for (case, next) in cases.iter().zip(cases.iter().skip(1)) {
        let mut sink = |_: usize, _: engine::TensorView<'_>| panic!("the sink's own fault");
        let run = std::panic::AssertUnwindSafe(|| engine::execute(&mut *loaded, &mut &*case.inputs, &mut sink));
        std::panic::catch_unwind(run).unwrap_err();
        assert_close(&execute(&mut *loaded, &next.inputs).unwrap(), &next.outputs, "after a panic");
    }
}

#[test]
fn empty_tensors_are_tensors() {
    let mut loaded = prepare("identity_fp32", None).unwrap().load(0).unwrap();
    let empty = Tensor { datatype: DataType::Fp32, shape: vec![2, 0], data: Vec::new().into() };
    assert_eq!(execute(&mut *loaded, std::slice::from_ref(&empty)).unwrap(), [empty]);
}
