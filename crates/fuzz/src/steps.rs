//! What built-in steps are given: files of pictures and texts by clients, parameters by operators.

use base::{DataType, element_count};
use bytes::Bytes;
use engine::Tensor;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use steps::TensorStep;

/// What a run may take.
const MOST_BYTES: usize = 16 << 20;

fn made(name: &str, parameters: &str) -> TensorStep {
    let table = parameters.parse().expect("it is TOML");
    TensorStep::new(name, &table, &tokenizers()).expect("its parameters are right")
}

/// Where the tokenizers of the steps' own tests are.
fn tokenizers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../steps/tests/cases")
}

/// One string.
fn string(bytes: &[u8]) -> Tensor {
    let mut data = (bytes.len() as u32).to_le_bytes().to_vec();
    data.extend_from_slice(bytes);
    Tensor { datatype: DataType::Bytes, shape: vec![1], data: Bytes::from(data) }
}

/// Outputs of numbers have as many bytes as their shapes say.
fn are_consistent(outputs: &[Tensor]) {
    for output in outputs {
        let bytes = element_count(&output.shape).and_then(|count| count.checked_mul(output.datatype.size()?));
        assert_eq!(bytes, Some(output.data.len()), "{:?} of {}", output.shape, output.datatype);
    }
}

/// The first byte chooses what becomes of the picture.
pub(crate) fn image(data: &[u8]) {
    static STEPS: OnceLock<Vec<TensorStep>> = OnceLock::new();
    let all = STEPS.get_or_init(|| {
        [
            "",
            "colours = 'bgr'",
            "colours = 'gray'",
            "resize = { size = [8, 8] }",
            "resize = { shortest_at_least = 16, multiple = 8, antialias = false }",
        ]
        .iter()
        .map(|parameters| made("decode_image", parameters))
        .collect()
    });
    let Some((&chosen, file)) = data.split_first() else { return };
    if let Ok(outputs) = all[usize::from(chosen) % all.len()].run(&[string(file)], MOST_BYTES) {
        are_consistent(&outputs);
    }
}

pub(crate) fn tokens(data: &[u8]) {
    static STEPS: OnceLock<Vec<TensorStep>> = OnceLock::new();
    let all = STEPS.get_or_init(|| {
        let step =
            |name: &&str| made("tokenize", &format!("file = '{name}.json'\nmost_tokens = 64\nmost_bytes = 4096"));
        ["wordpiece", "pairs", "unigram"].iter().map(step).collect()
    });
    for step in all {
        if let Ok(outputs) = step.run(&[string(data)], MOST_BYTES) {
            are_consistent(&outputs);
            assert!(outputs.iter().all(|output| output.shape[1] <= 64), "no more tokens than are allowed");
        }
    }
}

/// The first byte says how wide a map is, the second one how high, and whether gaps are closed; each of the others is a
/// pixel, from 0 to 1 and a little beyond. What is found is cut out of a picture of another size, and turned.
pub(crate) fn text_boxes(data: &[u8]) {
    static STEPS: OnceLock<[TensorStep; 3]> = OnceLock::new();
    let [plain, dilating, crop] = STEPS.get_or_init(|| {
        let size = "size = [8, 16]\nkeep_aspect = true\nwidth_at_most = 64\nturn_tall = 1.5\nhalf_turns = true";
        let crop = format!("{size}\nnormalise = {{ scale = 0.1, layout = 'CHW' }}");
        [
            made("text_boxes", "least_side = 0\nscore = 0.0"),
            made("text_boxes", "dilate = true\nmost = 20"),
            made("crop_boxes", &crop),
        ]
    });
    let &[width, height, ref pixels @ ..] = data else { return };
    let (width, height) = (usize::from(width) + 1, usize::from(height % 128) + 1);
    let value = |at: usize| match pixels.get(at % pixels.len().max(1)) {
        Some(255) => f32::NAN,
        Some(&byte) => f32::from(byte) / 250.0,
        None => 0.0,
    };
    let map: Vec<u8> = (0..width * height).flat_map(|at| value(at).to_le_bytes()).collect();
    let shape = vec![1, 1, height as i64, width as i64];
    let map = Tensor { datatype: DataType::Fp32, shape, data: map.into() };
    let image = Tensor { datatype: DataType::Uint8, shape: vec![90, 70, 1], data: Bytes::from(vec![9; 90 * 70]) };
    let step = if data[1] < 128 { plain } else { dilating };
    let Ok(outputs) = step.run(&[map, image.clone()], MOST_BYTES) else { return };
    are_consistent(&outputs);
    let corners = outputs[0].data.chunks_exact(8).map(|pair| {
        let along = |at: usize| f32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
        (along(0), along(4))
    });
    for (x, y) in corners {
        assert!((0.0..70.0).contains(&x) && (0.0..90.0).contains(&y), "a corner at {x}, {y} is outside of the picture");
    }
    let count = outputs[0].shape[0];
    let turned = (0..count).map(|at| (at % 2) as u8).collect::<Vec<_>>();
    let turned = Tensor { datatype: DataType::Bool, shape: vec![count], data: turned.into() };
    if let Ok(crops) = crop.run(&[image, outputs[0].clone(), turned], MOST_BYTES) {
        are_consistent(&crops);
    }
}

/// The step's name is among its parameters.
pub(crate) fn parameters(data: &[u8]) {
    let Ok(mut table) = std::str::from_utf8(data).unwrap_or_default().parse::<toml::Table>() else { return };
    let name = table.remove("step").and_then(|name| Some(name.as_str()?.to_owned())).unwrap_or_default();
    let Ok(step) = TensorStep::new(&name, &table, &tokenizers()) else { return };
    let shapes: [(DataType, &[i64]); 5] = [
        (DataType::Uint8, &[4, 6, 3]),
        (DataType::Fp32, &[2, 4, 3]),
        (DataType::Fp32, &[1, 5, 4]),
        (DataType::Int64, &[7]),
        (DataType::Fp16, &[2, 1, 3, 2]),
    ];
    for (datatype, shape) in shapes {
        let count = element_count(shape).unwrap_or(0) * datatype.size().unwrap_or(0);
        let input = Tensor { datatype, shape: shape.to_vec(), data: Bytes::from(vec![1; count]) };
        for inputs in [vec![input.clone()], vec![input.clone(), input]] {
            if let Ok(outputs) = step.run(&inputs, MOST_BYTES) {
                assert_eq!(outputs.len(), step.output_names().len());
            }
        }
    }
}
