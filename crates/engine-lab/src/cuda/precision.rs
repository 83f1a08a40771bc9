//! What models are computed in by evidence, as a server finds it out; and what each precision would have taken.

use crate::Attempt;
use base::{Duration, Precision, PrecisionChoice};
use engine::precision::Tried;
use engine::{Engine, ModelSource};
use engine_cuda::engine::{CudaEngine, CudaOptions};
use models::{PrecisionWishes, Runs, Samples, measure_alone, model_source, with_precision_alone};
use repository::{FoundModel, Repository, ScanEntry};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is always measured, for comparison.
const MEASURED: [Precision; 3] = [Precision::Fp32, Precision::Tf32, Precision::Fp16];

/// Which models, and how.
#[derive(clap::Args)]
pub(crate) struct PrecisionArgs {
    /// ONNX files, or folders with models in Triton's layout, whose configurations count.
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// How far outputs may be off, as a part of their range.
    #[arg(long, default_value_t = PrecisionWishes::default().bound)]
    bound: f64,
    /// Batch sizes.
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    batches: Vec<u32>,
    /// Runs of each batch size.
    #[arg(long, default_value_t = 200)]
    runs: u32,
    /// Where compiled kernels and measurements are kept.
    #[arg(long, env = "PUNCTUAL_CACHE_DIR")]
    cache: Option<PathBuf>,
}

pub(crate) fn run(args: &PrecisionArgs) -> Attempt<Value> {
    let options = CudaOptions { memory_bytes: Some(8 << 30), cache: args.cache.clone(), ..CudaOptions::default() };
    let engine = CudaEngine::new(&options)?;
    let mut rows = Vec::new();
    for path in &args.models {
        let (folder, _temporary) = repository_of(path)?;
        for entry in Repository::open([&folder])?.scan()? {
            let row = match entry {
                ScanEntry::Broken(broken) => json!({ "model": broken.name, "refused": broken.reason }),
                ScanEntry::Found(found) => of_model(&engine, args, &found).unwrap_or_else(|reason| {
                    println!("{}: {reason}", found.name);
                    json!({ "model": found.name, "refused": reason.to_string() })
                }),
            };
            rows.push(row);
        }
    }
    Ok(json!({ "bound": args.bound, "rows": rows }))
}

/// The folder itself, or one that is made for a file.
fn repository_of(path: &Path) -> Attempt<(PathBuf, Option<tempfile::TempDir>)> {
    if path.is_dir() {
        return Ok((path.to_owned(), None));
    }
    let temporary = tempfile::tempdir()?;
    let name = path.file_stem().ok_or("a file has a name")?;
    let version = temporary.path().join(name).join("1");
    std::fs::create_dir_all(&version)?;
    std::fs::copy(path, version.join("model.onnx")).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((temporary.path().to_owned(), Some(temporary)))
}

fn of_model(engine: &CudaEngine, args: &PrecisionArgs, found: &FoundModel) -> Attempt<Value> {
    let source = ModelSource { batch_sizes: args.batches.clone(), ..model_source(found, args.cache.clone())? };
    let start = Instant::now();
    let (served, verdict) = compared(engine, args, found, &source, PrecisionChoice::Auto);
    let compare_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    engine.prepare(&served)?;
    let prepare_s = start.elapsed().as_secs_f64();
    let verdict = verdict.ok_or("there was nothing to compare")?;
    let chosen = verdict.chosen.precision;
    let mut measured = Vec::new();
    for precision in MEASURED.into_iter().chain((!MEASURED.contains(&chosen)).then_some(chosen)) {
        let (source, error) = match compared(engine, args, found, &source, PrecisionChoice::Named(precision)) {
            (source, Some(verdict)) => (source, verdict.chosen.error),
            (source, None) => (source, f64::INFINITY),
        };
        let times = times(engine, args, found, &source)?;
        println!("{} {precision}: off by {error:.1e}, ms {times:?}", found.name);
        measured.push(json!({ "precision": precision.to_string(), "error": finite(error), "ms": times }));
    }
    println!("{}: {chosen}, compared in {compare_s:.1} s, prepared in {prepare_s:.1} s", found.name);
    let others: Vec<Value> = verdict.others.iter().map(described).collect();
    Ok(json!({
        "model": found.name,
        "file_bytes": std::fs::metadata(&found.file)?.len(),
        "chosen": described(&verdict.chosen),
        "others": others,
        "no_faster": verdict.no_faster.as_ref().map(described),
        "measured": measured,
        "compare_s": compare_s,
        "prepare_s": prepare_s,
    }))
}

fn compared(
    engine: &CudaEngine,
    args: &PrecisionArgs,
    found: &FoundModel,
    source: &ModelSource,
    choice: PrecisionChoice,
) -> (ModelSource, Option<engine::precision::Verdict>) {
    with_precision_alone(engine, found, source.clone(), PrecisionWishes { choice, bound: args.bound })
}

/// The median of each batch size on the device, in milliseconds.
fn times(
    engine: &CudaEngine,
    args: &PrecisionArgs,
    found: &FoundModel,
    source: &ModelSource,
) -> Attempt<serde_json::Map<String, Value>> {
    let prepared = engine.prepare(source)?;
    let most = prepared.signature().max_batch.max(1);
    let sizes: Vec<u32> = args.batches.iter().copied().filter(|&size| size <= most).collect();
    let (_, runs) = measure_alone(&*prepared, (0, 0), &sizes, Samples::of(found, None), (1, args.runs))?;
    let median = |spans: &[Duration]| spans.get(spans.len() / 2).map(|span| span.as_millis_f64());
    let of = |runs: &Runs| (runs.batch.to_string(), json!(median(&runs.device).or_else(|| median(&runs.wall))));
    Ok(runs.iter().map(of).collect())
}

fn described(tried: &Tried) -> Value {
    json!({ "precision": tried.precision.to_string(), "error": finite(tried.error) })
}

/// JSON has no infinity; readers make one of what they can't hold.
fn finite(error: f64) -> f64 {
    error.min(f64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_repository_of_one_model() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("net.onnx");
        std::fs::write(&file, "any").unwrap();
        let (made, _temporary) = repository_of(&file).unwrap();
        let entries = Repository::open([&made]).unwrap().scan().unwrap();
        let [ScanEntry::Found(found)] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((found.name.as_str(), std::fs::read(&found.file).unwrap()), ("net", b"any".to_vec()));
        assert_eq!(repository_of(folder.path()).unwrap().0, folder.path());
        assert!(repository_of(&folder.path().join("none.onnx")).is_err());
    }
}
