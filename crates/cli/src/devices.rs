//! `--devices`: which runtime, and how many devices of it.

use std::fmt;
use std::str::FromStr;

/// What `--devices` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Devices {
    /// The runtime.
    pub kind: DeviceKind,
    /// How many of them.
    pub count: u32,
}

/// The runtimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// ONNX Runtime on CPU cores.
    Cpu,
    /// Sleeps as long as the model's configuration says.
    Emulated,
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, count) = text.split_once(':').unwrap_or((text, "1"));
        let kind = match kind {
            "cpu" => DeviceKind::Cpu,
            "emulated" => DeviceKind::Emulated,
            "cuda" => return Err("this build has no CUDA engine yet: use cpu:N or emulated:N".into()),
            other => return Err(format!("\"{other}\" is not a kind of device: use cpu:N or emulated:N")),
        };
        let count = count.parse().ok().filter(|count| (1..=4096).contains(count));
        let count =
            count.ok_or_else(|| format!("\"{text}\": behind the colon stands the number of devices, 1 to 4096"))?;
        Ok(Self { kind, count })
    }
}

impl<'de> serde::Deserialize<'de> for Devices {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Emulated => "emulated",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_a_kind_and_a_number() {
        assert_eq!("cpu:2".parse(), Ok(Devices { kind: DeviceKind::Cpu, count: 2 }));
        assert_eq!("emulated".parse(), Ok(Devices { kind: DeviceKind::Emulated, count: 1 }));
        for wrong in ["cpu:0", "cpu:x", "gpu:1", "cuda:0", ""] {
            assert!(wrong.parse::<Devices>().is_err(), "{wrong}");
        }
    }
}
