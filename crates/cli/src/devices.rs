//! `--devices`: which runtime, and how many devices of it.

use planner::shares::{DIVISIONS, GAP_ON_GPUS, SLOTS, WHOLE};
use std::fmt;
use std::str::FromStr;

/// What `--devices` says.
#[derive(Clone, PartialEq, Debug)]
pub struct Devices {
    /// The runtime.
    pub kind: DeviceKind,
    /// How many of them.
    pub count: u32,
    /// With CUDA: which GPUs.
    pub gpus: Vec<u32>,
    /// How each GPU is shared, in one way or in several of equally many shares; each share is a device. On a CPU: how
    /// its cores are.
    pub divisions: Vec<Vec<f64>>,
}

/// The runtimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// ONNX Runtime on CPU cores.
    Cpu,
    /// Our own runtime on NVIDIA GPUs.
    Cuda,
    /// Sleeps as long as the model's configuration says.
    Emulated,
}

const KINDS: &str = "use auto, cpu:N, cuda:GPU or emulated:N";
/// The most devices that are counted.
const MAX_COUNT: u32 = 4096;

/// What `--shares` may be told: who says how GPUs are divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareChoice {
    /// `--devices`.
    Fixed,
    /// The server, by what is asked for.
    Auto,
}

/// What `--cpu-division` may be told: which cores compute a batch together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuDivision {
    /// The server says so, by what is asked for.
    Auto,
    /// Each one alone.
    Narrow,
    /// All of them.
    Wide,
}

impl FromStr for CpuDivision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "narrow" => Ok(Self::Narrow),
            "wide" => Ok(Self::Wide),
            other => Err(format!("\"{other}\" divides no cores: use auto, narrow or wide")),
        }
    }
}

impl fmt::Display for CpuDivision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Narrow => "narrow",
            Self::Wide => "wide",
        })
    }
}

impl<'de> serde::Deserialize<'de> for CpuDivision {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for ShareChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "fixed" => Ok(Self::Fixed),
            other => Err(format!("\"{other}\" divides no GPU: use auto or fixed")),
        }
    }
}

impl fmt::Display for ShareChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fixed => "fixed",
            Self::Auto => "auto",
        })
    }
}

impl<'de> serde::Deserialize<'de> for ShareChoice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What `--devices` may be told: devices, or to look for them.
#[derive(Clone, PartialEq, Debug)]
pub enum DeviceChoice {
    /// What there is: every GPU, otherwise CPU cores.
    Auto,
    /// These.
    Named(Devices),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Named) }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Named(devices) => devices.fmt(f),
        }
    }
}

impl<'de> serde::Deserialize<'de> for DeviceChoice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Devices {
    /// So many of a kind that is only counted.
    pub fn counted(kind: DeviceKind, count: u32) -> Self {
        Self { kind, count, gpus: Vec::new(), divisions: Vec::new() }
    }

    /// So many GPUs, each as one device.
    pub fn whole_gpus(count: u32) -> Self {
        Self { kind: DeviceKind::Cuda, count, gpus: (0..count).collect(), divisions: vec![vec![1.0]] }
    }

    /// The executors that so many cores carry, each with so many threads: one core stays for reading and answering
    /// requests, and one executor is there in any case.
    pub fn on_cores(cores: usize, threads: u16) -> Self {
        let executors = cores.saturating_sub(1) / usize::from(threads.max(1));
        Self::counted(DeviceKind::Cpu, u32::try_from(executors).unwrap_or(MAX_COUNT).clamp(1, MAX_COUNT))
    }

    /// What a device is called that its runtime has no name for.
    pub fn name(&self, device: u32) -> String {
        match self.shares() {
            // Executors are what they are however many cores they have.
            _ if self.kind == DeviceKind::Cpu => format!("{}:{device}", self.kind),
            1 => format!("{}:{device}", self.kind),
            shares => format!("{}:{} share {}", self.kind, device / shares, device % shares),
        }
    }

    /// How many devices in a row are shares of one GPU.
    pub fn shares(&self) -> u32 {
        self.divisions.first().map_or(1, |shares| shares.len() as u32)
    }

    /// The same GPUs, each divided as plans of shares want it, whole at first: `--shares auto`.
    pub fn with_planned_shares(self) -> Result<Self, String> {
        if self.kind == DeviceKind::Cpu {
            return Err(format!("it is for GPUs and emulated devices, and this server would use {self}: leave it out"));
        }
        if self.divisions.len() > 1 || self.shares() > 1 {
            return Err(format!("--devices {self} says how GPUs are divided: say one of the two"));
        }
        let part = |shares: &[u32], place: usize| f64::from(shares.get(place).copied().unwrap_or(0)) / f64::from(WHOLE);
        let division = |shares: &&[u32]| (0..SLOTS).map(|place| part(shares, place)).collect();
        let (count, divisions) = (self.count * SLOTS as u32, DIVISIONS.iter().map(division).collect());
        Ok(Self { count, divisions, ..self })
    }

