//! The memory that a huge request takes is given back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use base::DataType;
use common::{Tensor, execute, prepare};
use std::fs;

fn resident_megabytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

fn picture(side: i64) -> Tensor {
    Tensor {
        datatype: DataType::Fp32,
        shape: vec![1, 3, side, side],
        data: vec![0; 12 * (side * side) as usize].into(),
    }
}

fn tokens(count: i64) -> [Tensor; 3] {
    let input = || Tensor {
        datatype: DataType::Int64,
        shape: vec![1, count],
        data: (0..count).flat_map(|_| 1i64.to_le_bytes()).collect::<Vec<u8>>().into(),
    };
    [input(), input(), input()]
}

#[test]
fn what_a_text_took_that_is_too_long_for_the_model_is_given_back() {
    let mut loaded = prepare("all-minilm-l6-v2", None).unwrap().load(0).unwrap();
    for _ in 0..3 {
        execute(&mut *loaded, &tokens(32)).unwrap();
    }
    let before = resident_megabytes();
    execute(&mut *loaded, &tokens(100_000)).unwrap_err();
    let after = resident_megabytes();
    println!("{before} MB before, {after} MB after");
    assert!(after < before + 50, "{before} MB before, {after} MB after");
}

#[test]
fn packed_weights_are_there_once_for_all_devices_and_go_with_the_last() {
    let prepared = prepare("all-minilm-l6-v2", None).unwrap();
    let load = |device| {
        let mut loaded = prepared.load(device).unwrap();
        execute(&mut *loaded, &tokens(32)).unwrap();
        loaded
    };
    let first = load(0);
    let before = resident_megabytes();
    let others: Vec<_> = (1..5).map(load).collect();
    let after = resident_megabytes();
    println!("{before} MB for one device, {after} MB for five");
    assert!(after < before + 100, "{before} MB for one device, {after} MB for five");
    drop((first, others));
    let none = resident_megabytes();
    println!("{none} MB for none");
    assert!(none + 20 < before, "{before} MB for one device, {none} MB for none");
}

#[test]
fn one_huge_picture_does_not_cost_memory_for_ever() {
    let mut loaded = prepare("rapidocr-det", None).unwrap().load(0).unwrap();
    let small = [picture(320)];
    for _ in 0..3 {
        execute(&mut *loaded, &small).unwrap();
    }
    let before = resident_megabytes();
    execute(&mut *loaded, &[picture(1280)]).unwrap();
    execute(&mut *loaded, &small).unwrap();
    let after = resident_megabytes();
    println!("{before} MB before, {after} MB after");
    assert!(after < before + 50, "{before} MB before, {after} MB after");
}
