//! Quantised operators against what their definitions say, in plain loops of 64 bits: those that ONNX Runtime adds to
//! ONNX's own, which have no node tests, and sums that no float of 32 bits holds.

use graph::array::{Array, Data};
use graph::cases::nodes::bytes;
use graph::plan::{DataType, row_major};
use graph::reference::Reference;
use graph::{OnnxModel, Options, Precision, compile};
use onnx::*;

/// The number that ONNX has for a type.
fn element(dtype: DataType) -> i32 {
    match dtype {
        DataType::Uint8 => 2,
        DataType::Int8 => 3,
        DataType::Int32 => 6,
        _ => 1,
    }
}

fn ints(dtype: DataType, dims: &[usize], next: &mut impl FnMut() -> f64) -> Array {
    let (low, high) = if dtype == DataType::Int8 { (-128.0, 128.0) } else { (0.0, 256.0) };
    let count = dims.iter().product();
    Array::new(dtype, dims, Data::Int((0..count).map(|_| (low + next() * (high - low)).floor() as i64).collect()))
}

fn one(dtype: DataType, value: i64) -> Array {
    Array::new(dtype, &[], Data::Int(vec![value]))
}

fn scale(value: f32) -> Array {
    Array::floats(&[], vec![value])
}

fn random() -> impl FnMut() -> f64 {
    let mut random = workload::Random::new(17, 0);
    move || random.unit()
}

/// A model of one node. The first input comes with each request, so does the second where `both`; the others are known.
fn model(operator: &str, inputs: &[Array], both: bool, attributes: &[(&str, i64)], output: DataType) -> OnnxModel {
    let name = |position: usize| format!("i{position}");
    let info = |name: String, dtype: DataType, dims: Option<&[usize]>| {
        let sizes = |dims: &[usize]| {
            dims.iter().map(|&dim| DimensionProto { value: Some(dim as i64), name: None }).collect::<Vec<_>>()
        };
        let shape = dims.map(|dims| ShapeProto { dims: sizes(dims) });
        let tensor = TensorTypeProto { element: element(dtype), shape };
        ValueInfoProto { name, kind: Some(TypeProto { tensor: Some(tensor) }) }
    };
    let asked = |position: usize| position == 0 || (both && position == 1);
    let constant = |(position, array): (usize, &Array)| TensorProto {
        name: name(position),
        dims: array.dims.iter().map(|&dim| dim as i64).collect(),
        element: element(array.dtype),
        raw: bytes(array).into(),
        ..TensorProto::default()
    };
    let attribute =
        |&(name, int): &(&str, i64)| AttributeProto { name: name.into(), int, kind: 2, ..Default::default() };
    let (domain, operator) = operator.split_once(':').unwrap_or(("", operator));
    let node = NodeProto {
        operator: operator.into(),
        domain: domain.into(),
        inputs: (0..inputs.len()).map(name).collect(),
        outputs: vec!["o".into()],
        attributes: attributes.iter().map(attribute).collect(),
        ..NodeProto::default()
    };
    let all = || inputs.iter().enumerate();
    let graph = GraphProto {
        nodes: vec![node],
        inputs: all().filter(|(at, _)| asked(*at)).map(|(at, x)| info(name(at), x.dtype, Some(&x.dims))).collect(),
        outputs: vec![info("o".into(), output, None)],
        initializers: all().filter(|(at, _)| !asked(*at)).map(constant).collect(),
        ..GraphProto::default()
    };
    let opsets = vec![OpsetProto { domain: String::new(), version: 21 }];
    OnnxModel::decode(&ModelProto { graph: Some(graph), opsets, ..ModelProto::default() }.encode_to_vec(), None)
        .expect("a model of one node")
}

