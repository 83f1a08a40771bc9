//! What steps do with what nobody means well.

use crate::*;
use expect_test::expect;
use proptest::prelude::*;

fn step(text: &str) -> Result<TensorStep, StepError> {
    let mut table: Table = text.parse().unwrap();
    let name = table.remove("step").unwrap();
    TensorStep::new(name.as_str().unwrap(), &table, Path::new("."))
}

fn sentence(text: &str) -> String {
    step(text).map(|_| ()).unwrap_err().to_string()
}

fn tensor(datatype: DataType, shape: &[i64], data: Vec<u8>) -> Tensor {
    Tensor { datatype, shape: shape.into(), data: data.into() }
}

fn zeros(datatype: DataType, shape: &[i64]) -> Tensor {
    tensor(datatype, shape, vec![0; element_count(shape).unwrap() * datatype.size().unwrap()])
}

fn file(bytes: &[u8]) -> Tensor {
    let mut data = Vec::new();
    elements::push_string(&mut data, bytes);
    tensor(DataType::Bytes, &[1], data)
}

#[test]
fn mistakes_are_sentences() {
    let all = [
        "step = 'blur'",
        "step = 'resize'",
        "step = 'resize'\nsize = [224, 224]\nshortest = 3",
        "step = 'resize'\nsize = [224, 0]",
        "step = 'resize'\nsize = [224, 224]\nfilter = 'sinc'",
        "step = 'resize'\nsice = [224, 224]",
        "step = 'resize'\nsize = [224, 224]\nmultiple = 32",
        "step = 'decode_image'\nresize = { size = [1, 70000] }",
        "step = 'crop'\nsize = [4, 4]\ntop = 1",
        "step = 'crop'\nsize = [4, 4]\ntop = -1\nleft = 0",
        "step = 'normalise'\nmean = [1, 2]\ndeviation = [1, 2, 3]",
        "step = 'normalise'\ndeviation = [0]",
        "step = 'normalise'\ndatatype = 'INT8'",
        "step = 'layout'\nfrom = 'NHWC'\nto = 'NCCW'",
        "step = 'cast'\nto = 'FLOAT'",
        "step = 'cast'\nto = 'BYTES'",
        "step = 'top_k'\nk = 0",
        "step = 'non_max_suppression'\nmost_per_class = 3\niou = 1.5",
        "step = 'non_max_suppression'\nmost_per_class = 0\niou = 0.5",
        "step = 'ctc_decode'",
        "step = 'ctc_decode'\ncharacters = ['a']\nblank = 2",
        "step = 'ctc_decode'\nfile = '../secret'",
        "step = 'ctc_decode'\nfile = 'isnt-there.txt'",
        "step = 'crop_boxes'\nsize = [1, 1]\nturn_tall = 0.5",
    ];
    let said: Vec<String> = all.iter().map(|text| sentence(text)).collect();
    expect![[r#""#]].assert_eq(&said.join("\n"));
}

#[test]
fn inputs_that_do_not_fit_are_sentences() {
    let spec = |name: &str, datatype, dims: &[i64]| TensorSpec { name: name.into(), datatype, dims: dims.into() };
    let said = |text: &str, inputs: &[TensorSpec]| step(text).unwrap().outputs(inputs).unwrap_err().to_string();
    let image = |dims: &[i64]| spec("photo", DataType::Uint8, dims);
    let floats = |dims: &[i64]| spec("scores", DataType::Fp32, dims);
    let all = [
        said("step = 'resize'\nsize = [2, 2]", &[]),
        said("step = 'resize'\nsize = [2, 2]", &[image(&[2, 2])]),
        said("step = 'resize'\nsize = [2, 2]", &[image(&[2, 2, 5])]),
        said("step = 'resize'\nsize = [2, 2]", &[image(&[2, 70_000, 3])]),
        said("step = 'resize'\nsize = [2, 2]", &[spec("photo", DataType::Int64, &[2, 2, 3])]),
        said("step = 'resize'\nlongest = 65535\nmultiple = 7", &[image(&[4, 4, 3])]),
        said("step = 'crop'\nsize = [3, 3]", &[image(&[2, -1, 3])]),
        said("step = 'decode_image'", &[image(&[2, 2, 3])]),
        said("step = 'decode_image'", &[spec("files", DataType::Bytes, &[2, 2])]),
        said("step = 'crop_boxes'\nsize = [3, 3]", &[image(&[2, 2, 3]), floats(&[5])]),
        said("step = 'crop_boxes'\nsize = [3, 3]", &[image(&[2, 2, 2, 3]), floats(&[5, 4])]),
        said("step = 'normalise'\nmean = [1, 2]", &[image(&[2, 2, 3])]),
        said("step = 'layout'\nfrom = 'HWC'\nto = 'CH'", &[image(&[2, 2, 3])]),
        said("step = 'layout'\nfrom = 'AB'\nto = 'BA'", &[spec("texts", DataType::Bytes, &[2, 2])]),
        said("step = 'concat'\naxis = 2", &[floats(&[2, 3])]),
        said("step = 'concat'", &[floats(&[2, 3]), floats(&[2, 4])]),
        said("step = 'concat'", &[floats(&[2, 3]), image(&[2, 3])]),
        said("step = 'softmax'", &[spec("counts", DataType::Int64, &[2])]),
        said("step = 'softmax'", &[floats(&[])]),
        said("step = 'argmax'", &[floats(&[2, 0])]),
        said("step = 'non_max_suppression'\nmost_per_class = 3\niou = 0.5", &[floats(&[1, 9, 4]), floats(&[1, 2, 8])]),
        said("step = 'ctc_decode'\ncharacters = ['a']", &[floats(&[1, 9, 4])]),
    ];
    expect![[r#""#]].assert_eq(&all.join("\n"));
}

/// A part of a PNG file: its length, its kind, what it has, and its checksum.
fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let sum = [&kind[..], data].concat();
    let sum = crc32fast::hash(&sum).to_be_bytes();
    [&(data.len() as u32).to_be_bytes(), &kind[..], data, &sum].concat()
}

fn png_of(width: u32, height: u32) -> Vec<u8> {
    let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &head), &chunk(b"IDAT", &[0x78, 0x9c, 3, 0]), &chunk(b"IEND", &[])].concat()
}

/// The head of a JPEG file that says it has so many pixels, and one byte of them.
fn jpeg_of(width: u16, height: u16) -> Vec<u8> {
    let mut out = b"\xff\xd8\xff\xc0\0\x11\x08".to_vec();
    out.extend(height.to_be_bytes());
    out.extend(width.to_be_bytes());
    out.extend(b"\x03\x01\x11\0\x02\x11\0\x03\x11\0\xff\xda\0\x0c\x03\x01\0\x02\0\x03\0\0\x3f\0\0");
    out
}

#[test]
fn pictures_that_say_they_are_enormous_take_no_memory() {
    let decode = step("step = 'decode_image'").unwrap();
    let said = |bytes: &[u8]| decode.run(&[file(bytes)], 64 << 20).unwrap_err();
    let png = said(&png_of(60_000, 60_000));
    assert!(matches!(png, StepError::TooLarge(_)), "{png}");
    expect!["step decode_image: it needs 14400000000 bytes more, of 67108864 in all that it may take: send less"]
        .assert_eq(&png.to_string());
    expect!["step decode_image: the PNG file says 2000000000 x 1 pixels, and sides have 65535 at most"]
        .assert_eq(&said(&png_of(2_000_000_000, 1)).to_string());
    let jpeg = said(&jpeg_of(65_535, 65_535));
    assert!(matches!(jpeg, StepError::TooLarge(_)), "{jpeg}");
}

#[test]
fn every_truncated_file_is_a_sentence() {
    let decode = step("step = 'decode_image'").unwrap();
    for name in ["rgb.jpg", "progressive.jpg", "rgb.png"] {
        let whole = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)).unwrap();
        assert!(decode.run(&[file(&whole)], 1 << 20).is_ok(), "{name}");
        // What ends a JPEG file may be missing, and of a PNG file what is behind the picture.
        for length in 0..whole.len() * 9 / 10 {
            let error = decode.run(&[file(&whole[..length])], 1 << 20);
            assert!(matches!(error, Err(StepError::Inputs(_))), "{name}, {length} of {} bytes: {error:?}", whole.len());
        }
    }
}