    /// The same executors, each with a core at first; in the other division the first has all of their cores:
    /// `--cpu-division auto`.
    pub fn with_divided_cores(self) -> Self {
        let part = 1.0 / f64::from(self.count);
        let wide = (0..self.count).map(|device| if device == 0 { 1.0 } else { 0.0 }).collect();
        Self { divisions: vec![vec![part; self.count as usize], wide], ..self }
    }

    /// Cores that compute a batch together on the first device in the other division; 1 where there is none.
    pub fn wide_threads(&self) -> u16 {
        let is_divided = self.kind == DeviceKind::Cpu && !self.divisions.is_empty();
        if is_divided { u16::try_from(self.count).unwrap_or(u16::MAX) } else { 1 }
    }

    /// All sizes of shares, ascending.
    pub fn share_sizes(&self) -> Vec<f64> {
        let mut sizes: Vec<f64> = self.divisions.iter().flatten().copied().filter(|share| *share > 0.0).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        sizes
    }

    /// Which kind each device is in a division, by its speed: 0 is the smallest share that there is in any.
    pub fn kinds(&self, division: usize) -> Vec<u32> {
        let Some(shares) = self.divisions.get(division) else { return vec![0; self.count as usize] };
        let sizes = self.share_sizes();
        let kind = |share: &f64| sizes.iter().take_while(|size| *size < share).count() as u32;
        shares.iter().map(kind).cycle().take(self.count as usize).collect()
    }

    /// What stands behind `cuda:`, for instance `0`, `0,1`, `0:shares=0.5,0.5`, or `0:shares=0.5,0.5|0.25,0.75`.
    fn cuda(text: &str) -> Result<Self, String> {
        let (gpus, shares) = text.split_once(':').unwrap_or((text, "shares=1"));
        let wrong = || {
            format!(
                "\"cuda:{text}\": behind the colon stand numbers of GPUs and maybe shares, as in cuda:0, cuda:0,1, cuda:0:shares=0.5,0.5, or cuda:0:shares=0.5,0.5|0.25,0.75 for shares that may change"
            )
        };
        let gpus: Option<Vec<u32>> = gpus.split(',').map(|gpu| gpu.parse().ok()).collect();
        let gpus = gpus.ok_or_else(wrong)?;
        let shares = shares.strip_prefix("shares=").or_else(|| shares.strip_prefix("share=")).ok_or_else(wrong)?;
        let share = |share: &str| share.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
        let division = |shares: &str| shares.split(',').map(share).collect::<Option<Vec<f64>>>();
        let divisions = shares.split('|').map(division).collect::<Option<Vec<Vec<f64>>>>().ok_or_else(wrong)?;
        let count = divisions[0].len();
        if (1..gpus.len()).any(|index| gpus[..index].contains(&gpus[index])) {
            return Err(format!("\"cuda:{text}\" names a GPU twice"));
        }
        if divisions.iter().any(|shares| shares.iter().sum::<f64>() > 1.0 + 1e-9) {
            return Err(format!("\"cuda:{text}\": the shares of a GPU add up to 1 at most"));
        }
        if divisions.iter().any(|shares| shares.len() != count) {
            return Err(format!("\"cuda:{text}\": a GPU must always have the same number of shares"));
        }
        Ok(Self { kind: DeviceKind::Cuda, count: (gpus.len() * count) as u32, gpus, divisions })
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let kind = match kind {
            "cpu" => DeviceKind::Cpu,
            "emulated" => DeviceKind::Emulated,
            "cuda" => return Self::cuda(rest.unwrap_or("0")),
            other => return Err(format!("\"{other}\" is not a kind of device: {KINDS}")),
        };
        let count = rest.unwrap_or("1").parse().ok().filter(|count| (1..=MAX_COUNT).contains(count));
        let count = count
            .ok_or_else(|| format!("\"{text}\": behind the colon stands the number of devices, 1 to {MAX_COUNT}"))?;
        Ok(Self::counted(kind, count))
    }
}

impl<'de> serde::Deserialize<'de> for Devices {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind != DeviceKind::Cuda {
            return write!(f, "{}:{}", self.kind, self.count);
        }
        let joined = |shares: &Vec<f64>| shares.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
        let gpus: Vec<_> = self.gpus.iter().map(u32::to_string).collect();
        let divisions: Vec<_> = self.divisions.iter().map(joined).collect();
        write!(f, "{}:{}:shares={}", self.kind, gpus.join(","), divisions.join("|"))
    }
}

