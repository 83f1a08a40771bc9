//! Measurements of shares as tables: what batches take in them, and side by side.

use super::interference::{BatchInShare, Interference, MeasuredPair};
use super::times::ShareTimes;
use std::collections::BTreeMap;

/// What was measured on one kind of GPU.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// By the name of the model.
    pub models: BTreeMap<String, ShareTimes>,
    pairs: Vec<PairRow>,
}

#[derive(Clone, Debug)]
struct PairRow {
    batches: [(String, u32, u32); 2],
    alone_s: [f64; 2],
    together_s: [f64; 2],
}

/// What is known of one model: its batches' times by share and size.
#[derive(Default)]
struct ModelPoints {
    weight_bytes: f64,
    seconds: BTreeMap<(u32, u32), f64>,
}

impl Measurements {
    /// Reads a table of times (`model,batch,pct,weight_bytes,p50_ms`, other columns are passed over) and one of pairs
    /// (`m1,b1,pct1,m2,b2,pct2,alone1_ms,together1_ms,alone2_ms,together2_ms`; empty where there are none). What a
    /// batch took alone there is used where the first table lacks it.
    pub fn read(times: &str, pairs: &str) -> Result<Self, String> {
        let pairs = read_pairs(pairs)?;
        let mut points: BTreeMap<String, ModelPoints> = BTreeMap::new();
        for row in CsvTable::read(times)?.rows() {
            let (name, weight_bytes) = (row.text("model")?.to_owned(), row.number("weight_bytes")?);
            let (share, batch, millis) = (row.whole("pct")?, row.whole("batch")?, row.number("p50_ms")?);
            let model = points.entry(name).or_default();
            model.weight_bytes = weight_bytes;
            model.seconds.insert((share, batch), millis / 1e3);
        }
        for pair in &pairs {
            for ((name, batch, share), alone) in pair.batches.iter().zip(pair.alone_s) {
                if let Some(known) = points.get_mut(name) {
                    known.seconds.entry((*share, *batch)).or_insert(alone);
                }
            }
        }
        let models = points.into_iter().map(|(name, known)| {
            let seconds = known.seconds.into_iter().map(|((share, batch), seconds)| (share, batch, seconds));
            let times =
                ShareTimes::new(seconds, known.weight_bytes).map_err(|error| format!("model {name:?}: {error}"))?;
            Ok::<_, String>((name, times))
        });
        Ok(Self { models: models.collect::<Result<_, _>>()?, pairs })
    }

    /// Each pair twice, once for each of its batches; those of models whose times aren't known are left out.
    pub fn pairs(&self) -> impl Iterator<Item = MeasuredPair<'_>> {
        self.pairs.iter().flat_map(|pair| {
            [(0, 1), (1, 0)].into_iter().filter_map(|(own, other)| {
                let batch = |index: usize| {
                    let (name, batch, share) = &pair.batches[index];
                    Some(BatchInShare { times: self.models.get(name)?, batch: *batch, share: *share })
                };
                let slowdown = pair.together_s[own] / pair.alone_s[own];
                Some(MeasuredPair { batch: batch(own)?, beside: batch(other)?, slowdown })
            })
        })
    }

    /// How shares slow each other down, by all pairs; nothing is assumed where there are too few.
    pub fn interference(&self) -> Interference {
        Interference::fit(self.pairs()).unwrap_or(Interference::NONE)
    }
}

fn read_pairs(text: &str) -> Result<Vec<PairRow>, String> {
    let table = CsvTable::read(text)?;
    let rows = table.rows().map(|row| {
        let batch = |index: u8| {
            let name = row.text(&format!("m{index}"))?.to_owned();
            Ok::<_, String>((name, row.whole(&format!("b{index}"))?, row.whole(&format!("pct{index}"))?))
        };
        let seconds = |column: &str| row.number(column).map(|millis| millis / 1e3);
        Ok(PairRow {
            batches: [batch(1)?, batch(2)?],
            alone_s: [seconds("alone1_ms")?, seconds("alone2_ms")?],
            together_s: [seconds("together1_ms")?, seconds("together2_ms")?],
        })
    });
    rows.collect()
}

/// Comma-separated values with a head; lines that begin with # are remarks.
struct CsvTable<'a> {
    head: Vec<&'a str>,
    lines: Vec<(usize, &'a str)>,
}

impl<'a> CsvTable<'a> {
    fn read(text: &'a str) -> Result<Self, String> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let head = lines.next().map_or(Vec::new(), |(_, line)| line.split(',').map(str::trim).collect());
        Ok(Self { head, lines: lines.collect() })
    }

    fn rows(&self) -> impl Iterator<Item = CsvRow<'_>> {
        self.lines.iter().map(|&(number, line)| CsvRow { head: &self.head, number, values: line.split(',').collect() })
    }
}

struct CsvRow<'a> {
    head: &'a [&'a str],
    number: usize,
    values: Vec<&'a str>,
}

impl<'a> CsvRow<'a> {
    fn text(&self, column: &str) -> Result<&'a str, String> {
        let index = self.head.iter().position(|name| *name == column);
        let index =
            index.ok_or_else(|| format!("there is no column {column:?}: there are {}", self.head.join(", ")))?;
        let value = self.values.get(index).map(|value| value.trim());
        value.ok_or_else(|| format!("line {}: there is nothing in column {column:?}", self.number))
    }

    fn number(&self, column: &str) -> Result<f64, String> {
        let text = self.text(column)?;
        let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
        number.ok_or_else(|| format!("line {}: {column} is {text:?}: give a number above 0", self.number))
    }

    fn whole(&self, column: &str) -> Result<u32, String> {
        let text = self.text(column)?;
        text.parse().map_err(|_| format!("line {}: {column} is {text:?}: give a whole number", self.number))
    }
}