/// What the node gives, computed with known and with computed factors alike.
fn run(operator: &str, inputs: &[Array], attributes: &[(&str, i64)], output: DataType) -> Array {
    let results = [false, true].map(|both| {
        let model = model(operator, inputs, both, attributes, output);
        let plan = compile(&model, &Options::new(1, Precision::F32)).expect("an operator that is there");
        let given: Vec<_> = inputs[..plan.inputs.len()].iter().map(bytes).collect();
        let outputs = Reference::new(&plan).run(&given.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let port = &plan.outputs[0];
        Array::load(port.dtype, &port.dims, &row_major(&port.dims), 0, &outputs[0])
    });
    assert_eq!(results[0], results[1], "{operator}");
    results[0].clone()
}

/// `saturate(round(x) + zero)`
fn quantised(x: f64, zero: i64, dtype: DataType) -> i64 {
    let (low, high) = if dtype == DataType::Int8 { (-128, 127) } else { (0, 255) };
    (x.round_ties_even() as i64 + zero).clamp(low, high)
}

/// `[rows, terms]` and `[terms, columns]`, less their zero points.
fn product(a: &Array, a_zero: i64, b: &Array, b_zero: i64) -> Vec<i64> {
    let (rows, terms, columns) = (a.dims[0], a.dims[1], b.dims[1]);
    let (a, b) = (a.to_ints(), b.to_ints());
    let sum = |row: usize, column: usize| {
        (0..terms).map(|k| (a[row * terms + k] - a_zero) * (b[k * columns + column] - b_zero)).sum::<i64>()
    };
    (0..rows * columns).map(|at| sum(at / columns, at % columns)).collect()
}

/// Equal, but for results so near to a half that floats of 32 bits may round them the other way: few, and by one.
fn assert_ints(found: &Array, expected: &[i64], what: &str) {
    let found = found.to_ints();
    assert_eq!(found.len(), expected.len(), "{what}");
    let apart: Vec<_> = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).collect();
    assert!(apart.iter().all(|&apart| apart <= 1), "{what}: {found:?} instead of {expected:?}");
    assert!(apart.iter().sum::<i64>() * 20 <= expected.len() as i64, "{what}: {found:?} instead of {expected:?}");
}

#[test]
fn sums_beyond_what_floats_hold_are_exact() {
    let terms = 2_000;
    let a = Array::new(DataType::Uint8, &[1, terms], Data::Int(vec![255; terms]));
    let mut data = vec![255; terms];
    data[0] = 254;
    let b = Array::new(DataType::Uint8, &[terms, 1], Data::Int(data));
    let expected = 255 * 255 * terms as i64 - 255;
    assert_ne!(expected as f32 as i64, expected, "a float would round it");
    assert_eq!(run("MatMulInteger", &[a, b], &[], DataType::Int32).to_ints()[..], [expected]);
}

#[test]
fn sums_and_products_of_two_tensors() {
    let mut next = random();
    for dtype in [DataType::Uint8, DataType::Int8] {
        let (a, b) = (ints(dtype, &[40, 5], &mut next), ints(dtype, &[40, 5], &mut next));
        for (operator, c_scale) in [("com.microsoft:QLinearAdd", 0.0613), ("com.microsoft:QLinearMul", 0.0817)] {
            let left = [a.clone(), scale(0.021), one(dtype, 30)];
            let right = [b.clone(), scale(0.053), one(dtype, 7)];
            let inputs: Vec<_> = left.into_iter().chain(right).chain([scale(c_scale), one(dtype, 20)]).collect();
            let found = run(operator, &inputs, &[], dtype);
            let (whole_a, whole_b) = (a.to_ints(), b.to_ints());
            let expected = whole_a.iter().zip(whole_b.iter()).map(|(&a, &b)| {
                let (a, b) = (0.021 * (a - 30) as f64, 0.053 * (b - 7) as f64);
                let c = if operator.ends_with("Add") { a + b } else { a * b };
                quantised(c / f64::from(c_scale), 20, dtype)
            });
            assert_ints(&found, &expected.collect::<Vec<_>>(), operator);
        }
    }
}