impl DeviceKind {
    /// Seconds in which such a device computes nothing after each batch, for whoever plans shares, until the server has
    /// measured it; `None`: plans count no gaps.
    pub const fn gap(self) -> Option<f64> {
        match self {
            Self::Cuda => Some(GAP_ON_GPUS),
            // Behind an emulated device the server is the same, but plans are to be the same on every machine.
            Self::Cpu | Self::Emulated => None,
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Emulated => "emulated",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_one_share_are_of_one_kind_and_the_smallest_is_the_first() {
        let devices: Devices = "cuda:0,1:shares=0.5,0.25,0.25".parse().unwrap();
        assert_eq!(devices.kinds(0), [1, 0, 0, 1, 0, 0]);
        assert_eq!("cpu:4".parse::<Devices>().unwrap().kinds(0), [0; 4]);
        let devices: Devices = "cuda:0:shares=0.5,0.5|0.25,0.75".parse().unwrap();
        assert_eq!([0, 1].map(|division| devices.kinds(division)), [[1, 1], [0, 2]]);
    }

    #[test]
    fn planned_shares_begin_with_whole_gpus_and_a_place_for_another_share() {
        let devices = |text: &str| text.parse::<Devices>().unwrap();
        let planned = devices("emulated:2").with_planned_shares().unwrap();
        assert_eq!((planned.count, planned.shares(), planned.share_sizes().len()), (4, 2, 6));
        assert_eq!(planned.divisions[0], [1.0, 0.0]);
        assert_eq!((planned.kinds(0), planned.kinds(3)), (vec![5, 0, 5, 0], vec![0, 4, 0, 4]));
        let refused = |text: &str| devices(text).with_planned_shares().unwrap_err();
        assert!(refused("cpu:2").contains("for GPUs and emulated devices"));
        assert!(refused("cuda:0:shares=0.5,0.5").contains("say one of the two"));
        assert!(devices("cuda:0,1").with_planned_shares().is_ok());
    }

    #[test]
    fn divided_cores_are_one_for_each_executor_or_all_for_the_first() {
        let devices = Devices::counted(DeviceKind::Cpu, 4).with_divided_cores();
        assert_eq!(devices.divisions, [vec![0.25; 4], vec![1.0, 0.0, 0.0, 0.0]]);
        assert_eq!((devices.kinds(0), devices.kinds(1)[0], devices.share_sizes().len()), (vec![0; 4], 1, 2));
        assert_eq!((devices.wide_threads(), devices.name(3), devices.to_string()), (4, "cpu:3".into(), "cpu:4".into()));
        assert_eq!(Devices::counted(DeviceKind::Cpu, 4).wide_threads(), 1);
    }

    #[test]
    fn devices_are_a_kind_and_a_number() {
        assert_eq!("cpu:2".parse(), Ok(Devices::counted(DeviceKind::Cpu, 2)));
        assert_eq!("emulated".parse(), Ok(Devices::counted(DeviceKind::Emulated, 1)));
        for wrong in ["cpu:0", "cpu:x", "gpu:1", ""] {
            assert!(wrong.parse::<Devices>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_core_but_one_executes() {
        let counts = |threads: u16| [1, 2, 3, 4, 64].map(|cores| Devices::on_cores(cores, threads).count);
        assert_eq!(counts(1), [1, 1, 2, 3, 63]);
        assert_eq!(counts(0), counts(1));
        assert_eq!(counts(4), [1, 1, 1, 1, 15]);
        assert_eq!(Devices::on_cores(usize::MAX, 1).count, MAX_COUNT);
        assert_eq!("cuda:0,1,2".parse(), Ok(Devices::whole_gpus(3)));
    }

    #[test]
    fn a_choice_is_to_look_or_a_name() {
        assert_eq!("auto".parse(), Ok(DeviceChoice::Auto));
        assert_eq!("cpu:3".parse(), Ok(DeviceChoice::Named(Devices::counted(DeviceKind::Cpu, 3))));
        for text in ["auto", "cpu:2"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        assert!("auto:2".parse::<DeviceChoice>().unwrap_err().contains("use auto, cpu:N"));
    }

    #[test]
    fn devices_are_read_as_they_are_written() {
        for text in ["cpu:2", "emulated:8", "cuda:0:shares=1", "cuda:0,1:shares=0.5,0.5|0.25,0.75"] {
            assert_eq!(text.parse::<Devices>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn gpus_have_numbers_and_shares() {
        let cuda = |gpus: &[u32], shares: &[f64]| {
            let (count, kind) = ((gpus.len() * shares.len()) as u32, DeviceKind::Cuda);
            Ok(Devices { kind, count, gpus: gpus.to_vec(), divisions: vec![shares.to_vec()] })
        };
        assert_eq!("cuda".parse(), cuda(&[0], &[1.0]));
        assert_eq!("cuda:1".parse(), cuda(&[1], &[1.0]));
        assert_eq!("cuda:0,2".parse(), cuda(&[0, 2], &[1.0]));
        assert_eq!("cuda:0,1:shares=0.25,0.75".parse(), cuda(&[0, 1], &[0.25, 0.75]));
        assert_eq!("cuda:0:share=0.5".parse(), cuda(&[0], &[0.5]));
        for wrong in [
            "cuda:",
            "cuda:x",
            "cuda:0,0",
            "cuda:0:0.5",
            "cuda:0:shares=0.7,0.7",
            "cuda:0:shares=0",
            "cuda:0:shares=",
            "cuda:0:shares=0.5,0.5|1",
            "cuda:0:shares=0.5|",
        ] {
            assert!(wrong.parse::<Devices>().is_err(), "{wrong}");
        }
    }
}
