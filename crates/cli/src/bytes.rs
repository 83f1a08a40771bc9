//! Sizes in bytes, as people write them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes; written `2GiB`, `500MB`, `4096`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl ByteSize {
    /// As one would write it in a flag: nothing is rounded.
    pub fn exactly(self) -> String {
        let unit = UNITS[..4].iter().rev().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        unit.map_or_else(|| self.0.to_string(), |(unit, factor)| format!("{}{unit}", self.0 / factor))
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not a size: write a number and a unit, like 2GiB or 500MB");
        let trimmed = text.trim();
        let number_before = |unit: &str| {
            let (number, end) = trimmed.split_at_checked(trimmed.len().checked_sub(unit.len())?)?;
            end.eq_ignore_ascii_case(unit).then_some(number)
        };
        let found = UNITS.iter().find_map(|(unit, factor)| Some((number_before(unit)?, *factor)));
        let (number, factor) = found.unwrap_or((trimmed, 1));
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        if !(number.is_finite() && number >= 0.0) {
            return Err(wrong());
        }
        Ok(Self((number * factor as f64) as u64))
    }
}

impl<'de> serde::Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS[..4].iter().rev().find(|(_, factor)| self.0 >= *factor);
        match unit {
            Some((unit, factor)) => write!(f, "{:.1} {unit}", self.0 as f64 / *factor as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!("2GiB".parse(), Ok(ByteSize(2 << 30)));
        assert_eq!("500 mb".parse(), Ok(ByteSize(500_000_000)));
        assert_eq!("0.5KiB".parse(), Ok(ByteSize(512)));
        assert_eq!("4096".parse(), Ok(ByteSize(4096)));
        assert_eq!("0".parse(), Ok(ByteSize(0)));
        for wrong in ["", "GiB", "-1GiB", "many", "1XB", "ä"] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong}");
        }
        assert_eq!(ByteSize(3 << 29).to_string(), "1.5 GiB");
        assert_eq!([0, 4095, 4096, 3 << 29].map(|bytes| ByteSize(bytes).exactly()), ["0", "4095", "4KiB", "1536MiB"]);
    }
}