#[test]
fn shapes_without_elements_are_no_work() {
    for text in ["step = 'softmax'\naxis = 0", "step = 'top_k'\nk = 3\naxis = 1", "step = 'concat'\naxis = 1"] {
        let made = step(text).unwrap();
        for shape in [[i64::MAX, 2, 0], [0, i64::MAX, i64::MAX], [1 << 40, 0, 1 << 20]] {
            let input = tensor(DataType::Fp32, &shape, Vec::new());
            let given = made.run(&[input], 1 << 20);
            assert!(given.is_ok_and(|outputs| outputs.iter().all(|output| output.data.is_empty())), "{text} {shape:?}");
        }
    }
}

#[test]
fn what_is_no_number_is_never_the_highest() {
    let scores: Vec<u8> = [f32::NAN, 1.0, f32::NAN, 3.0, f32::NEG_INFINITY].iter().flat_map(|f| f.to_le_bytes()).collect();
    let input = tensor(DataType::Fp32, &[5], scores);
    let whole = |tensor: &Tensor| engine::numbers(tensor.datatype, &tensor.data).unwrap();
    let highest = step("step = 'argmax'").unwrap().run(&[input.clone()], 1 << 20).unwrap();
    assert_eq!(whole(&highest[0]), [3.0]);
    let top = step("step = 'top_k'\nk = 5").unwrap().run(&[input], 1 << 20).unwrap();
    assert_eq!(whole(&top[1]), [3.0, 1.0, 4.0, 0.0, 2.0]);
}

