//! Gpulet's nine models (table 4) and scenarios (section 3.2), with times that were measured here.

use super::{Measurements, SharedModel, WHOLE};

/// The models, and under which names their times are in `experiments/data/h200_shares.csv`.
pub const MODELS: [(&str, &str); 9] = [
    ("googlenet", "googlenet"),
    ("lenet", "lenet"),
    ("resnet50", "resnet50"),
    ("ssd_mobilenet", "ssd_mobilenet"),
    ("vgg16", "vgg16"),
    ("mnasnet1_0", "mnasnet1_0"),
    ("mobilenet_v2", "mobilenet_v2"),
    ("densenet", "densenet161"),
    ("bert_base", "bert_s14"),
];

/// Each model at 0, 1 or 2 times a rate: scenario 0 asks for nothing.
pub const SCENARIOS: usize = 3_usize.pow(MODELS.len() as u32);

/// The models with these rates and so many times what a batch of eight takes in a whole GPU as their objectives. A
/// sentence if one wasn't measured.
pub fn models(measured: &Measurements, slack: f64, rates: [f64; MODELS.len()]) -> Result<Vec<SharedModel>, String> {
    let model = |(&(name, measured_as), rate): (&(&str, &str), f64)| {
        let times = measured.models.get(measured_as).cloned();
        let times = times.ok_or_else(|| format!("the table of times lacks model {measured_as:?}"))?;
        Ok(SharedModel { name: name.to_owned(), rate, objective: slack * times.of(WHOLE, 8), times })
    };
    MODELS.iter().zip(rates).map(model).collect()
}

/// One of the scenarios, with so many requests a second for a model at 1.
pub fn scenario(measured: &Measurements, slack: f64, index: usize, rate: f64) -> Result<Vec<SharedModel>, String> {
    let digit = |digit: usize| (index / 3_usize.pow(digit as u32) % 3) as f64;
    models(measured, slack, std::array::from_fn(|place| digit(place) * rate))
}
