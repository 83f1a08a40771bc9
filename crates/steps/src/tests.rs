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
        "step = 'crop_boxes'\nsize = [1, 9]\nwidth_at_most = 90",
        "step = 'crop_boxes'\nsize = [1, 9]\nkeep_aspect = true\nwidth_at_most = 8",
        "step = 'crop_boxes'\nsize = [1, 9]\nkeep_aspect = true\ngroup = 6",
        "step = 'crop_boxes'\nsize = [1, 9]\nkeep_aspect = true\nwidth_at_most = 90\ngroup = 0",
        "step = 'crop_boxes'\nsize = [1, 9]\nnormalise = { datatype = 'FP16' }",
        "step = 'crop_boxes'\nsize = [1, 9]\nnormalise = { deviation = [0] }",
        "step = 'text_boxes'\nunclip = -1.0",
        "step = 'text_boxes'\nmost = 0",
        "step = 'text_boxes'\nscore = nan",
        "step = 'text_boxes'\nleast_side = inf",
        "step = 'threshold'",
        "step = 'threshold'\nabove = 1.0\nat_least = 1.0",
        "step = 'threshold'\nabove = nan",
        "step = 'select'\nrows = 3",
    ];
    let said: Vec<String> = all.iter().map(|text| sentence(text)).collect();
    expect![[r#"
        there is no step "blur": there are argmax, cast, concat, crop, crop_boxes, ctc_decode, decode_image, layout, non_max_suppression, normalise, resize, select, softmax, text_boxes, threshold, tokenize, top_k
        step resize: one of size = [height, width], shortest, longest, shortest_at_least and longest_at_most is needed, and no second
        step resize: one of size = [height, width], shortest, longest, shortest_at_least and longest_at_most is needed, and no second
        step resize: size is 0, and a side of a picture is 1 to 65535 pixels
        step resize: unknown variant `sinc`, expected one of `nearest`, `area`, `bilinear`, `bicubic`, `lanczos`
        step resize: unknown field `sice`, expected one of `size`, `shortest`, `longest`, `shortest_at_least`, `longest_at_most`, `multiple`, `filter`, `antialias`
        step resize: size says all: multiple goes with the other ways to say a size
        step decode_image: resize: size is 70000, and a side of a picture is 1 to 65535 pixels
        step crop: top and left go together; without both, the middle is cut out
        step crop: top and left are counted from the upper left corner, from 0 on
        step normalise: mean has 2 values: it has one, or one for each channel, 4 at most
        step normalise: a deviation is 0, and values are divided by it
        step normalise: datatype is INT8, and it is FP32 or FP16
        step layout: to is "NCCW": it is a letter for each axis, none of them twice, 8 at most
        step cast: "FLOAT" is no type of numbers: FP32, FP16, UINT8, INT64, BOOL and so on are
        step cast: "BYTES" is no type of numbers: FP32, FP16, UINT8, INT64, BOOL and so on are
        step top_k: k is 0, and at least 1 is needed
        step non_max_suppression: iou is 1.5, and it is a part, 0 to 1
        step non_max_suppression: most_per_class is 0, so that nothing would be kept
        step ctc_decode: either file or characters says which characters there are
        step ctc_decode: blank is 2, behind all of the 1 characters
        step ctc_decode: file "../secret" isn't in the folder of what names it: it is a plain path below
        step ctc_decode: file ./isnt-there.txt can't be read: No such file or directory (os error 2)
        step crop_boxes: turn_tall is a ratio of height to width, 1 at least
        step crop_boxes: width_at_most goes with keep_aspect, and is no less than the width of size
        step crop_boxes: width_at_most goes with keep_aspect, and is no less than the width of size
        step crop_boxes: group goes with width_at_most, and is a number of pictures, 1 at least
        step crop_boxes: group goes with width_at_most, and is a number of pictures, 1 at least
        step crop_boxes: normalise: datatype is FP32 here; a step cast makes others of it
        step crop_boxes: normalise: a deviation is 0, and values are divided by it
        step text_boxes: unclip is -1, and it is 0 to 100
        step text_boxes: most is 0, so that there would be no boxes
        step text_boxes: threshold and score are numbers that the map's are compared with
        step text_boxes: least_side is inf, and it is 0 to 65535
        step threshold: either above or at_least says what is high enough
        step threshold: either above or at_least says what is high enough
        step threshold: what scores are compared with is a number
        step select: unknown field `rows`, there are no fields"#]].assert_eq(&said.join("\n"));
}

#[test]
fn inputs_that_do_not_fit_are_sentences() {
    let spec = |name: &str, datatype, dims: &[i64]| TensorSpec { name: name.into(), datatype, dims: dims.into() };
    let said = |text: &str, inputs: &[TensorSpec]| step(text).unwrap().outputs(inputs).unwrap_err().to_string();
    let image = |dims: &[i64]| spec("photo", DataType::Uint8, dims);
    let floats = |dims: &[i64]| spec("scores", DataType::Fp32, dims);
    let mask = |dims: &[i64]| spec("mask", DataType::Bool, dims);
    let all = [
        said("step = 'resize'\nsize = [2, 2]", &[]),
        said("step = 'resize'\nsize = [2, 2]", &[image(&[2, 2])]),
        said("step = 'resize'\nsize = [2, 2]", &[image(&[2, 2, 5])]),
        said("step = 'resize'\nsize = [2, 2]", &[image(&[2, 70_000, 3])]),
        said("step = 'resize'\nsize = [2, 2]", &[spec("photo", DataType::Int64, &[2, 2, 3])]),
        said("step = 'resize'\nshortest = 65535", &[image(&[4, 6, 3])]),
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
        said(
            "step = 'crop_boxes'\nsize = [3, 3]\nhalf_turns = true",
            &[image(&[2, 2, 3]), floats(&[5, 4]), mask(&[4])],
        ),
        said("step = 'crop_boxes'\nsize = [3, 3]\nhalf_turns = true", &[image(&[2, 2, 3]), floats(&[5, 4])]),
        said(
            "step = 'crop_boxes'\nsize = [3, 3]\nnormalise = { mean = [1, 2] }",
            &[image(&[2, 2, 3]), floats(&[5, 4])],
        ),
        said("step = 'text_boxes'", &[floats(&[2, 1, 8, 8]), image(&[8, 8, 3])]),
        said("step = 'text_boxes'", &[floats(&[1, 1, 8, 0]), image(&[8, 8, 3])]),
        said("step = 'text_boxes'", &[floats(&[8, 8]), image(&[2, 8, 8, 3])]),
        said("step = 'text_boxes'", &[image(&[8, 8]), image(&[8, 8, 3])]),
        said("step = 'threshold'\nabove = 0.5", &[mask(&[4])]),
        said("step = 'threshold'\nabove = 0.5\nindex = 2", &[floats(&[4, 2])]),
        said("step = 'select'", &[floats(&[4, 2]), mask(&[5])]),
        said("step = 'select'", &[floats(&[4, 2]), floats(&[4])]),
    ];
    expect![[r#"
        step resize: it takes 1 inputs (image), and 0 are given
        step resize: photo has the shape [2, 2], and a picture has [height, width, channels] or [pictures, height, width, channels]
        step resize: photo has the shape [2, 2, 5]: pictures have 1 to 4 channels, the last axis
        step resize: photo has the shape [2, 70000, 3]: sides of pictures are 1 to 65535 pixels
        step resize: photo is INT64, and UINT8 or FP32 is needed
        step resize: a picture of 6 x 4 pixels would get 98302 x 65535, and sides have 65535 pixels at most
        step crop: photo has the shape [2, -1, 3], and a part of 3 x 3 pixels isn't within
        step decode_image: photo is UINT8, and BYTES is needed
        step decode_image: files has the shape [2, 2], and files come as [], [files] or [files, 1]
        step crop_boxes: scores has the shape [5], and boxes are [boxes, 4], or [boxes, 4, 2] for four corners
        step crop_boxes: photo has the shape [2, 2, 2, 3], and boxes are of one picture
        step normalise: photo has the shape [2, 2, 3], and there are values for 2 channels, the last axis
        step layout: photo has the shape [2, 2, 3]: W of "HWC" isn't in "CH", and isn't 1
        step layout: texts is BYTES, whose axes stay in their order
        step concat: scores has 2 dimensions, so that there is no axis 2: it is -2 to 1
        step concat: scores has the shape [2, 3], and scores [2, 4]: all but axis 0 must be the same
        step concat: scores is FP32, and photo is UINT8: all must be of one type
        step softmax: counts is INT64, and FP32 or FP16 or FP64 or BF16 is needed
        step softmax: scores has 0 dimensions, so that there is no axis -1: it is -0 to -1
        step argmax: scores has no elements along axis 1, and none of them is the highest
        step non_max_suppression: scores has the shape [1, 9, 4] and scores [1, 2, 8], and [pictures, boxes, 4] and [pictures, classes, boxes] are needed
        step ctc_decode: scores has the shape [1, 9, 4], and [texts, columns, 2] is needed, with one for the blank
        step crop_boxes: mask has the shape [4], and [boxes] is needed: 5 of them
        step crop_boxes: it takes 3 inputs (image, boxes, turned), and 2 are given
        step crop_boxes: photo has the shape [2, 2, 3], and there are values for 2 channels, the last axis
        step text_boxes: scores has the shape [2, 1, 8, 8], and one map is [1, 1, height, width]
        step text_boxes: scores has the shape [1, 1, 8, 0]: sides are 1 to 65535
        step text_boxes: photo has the shape [2, 8, 8, 3], and one picture is [height, width, channels]
        step text_boxes: photo is UINT8, and FP32 is needed
        step threshold: mask is BOOL, and FP32 or FP16 or FP64 or BF16 is needed
        step threshold: scores has the shape [4, 2], and nothing at index 2 of its last axis
        step select: scores has the shape [4, 2] and mask [5], and [rows, ...] and [rows] are needed
        step select: scores is FP32, and BOOL is needed"#]].assert_eq(&all.join("\n"));
}

/// A part of a PNG file: its length, its kind, what it has, and its checksum.
fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let sum = [&kind[..], data].concat();
    let sum = crc32fast::hash(&sum).to_be_bytes();
    [&(data.len() as u32).to_be_bytes(), &kind[..], data, &sum].concat()
}

fn png_of(width: u32, height: u32) -> Vec<u8> {
    let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &head), &chunk(b"IDAT", &[0x78, 0x9c, 3, 0]), &chunk(b"IEND", &[])]
        .concat()
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
    let scores: Vec<u8> =
        [f32::NAN, 1.0, f32::NAN, 3.0, f32::NEG_INFINITY].iter().flat_map(|f| f.to_le_bytes()).collect();
    let input = tensor(DataType::Fp32, &[5], scores);
    let whole = |tensor: &Tensor| engine::numbers(tensor.datatype, &tensor.data).unwrap();
    let highest = step("step = 'argmax'").unwrap().run(std::slice::from_ref(&input), 1 << 20).unwrap();
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

/// A map with text where `is_text` says so, and boxes of it in a picture of the same size.
fn boxes_of(text: &str, [width, height]: [i64; 2], is_text: impl Fn(i64, i64) -> bool) -> Vec<[f32; 8]> {
    let values = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let values = values.flat_map(|(x, y)| (if is_text(x, y) { 0.9f32 } else { 0.05 }).to_le_bytes()).collect();
    let map = tensor(DataType::Fp32, &[1, 1, height, width], values);
    let outputs = step(text).unwrap().run(&[map, zeros(DataType::Uint8, &[height, width, 3])], 16 << 20).unwrap();
    let corners = engine::numbers(DataType::Fp32, &outputs[0].data).unwrap();
    assert_eq!(outputs[1].shape[0] as usize, corners.len() / 8);
    corners.chunks_exact(8).map(|corners| std::array::from_fn(|at| corners[at] as f32)).collect()
}

#[test]
fn boxes_of_text_grow_and_come_in_order() {
    let two = |x: i64, y: i64| {
        (20..60).contains(&x) && (20..30).contains(&y) || (80..110).contains(&x) && (17..27).contains(&y)
    };
    // 39 x 9 grow by 39 * 9 * 1.6 / 96 = 5.85, 29 x 9 by 5.49; the one on the left comes first, though it is lower.
    let found = boxes_of("step = 'text_boxes'", [140, 60], two);
    assert_eq!(found, [[14., 14., 65., 14., 65., 35., 14., 35.], [75., 12., 114., 12., 114., 31., 75., 31.]]);
    let apart = boxes_of("step = 'text_boxes'\nsame_line = 2.0", [140, 60], two);
    assert_eq!(apart, [found[1], found[0]]);
    // One pixel more to the right and below joins what is a pixel apart.
    let gap = |x: i64, y: i64| (20..60).contains(&x) && (20..30).contains(&y) && x != 40;
    assert_eq!(boxes_of("step = 'text_boxes'", [140, 60], gap).len(), 2);
    assert_eq!(boxes_of("step = 'text_boxes'\ndilate = true", [140, 60], gap).len(), 1);
    assert_eq!(boxes_of("step = 'text_boxes'\ndilate = true\nmost = 1", [140, 60], two).len(), 1);
    // Too small, too pale, or nothing at all.
    assert!(boxes_of("step = 'text_boxes'", [140, 60], |x, y| x == 70 && y > 10).is_empty());
    assert!(boxes_of("step = 'text_boxes'\nscore = 0.95", [140, 60], two).is_empty());
    assert!(boxes_of("step = 'text_boxes'", [140, 60], |_, _| false).is_empty());
}

#[test]
fn boxes_of_text_are_as_tilted_as_it_is() {
    // A bar of 60 x 12 around the middle that goes down by one in four.
    let (across, along) = (17f64.sqrt() / 17.0, 4.0 * 17f64.sqrt() / 17.0);
    let bar = |x: i64, y: i64| {
        let (x, y) = ((x - 60) as f64, (y - 40) as f64);
        (x * along + y * across).abs() <= 30.0 && (y * along - x * across).abs() <= 6.0
    };
    let found = boxes_of("step = 'text_boxes'", [120, 80], bar);
    let [[x1, y1, x2, y2, .., x4, y4]] = found[..] else { panic!("{found:?}") };
    let slope = (y2 - y1) / (x2 - x1);
    assert!((slope - 0.25).abs() < 0.04, "{found:?}");
    // 8 more on each side.
    assert!(
        ((x2 - x1).hypot(y2 - y1) - 76.0).abs() < 4.0 && ((x4 - x1).hypot(y4 - y1) - 28.0).abs() < 4.0,
        "{found:?}"
    );
}

/// Rings within one another: the rectangle around each is most of the map, and all of it is looked at.
#[test]
fn boxes_of_text_have_a_bound() {
    let side = 1201i64;
    let ring = |at: i64| (at % side - side / 2).abs().max((at / side - side / 2).abs()) % 2 == 0;
    let values = (0..side * side).flat_map(|at| (if ring(at) { 1f32 } else { 0.0 }).to_le_bytes()).collect();
    let map = tensor(DataType::Fp32, &[side, side], values);
    let image = zeros(DataType::Uint8, &[side, side, 1]);
    let made = step("step = 'text_boxes'").unwrap();
    // There is room for all runs of pixels, but not for so many means.
    let error = made.run(&[map.clone(), image.clone()], (side * side * 9) as usize).unwrap_err();
    assert!(error.to_string().contains("takes longer than it may"), "{error}");
    assert!(made.run(&[map, image], 64 << 20).is_ok());
}

#[test]
fn crops_are_turned_widened_and_normalised() {
    // A picture of 8 x 4 whose pixels are their numbers, and all of it as a box with four corners.
    let image = tensor(DataType::Uint8, &[4, 8, 1], (0..32).collect());
    let corners = |boxes: &[[f32; 8]]| {
        let data = boxes.iter().flatten().flat_map(|along| along.to_le_bytes()).collect();
        tensor(DataType::Fp32, &[boxes.len() as i64, 4, 2], data)
    };
    let whole = [0f32, 0., 8., 0., 8., 4., 0., 4.];
    let bytes = |outputs: Vec<Tensor>| outputs[0].data.to_vec();
    let text = "step = 'crop_boxes'\nsize = [4, 8]\nhalf_turns = true\nfilter = 'nearest'";
    let turned = tensor(DataType::Bool, &[2], vec![0, 1]);
    let both = step(text).unwrap().run(&[image.clone(), corners(&[whole, whole]), turned], 1 << 20).unwrap();
    let both = bytes(both);
    assert_eq!(both[..32], image.data[..]);
    assert_eq!(both[32..].iter().rev().copied().collect::<Vec<_>>(), image.data);
    // As wide as the widest needs: 2 x 4 pixels are half as wide as high, and get what is left as fill.
    let text = "step = 'crop_boxes'\nsize = [4, 2]\nwidth_at_most = 100\nkeep_aspect = true\nfill = -7.0\n\
        normalise = { scale = 2.0, mean = [1.0], layout = 'CHW' }";
    let boxes = corners(&[whole, [0., 0., 2., 0., 2., 4., 0., 4.]]);
    let wide = step(text).unwrap().run(&[image.clone(), boxes.clone()], 1 << 20).unwrap();
    assert_eq!((wide[0].datatype, &wide[0].shape[..]), (DataType::Fp32, &[2, 1, 4, 8][..]));
    let values = engine::numbers(DataType::Fp32, &wide[0].data).unwrap();
    assert_eq!(values[..4], [-1., 1., 3., 5.]);
    assert_eq!(values[32..40], [-1., 1., -7., -7., -7., -7., -7., -7.]);
    let text = text.replace("100", "5");
    let less = step(&text).unwrap().run(&[image, boxes], 1 << 20).unwrap();
    assert_eq!(less[0].shape, [2, 1, 4, 5]);
}

#[test]
fn boxes_of_like_proportions_are_as_wide_as_the_widest_of_their_group() {
    let image = tensor(DataType::Uint8, &[4, 12, 1], (0..48).collect());
    // 12, 2, 6, 3 and 4 pixels wide, all 4 high; the last has nothing of the picture in it.
    let corners = [[0, 0, 12, 4], [0, 0, 2, 4], [0, 0, 6, 4], [0, 0, 3, 4], [0, 0, 4, 4], [90, 90, 99, 99]];
    let boxes = corners.iter().flatten().flat_map(|&at: &i64| at.to_le_bytes()).collect();
    let boxes = tensor(DataType::Int64, &[6, 4], boxes);
    let run = |more: &str| {
        let text = format!(
            "step = 'crop_boxes'\nsize = [4, 2]\nkeep_aspect = true\nwidth_at_most = 10\nfilter = 'nearest'\n{more}"
        );
        let made = step(&text).unwrap().run(&[image.clone(), boxes.clone()], 1 << 20).unwrap();
        let widths = made.get(1).map(|widths| engine::numbers(DataType::Int64, &widths.data).unwrap());
        (made[0].shape.clone(), widths, made[0].data.clone())
    };
    let (shape, widths, images) = run("group = 2");
    assert_eq!((&shape[..], widths), (&[6, 4, 10, 1][..], Some(vec![10., 2., 10., 4., 4., 2.])));
    // Three pixels, and one of fill that is within its width.
    assert_eq!(images[3 * 40..3 * 40 + 6], [0, 1, 2, 0, 0, 0]);
    assert_eq!(run("group = 1").1, Some(vec![10., 2., 6., 3., 4., 2.]));
    assert_eq!(run("group = 99").1, Some(vec![10.; 6]));
    assert_eq!(run(""), (shape, None, run("group = 99").2));
    let none = tensor(DataType::Int64, &[0, 4], Vec::new());
    let text = "step = 'crop_boxes'\nsize = [4, 2]\nkeep_aspect = true\nwidth_at_most = 10\ngroup = 3";
    let made = step(text).unwrap().run(&[image.clone(), none], 1 << 20).unwrap();
    assert_eq!((&made[0].shape[..], &made[1].shape[..]), (&[0, 4, 2, 1][..], &[0][..]));
}

#[test]
fn rows_are_chosen_by_scores() {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let scores = tensor(DataType::Fp32, &[3, 2], floats(&[0.1, 0.9, 0.4, 0.6, f32::NAN, f32::NAN]));
    let mask = |text: &str| step(text).unwrap().run(std::slice::from_ref(&scores), 1 << 10).unwrap().remove(0);
    assert_eq!(mask("step = 'threshold'\nindex = 1\nabove = 0.9").data[..], [0, 0, 0]);
    assert_eq!(mask("step = 'threshold'\nindex = 1\nat_least = 0.9").data[..], [1, 0, 0]);
    let all = mask("step = 'threshold'\nabove = 0.2");
    assert_eq!((&all.shape[..], &all.data[..]), (&[3, 2][..], &[0, 1, 1, 1, 0, 0][..]));
    let select = step("step = 'select'").unwrap();
    let keep = tensor(DataType::Bool, &[3], vec![1, 0, 1]);
    let rows = tensor(DataType::Int16, &[3, 2], (0..12).collect());
    let kept = select.run(&[rows, keep.clone()], 1 << 10).unwrap();
    assert_eq!((&kept[0].shape[..], &kept[0].data[..]), (&[2, 2][..], &[0, 1, 2, 3, 8, 9, 10, 11][..]));
    let mut texts = Vec::new();
    [&b"one"[..], b"", b"three"].iter().for_each(|text| elements::push_string(&mut texts, text));
    let kept = select.run(&[tensor(DataType::Bytes, &[3], texts), keep], 1 << 10).unwrap();
    assert_eq!(elements::strings(&kept[0], "kept").unwrap(), [&b"one"[..], b"three"]);
}

const STEPS: [&str; 32] = [
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
    "step = 'crop_boxes'\nsize = [4, 9]\nkeep_aspect = true\nwidth_at_most = 40\nturn_tall = 1.5\nhalf_turns = true",
    "step = 'crop_boxes'\nsize = [4, 9]\nkeep_aspect = true\nwidth_at_most = 40\ngroup = 2",
    "step = 'crop_boxes'\nsize = [3, 5]\nnormalise = { layout = 'CHW', reverse = true }\nkeep_aspect = true",
    "step = 'text_boxes'",
    "step = 'text_boxes'\ndilate = true\nleast_side = 0\nscore = 0.0\nsame_line = 3.0",
    "step = 'threshold'\nabove = 0.5",
    "step = 'threshold'\nat_least = 0.5\nindex = 2",
    "step = 'select'",
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
        let data: Vec<u8> = match datatype {
            DataType::Fp32 => (0..count)
                .flat_map(|_| {
                    let bits = random();
                    let value =
                        if bits & 8 == 0 { f32::from_bits(bits as u32 >> 4) } else { (bits >> 40) as f32 / 1e6 };
                    value.to_le_bytes()
                })
                .collect(),
            _ => (0..count * datatype.size().unwrap_or(4))
                .map(|_| random() as u8 & if seed & 1 == 0 { 0xff } else { 3 })
                .collect(),
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