/// Boxes beside one another, so that none is suppressed: every one is compared with all.
#[test]
fn suppression_has_a_bound() {
    let count = 20_000i64;
    let corners = |at: i64| [at as f32 * 2.0, 0.0, at as f32 * 2.0 + 1.0, 1.0];
    let boxes = (0..count).flat_map(corners).flat_map(f32::to_le_bytes).collect();
    let boxes = tensor(DataType::Fp32, &[1, count, 4], boxes);
    let scores = zeros(DataType::Fp32, &[1, 1, count]);
    let made = step("step = 'non_max_suppression'\nmost_per_class = 1000000\niou = 0.5").unwrap();
    let error = made.run(&[boxes.clone(), scores.clone()], 4 << 20).unwrap_err();
    assert!(error.to_string().contains("takes longer than it may"), "{error}");
    let made = step("step = 'non_max_suppression'\nmost_per_class = 100\niou = 0.5").unwrap();
    assert_eq!(made.run(&[boxes, scores], 4 << 20).unwrap()[0].shape, [100, 3]);
}

/// One box that is the whole picture, as often as there is room for the results.
#[test]
fn crops_have_a_bound() {
    let image = zeros(DataType::Uint8, &[1000, 1000, 3]);
    let boxes = (0..10_000).flat_map(|_| [0f32, 0.0, 1000.0, 1000.0]).flat_map(f32::to_le_bytes).collect();
    let boxes = tensor(DataType::Fp32, &[10_000, 4], boxes);
    let error = step("step = 'crop_boxes'\nsize = [1, 1]").unwrap().run(&[image, boxes], 4 << 20).unwrap_err();
    assert!(error.to_string().contains("takes longer than it may"), "{error}");
}