#[test]
fn products_of_matrices_with_scales() {
    let mut next = random();
    let (a, b) = (ints(DataType::Uint8, &[6, 33], &mut next), ints(DataType::Int8, &[33, 9], &mut next));
    let sums = product(&a, 100, &b, -3);
    let inputs = [a.clone(), b.clone(), scale(0.02), scale(0.01), one(DataType::Uint8, 100), one(DataType::Int8, -3)];
    let found = run("com.microsoft:MatMulIntegerToFloat", &inputs, &[], DataType::Fp32);
    for (&found, &sum) in found.to_floats().iter().zip(&sums) {
        assert!((f64::from(found) - sum as f64 * 0.0002).abs() < 1e-4, "{found} instead of {sum} * 0.0002");
    }
    let summand = Array::new(DataType::Int32, &[9], Data::Int((0..9).map(|at| at * 100 - 400).collect()));
    let turned = b.view(&[9, 33], &[1, 9], 0);
    let parts = [scale(0.02), one(DataType::Uint8, 100), turned, scale(0.01), one(DataType::Int8, -3)];
    let rest = [summand, scale(0.31), one(DataType::Uint8, 120)];
    let inputs: Vec<_> = [a].into_iter().chain(parts).chain(rest).collect();
    let found = run("com.microsoft:QGemm", &inputs, &[("transB", 1)], DataType::Uint8);
    let scaled = |(at, &sum): (usize, &i64)| {
        quantised((sum + (at as i64 % 9) * 100 - 400) as f64 * 0.0002 / 0.31, 120, DataType::Uint8)
    };
    assert_ints(&found, &sums.iter().enumerate().map(scaled).collect::<Vec<_>>(), "QGemm");
}

#[test]
fn factors_that_are_quantised_on_the_way() {
    let mut next = random();
    let a = Array::floats(&[4, 30], (0..120).map(|_| next() as f32 * 3.0 - 1.0).collect());
    let b = ints(DataType::Int8, &[30, 7], &mut next);
    let inputs = [a.clone(), b.clone(), scale(0.01), one(DataType::Int8, 5)];
    let found = run("com.microsoft:DynamicQuantizeMatMul", &inputs, &[], DataType::Fp32);
    let (low, high) = a.to_floats().iter().fold((0f32, 0f32), |(low, high), &x| (low.min(x), high.max(x)));
    let step = (high - low) / 255.0;
    let zero = quantised(f64::from(-low / step), 0, DataType::Uint8);
    let whole = a.to_floats().iter().map(|&x| quantised(f64::from(x / step), zero, DataType::Uint8)).collect();
    let sums = product(&Array::new(DataType::Uint8, &a.dims, Data::Int(whole)), zero, &b, 5);
    for (&found, &sum) in found.to_floats().iter().zip(&sums) {
        let expected = sum as f64 * f64::from(step) * 0.01;
        assert!((f64::from(found) - expected).abs() < 1e-4, "{found} instead of {expected}");
    }
}

#[test]
fn means_and_functions_of_one_tensor() {
    let mut next = random();
    let x = ints(DataType::Uint8, &[2, 20, 3, 3], &mut next);
    let inputs = [x.clone(), scale(0.0217), one(DataType::Uint8, 100), scale(0.0195), one(DataType::Uint8, 90)];
    let mean = run("com.microsoft:QLinearGlobalAveragePool", &inputs, &[("channels_last", 0)], DataType::Uint8);
    let of_plane = |plane: &[i64]| {
        let sum: i64 = plane.iter().map(|x| x - 100).sum();
        quantised(sum as f64 / 9.0 * 0.0217 / 0.0195, 90, DataType::Uint8)
    };
    assert_ints(&mean, &x.to_ints().chunks(9).map(of_plane).collect::<Vec<_>>(), "mean");
    let each = |function: fn(f64) -> f64| {
        let one = |&x: &i64| quantised(function((x - 100) as f64 * 0.0217) / 0.0195, 90, DataType::Uint8);
        x.to_ints().iter().map(one).collect::<Vec<_>>()
    };
    let mut joined = vec![inputs[3].clone(), inputs[4].clone()];
    joined.extend([&inputs[..3], &inputs[..3]].concat());
    let found = run("com.microsoft:QLinearConcat", &joined, &[("axis", 0)], DataType::Uint8);
    assert_ints(&found, &[each(|x| x), each(|x| x)].concat(), "concat");
    let found = run("com.microsoft:QLinearLeakyRelu", &inputs, &[], DataType::Uint8);
    assert_ints(&found, &each(|x| if x < 0.0 { 0.01 * x } else { x }), "leaky");
    let found = run("com.microsoft:QLinearSigmoid", &inputs, &[], DataType::Uint8);
    assert_ints(&found, &each(|x| 1.0 / (1.0 + (-x).exp())), "sigmoid");
}