const STEPS: [&str; 24] = [
    "step = 'argmax'",
    "step = 'argmax'\naxis = 0\nkeep_axis = true",
    "step = 'cast'\nto = 'FP16'",
    "step = 'cast'\nto = 'UINT8'",
    "step = 'concat'\naxis = -1",
    "step = 'concat'\naxis = 1",
    "step = 'crop'\nsize = [2, 2]",
    "step = 'crop'\nsize = [2, 1]\ntop = 1\nleft = 2",
    "step = 'crop_boxes'\nsize = [3, 5]",
    "step = 'crop_boxes'\nsize = [3, 5]\nnormalised = true\nfilter = 'nearest'",
    "step = 'crop_boxes'\nsize = [4, 9]\nkeep_aspect = true\nturn_tall = 1.5\nantialias = false",
    "step = 'ctc_decode'\ncharacters = ['a', 'bc']",
    "step = 'decode_image'",
    "step = 'layout'\nfrom = 'HWC'\nto = 'NCHW'",
    "step = 'layout'\nfrom = 'NHW'\nto = 'WH'",
    "step = 'non_max_suppression'\nmost_per_class = 3\niou = 0.5",
    "step = 'non_max_suppression'\nmost_per_class = 3\niou = 0.5\ncentred = true\nscore = 0.0",
    "step = 'normalise'\nmean = [1, 2, 3]",
    "step = 'normalise'\nlayout = 'CHW'\nreverse = true",
    "step = 'resize'\nsize = [3, 4]\nfilter = 'lanczos'",
    "step = 'resize'\nshortest_at_least = 9\nmultiple = 4",
    "step = 'resize'\nlongest = 6\nfilter = 'nearest'",
    "step = 'softmax'",
    "step = 'top_k'\nk = 2\naxis = 0",
];

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let datatype = prop_oneof![
        4 => Just(DataType::Fp32),
        3 => Just(DataType::Uint8),
        2 => proptest::sample::select(DataType::ALL),
    ];
    let dim = prop_oneof![3 => 0i64..6, 1 => Just(1), 2 => Just(3), 2 => Just(4), 1 => 7i64..20];
    (datatype, proptest::collection::vec(dim, 0..5), any::<u64>()).prop_map(|(datatype, shape, seed)| {
        let count = element_count(&shape).unwrap();
        // Some of each: halves of floats are numbers that pictures and boxes have, the others are any bits.
        let mut state = seed | 1;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let data = match datatype {
            DataType::Fp32 => (0..count)
                .flat_map(|_| {
                    let bits = random();
                    let value = if bits & 8 == 0 { f32::from_bits(bits as u32 >> 4) } else { (bits >> 40) as f32 / 1e6 };
                    value.to_le_bytes()
                })
                .collect(),
            _ => (0..count * datatype.size().unwrap_or(4)).map(|_| random() as u8 & if seed & 1 == 0 { 0xff } else { 3 }).collect(),
        };
        Tensor { datatype, shape, data: bytes::Bytes::from(data) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Whatever comes: no panic, tensors with the bytes of their shapes, and no more memory than allowed.
    #[test]
    fn any_tensors_come_to_an_end(
        text in proptest::sample::select(&STEPS[..]),
        inputs in proptest::collection::vec(any_tensor(), 0..4),
        most_bytes in prop_oneof![Just(1usize << 20), 0usize..4096],
    ) {
        let made = step(text).unwrap();
        if let Ok(outputs) = made.run(&inputs, most_bytes) {
            prop_assert_eq!(outputs.len(), made.output_names().len());
            let given: usize = inputs.iter().map(|input| input.data.len()).sum();
            let made: usize = outputs.iter().map(|output| output.data.len()).sum();
            prop_assert!(made <= most_bytes.max(given), "{} bytes of {}", made, most_bytes);
            for output in outputs {
                let count = element_count(&output.shape).unwrap();
                match output.datatype.size() {
                    Some(size) => prop_assert_eq!(count * size, output.data.len()),
                    None => prop_assert!(elements::strings(&output, "output").is_ok()),
                }
            }
        }
    }
}
