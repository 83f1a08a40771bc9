//! The arguments of `punctual load`, and the file in which a run with several classes can be written.

use crate::connect::{ApiKey, Encryption};
use crate::lengths::Lengths;
use crate::plan::{ClassPlan, LoadPlan, Loop, PlanError, expand, resolve, says_encrypted};
use base::Duration;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use tls::{ClientTlsFiles, HTTP1, HTTP2};
use workload::{Popularity, Process};

/// How to talk to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Protocol {
    /// HTTP with tensors as JSON numbers
    HttpJson,
    /// HTTP with tensors as bytes behind a JSON header
    HttpBinary,
    /// gRPC with tensors as bytes
    Grpc,
}

/// How the gaps between requests of an open loop are distributed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalKind {
    /// Requests that know nothing of each other, as from many independent users
    #[default]
    Poisson,
    /// Poisson made burstier (shape below 1) or smoother (above 1), see --shape-parameter
    Gamma,
    /// All gaps equal: the kindest traffic there is
    Uniform,
}

/// Load a server and measure how many answers come in time.
///
/// With --rate the load is an open loop: requests are sent by a timetable, whatever the server does, as real users do.
/// With --concurrency it is a closed loop: that many clients each wait for an answer before they send again. Latency
/// always counts from the instant at which a request should have been sent.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Where the server listens, as HOST:PORT, http://HOST:PORT or https://HOST:PORT [default: the protocol's usual
    /// port on this machine]
    #[arg(long, short = 'u', value_name = "ADDRESS")]
    pub url: Option<String>,

    /// API key that every request has with it. Everybody who may list processes reads flags: the environment and
    /// --api-key-file keep it to yourself
    #[arg(long, value_name = "KEY", env = "PUNCTUAL_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,

    /// File with that key alone; goes before --api-key
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Those who sign the server's certificate, as PEM: connections are encrypted then
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Certificate to show, as PEM, where the server asks for one
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_certificate: Option<PathBuf>,

    /// Private key of that certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,

    /// How to talk to the server
    #[arg(long, value_enum, default_value_t = Protocol::HttpBinary)]
    pub protocol: Protocol,

    /// Model to ask, several times for several. NAME:3 gives it three times the requests of one without a number, and
    /// net-{0..499} stands for 500 names
    #[arg(long, short = 'm', value_name = "NAME[:WEIGHT]")]
    pub model: Vec<String>,

    /// Spread requests over the models by Zipf's law with this exponent, the first model most popular, instead of by
    /// weight
    #[arg(long, value_name = "EXPONENT")]
    pub zipf: Option<f64>,

    /// Open loop: requests a second, all models together
    #[arg(long, short = 'r', value_name = "PER_SECOND", conflicts_with = "concurrency")]
    pub rate: Option<f64>,

    /// Open loop: how the gaps between requests are distributed
    #[arg(long, value_enum, default_value_t = ArrivalKind::Poisson)]
    pub arrivals: ArrivalKind,

    /// The shape of gamma arrivals: 1 is Poisson, 0.1 comes in bursts
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0)]
    pub shape_parameter: f64,

    /// Closed loop: this many clients, each waiting for its answer before it sends again
    #[arg(long, short = 'c', value_name = "CLIENTS")]
    pub concurrency: Option<u32>,

    /// For how many seconds to send
    #[arg(long, short = 'd', value_name = "SECONDS", default_value_t = 10.0)]
    pub duration: f64,

    /// Don't count requests of the first so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub warmup: f64,

    /// Deadline of each request, sent along as the parameter `timeout`; answers after it don't count as good
    #[arg(long, value_name = "MILLISECONDS")]
    pub deadline_ms: Option<f64>,

    /// Priority of each request: 1 is the most urgent, 0 the server's default
    #[arg(long, default_value_t = 0)]
    pub priority: u32,

    /// Rows in each request, for models with a batch dimension
    #[arg(long, short = 'b', value_name = "ROWS", default_value_t = 1)]
    pub batch: u32,

    /// The application that the requests belong to, sent along as the parameter `application`
    #[arg(long, value_name = "NAME")]
    pub application: Option<String>,

    /// Sizes that the model leaves open, besides the batch: 64, uniform:4:256 or lognormal:24:0.6:4:256 (median, sigma,
    /// shortest, longest)
    #[arg(long, value_name = "LENGTHS")]
    pub lengths: Option<String>,

    /// Dimensions of an input that the model leaves open, as NAME:1,128 (the batch dimension included)
    #[arg(long, value_name = "NAME:DIMS")]
    pub shape: Vec<String>,

    /// Value of every element of an input, as NAME:16000, instead of random ones
    #[arg(long, value_name = "NAME:NUMBER")]
    pub value: Vec<String>,

    /// Open loop: requests that may be under way at once. More wait until one is answered, and their latency counts
    /// from when they should have been sent
    #[arg(long, value_name = "COUNT", default_value_t = 512)]
    pub connections: usize,

    /// gRPC: connections that the requests are spread over
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub grpc_connections: usize,

    /// Never sleep while answers are awaited: takes a whole core, and no latency has the waking of the generator in it
    #[arg(long)]
    pub busy_poll: bool,

    /// The same seed gives the same timetable and the same inputs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// A class of requests of its own, several times for several at once:
    /// name=fast,model=resnet,rate=100,deadline_ms=25 or name=bulk,model=other,concurrency=8. Keys: name, model (may
    /// come again), rate, arrivals, shape_parameter, from_s, join_every_ms, concurrency, backoff_ms, zipf, deadline_ms,
    /// priority, batch, application, lengths
    #[arg(long, value_name = "KEY=VALUE,...", conflicts_with_all = ["model", "rate", "concurrency"])]
    pub class: Vec<String>,

    /// TOML file with the classes: tables `class` with the keys of --class, see docs/load.md
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "rate", "concurrency", "class"])]
    pub file: Option<PathBuf>,

    /// Load a server that isn't this machine
    #[arg(long)]
    pub allow_remote: bool,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A class as it is written in a file or after --class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ClassSpec {
    name: Option<String>,
    #[serde(alias = "models", deserialize_with = "one_or_many")]
    model: Vec<String>,
    zipf: Option<f64>,
    rate: Option<f64>,
    arrivals: ArrivalKind,
    shape_parameter: Option<f64>,
    from_s: Option<f64>,
    join_every_ms: Option<f64>,
    concurrency: Option<u32>,
    backoff_ms: Option<f64>,
    deadline_ms: Option<f64>,
    priority: u32,
    batch: Option<u32>,
    application: Option<String>,
    lengths: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassFile {
    class: Vec<ClassSpec>,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(name) => vec![name],
        OneOrMany::Many(names) => names,
    })
}

impl LoadArgs {
    /// Checks everything and looks up the server's address.
    pub fn plan(&self) -> Result<LoadPlan, PlanError> {
        let default_url = if self.protocol == Protocol::Grpc { "127.0.0.1:8001" } else { "127.0.0.1:8000" };
        let url = self.url.as_deref().unwrap_or(default_url);
        let (address, host) = resolve(url, self.allow_remote)?;
        let specs = self.specs()?;
        let classes =
            specs.into_iter().enumerate().map(|(index, spec)| spec.plan(index)).collect::<Result<Vec<_>, _>>()?;
        let duration = seconds("--duration", self.duration)?;
        let warmup = seconds("--warmup", self.warmup)?;
        if warmup >= duration {
            return Err(PlanError::value(format!(
                "--warmup is {warmup} and --duration {duration}: nothing would be left to count"
            )));
        }
        if self.connections == 0 {
            return Err(PlanError::value("--connections is 0: at least one is needed"));
        }
        if self.grpc_connections == 0 {
            return Err(PlanError::value("--grpc-connections is 0: at least one is needed"));
        }
        let longest = classes.iter().filter_map(|class| class.deadline).max().unwrap_or_default();
        Ok(LoadPlan {
            address,
            encryption: self.encryption(url, &host)?,
            key: self.key()?,
            host,
            protocol: self.protocol,
            duration,
            warmup,
            drain: Duration::from_secs(5).max(longest * 2),
            connections: self.connections,
            grpc_connections: self.grpc_connections,
            busy_poll: self.busy_poll,
            seed: self.seed,
            shapes: self.shape.iter().map(|text| shape(text)).collect::<Result<_, _>>()?,
            values: self.value.iter().map(|text| value(text)).collect::<Result<_, _>>()?,
            progress: !self.json && std::io::stderr().is_terminal(),
            classes,
        })
    }

    fn key(&self) -> Result<Option<ApiKey>, PlanError> {
        match (&self.api_key_file, &self.api_key) {
            (Some(path), _) => ApiKey::read(path).map(Some),
            (None, Some(key)) => ApiKey::new(key).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn encryption(&self, url: &str, host: &str) -> Result<Option<Encryption>, PlanError> {
        let Some(ca) = &self.tls_ca else {
            return match says_encrypted(url) {
                Some(true) => Err(PlanError::value(format!(
                    "{url:?} is encrypted: name those who sign the server's certificate with --tls-ca FILE"
                ))),
                Some(false) | None => Ok(None),
            };
        };
        if says_encrypted(url) == Some(false) {
            return Err(PlanError::value(format!(
                "{url:?} isn't encrypted, and --tls-ca is: write https:// or HOST:PORT"
            )));
        }
        let own = self.tls_certificate.clone().zip(self.tls_key.clone());
        let offered = if self.protocol == Protocol::Grpc { HTTP2 } else { HTTP1 };
        Encryption::open(&ClientTlsFiles { ca: ca.clone(), own }, host, offered).map(Some)
    }

    fn specs(&self) -> Result<Vec<ClassSpec>, PlanError> {
        if let Some(file) = &self.file {
            let text = std::fs::read_to_string(file)
                .map_err(|error| PlanError::value(format!("{} can't be read: {error}", file.display())))?;
            let parsed: ClassFile = toml::from_str(&text)
                .map_err(|error| PlanError::value(format!("{}: {}", file.display(), error.to_string().trim_end())))?;
            return Ok(parsed.class);
        }
        if !self.class.is_empty() {
            return self.class.iter().map(|text| ClassSpec::parse(text)).collect();
        }
        Ok(vec![ClassSpec {
            name: None,
            model: self.model.clone(),
            zipf: self.zipf,
            rate: self.rate,
            arrivals: self.arrivals,
            shape_parameter: Some(self.shape_parameter),
            from_s: None,
            join_every_ms: None,
            concurrency: self.concurrency,
            backoff_ms: None,
            deadline_ms: self.deadline_ms,
            priority: self.priority,
            batch: Some(self.batch),
            application: self.application.clone(),
            lengths: self.lengths.clone(),
        }])
    }
}

impl ClassSpec {
    fn parse(text: &str) -> Result<Self, PlanError> {
        let mut spec = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| {
                PlanError::value(format!("--class {text:?}: {part:?} isn't KEY=VALUE, as in rate=100"))
            })?;
            let bad = || PlanError::value(format!("--class {text:?}: {key} can't be {value:?}"));
            let number = || value.parse::<f64>().map_err(|_| bad());
            let whole = || value.parse::<u32>().map_err(|_| bad());
            match key {
                "name" => spec.name = Some(value.to_owned()),
                "model" => spec.model.push(value.to_owned()),
                "zipf" => spec.zipf = Some(number()?),
                "rate" => spec.rate = Some(number()?),
                "arrivals" => spec.arrivals = ArrivalKind::from_str(value, true).map_err(|_| bad())?,
                "shape_parameter" => spec.shape_parameter = Some(number()?),
                "from_s" => spec.from_s = Some(number()?),
                "join_every_ms" => spec.join_every_ms = Some(number()?),
                "concurrency" => spec.concurrency = Some(whole()?),
                "backoff_ms" => spec.backoff_ms = Some(number()?),
                "deadline_ms" => spec.deadline_ms = Some(number()?),
                "priority" => spec.priority = whole()?,
                "batch" => spec.batch = Some(whole()?),
                "application" => spec.application = Some(value.to_owned()),
                "lengths" => spec.lengths = Some(value.to_owned()),
                _ => {
                    return Err(PlanError::value(format!(
                        "--class {text:?}: {key:?} isn't a key; see --help for them"
                    )));
                }
            }
        }
        Ok(spec)
    }

    fn plan(self, index: usize) -> Result<ClassPlan, PlanError> {
        let name = self.name.clone().unwrap_or_else(|| match self.model.as_slice() {
            [only] => only.clone(),
            _ => format!("class {}", index + 1),
        });
        let complain = |reason: &str| PlanError::value(format!("{name}: {reason}"));
        let pattern = match (self.rate, self.concurrency) {
            (Some(rate), None) if (1e-3..1e7).contains(&rate) => {
                let from = seconds("from_s", self.from_s.unwrap_or(0.0))?;
                let join_every = self.join_every_ms.map(|value| millis("join_every_ms", value)).transpose()?;
                if join_every.is_some() && (self.zipf.is_some() || self.model.iter().any(|model| model.contains(':'))) {
                    return Err(complain(
                        "models that join one after another have equal shares: leave out zipf and weights",
                    ));
                }
                Loop::Open { rate, process: self.process(&name)?, from, join_every }
            }
            (Some(rate), None) => return Err(complain(&format!("the rate is {rate}: it must be above 0"))),
            (None, Some(_)) if self.from_s.is_some() || self.join_every_ms.is_some() => {
                return Err(complain("from_s and join_every_ms are for a rate, not for clients that wait"));
            }
            (None, Some(0)) => return Err(complain("the concurrency is 0: at least one client is needed")),
            (None, Some(clients)) => {
                Loop::Closed { clients, backoff: millis("backoff_ms", self.backoff_ms.unwrap_or(1.0))? }
            }
            (None, None) => return Err(complain("say how much: a rate (open loop) or a concurrency (closed loop)")),
            (Some(_), Some(_)) => return Err(complain("give a rate or a concurrency, not both")),
        };
        let batch = self.batch.unwrap_or(1);
        if batch == 0 {
            return Err(complain("the batch is 0: a request has at least one row"));
        }
        let deadline = self.deadline_ms.map(|value| millis("deadline_ms", value)).transpose()?;
        let models = self.models(&name)?;
        let lengths = self.lengths.as_deref().map(Lengths::parse).transpose()?;
        let (priority, application) = (self.priority, self.application);
        Ok(ClassPlan { name, models, pattern, deadline, batch, priority, application, lengths })
    }

    fn process(&self, name: &str) -> Result<Process, PlanError> {
        let shape = self.shape_parameter.unwrap_or(1.0);
        match self.arrivals {
            ArrivalKind::Poisson => Ok(Process::Poisson),
            ArrivalKind::Uniform => Ok(Process::Uniform),
            ArrivalKind::Gamma if (1e-3..1e6).contains(&shape) => Ok(Process::Gamma { shape }),
            ArrivalKind::Gamma => Err(PlanError::value(format!("{name}: the shape is {shape}: it must be above 0"))),
        }
    }

    fn models(&self, name: &str) -> Result<Vec<(String, f64)>, PlanError> {
        let mut models = Vec::new();
        for text in &self.model {
            let (pattern, weight) = match text.rsplit_once(':') {
                None => (text.as_str(), 1.0),
                Some((pattern, weight)) => match weight.parse::<f64>() {
                    Ok(weight) if weight > 0.0 && weight.is_finite() => (pattern, weight),
                    _ => return Err(PlanError::value(format!("model {text:?}: the weight must be a number above 0"))),
                },
            };
            models.extend(expand(pattern)?.into_iter().map(|name| (name, weight)));
        }
        if models.is_empty() {
            return Err(PlanError::value(format!("{name}: no model to ask: name one with --model")));
        }
        match self.zipf {
            Some(exponent) if (0.0..100.0).contains(&exponent) => {
                let shares = Popularity::Zipf { exponent }.shares(models.len());
                models.iter_mut().zip(shares).for_each(|(model, share)| model.1 = share);
            }
            Some(exponent) => {
                return Err(PlanError::value(format!("{name}: the Zipf exponent is {exponent}: it must be 0 or more")));
            }
            None => {
                let total: f64 = models.iter().map(|(_, weight)| weight).sum();
                models.iter_mut().for_each(|(_, weight)| *weight /= total);
            }
        }
        Ok(models)
    }
}

fn seconds(name: &str, value: f64) -> Result<Duration, PlanError> {
    if !(0.0..1e9).contains(&value) {
        return Err(PlanError::value(format!("{name} is {value}: it must be a number of seconds, 0 or more")));
    }
    Ok(Duration::from_secs_f64(value))
}

fn millis(name: &str, value: f64) -> Result<Duration, PlanError> {
    if !(0.001..1e12).contains(&value) {
        return Err(PlanError::value(format!("{name} is {value}: it must be a number of milliseconds above 0")));
    }
    Ok(Duration::from_millis_f64(value))
}

fn shape(text: &str) -> Result<(String, Vec<i64>), PlanError> {
    let parsed = text.rsplit_once(':').and_then(|(name, dims)| {
        let dims = dims.split(',').map(|dim| dim.trim().parse::<i64>().ok().filter(|&dim| dim >= 0));
        Some((name.to_owned(), dims.collect::<Option<Vec<_>>>()?))
    });
    parsed.ok_or_else(|| PlanError::value(format!("--shape {text:?} isn't NAME:DIMS, as in input_ids:1,128")))
}

fn value(text: &str) -> Result<(String, f64), PlanError> {
    let parsed = text.rsplit_once(':').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    parsed.ok_or_else(|| PlanError::value(format!("--value {text:?} isn't NAME:NUMBER, as in rate:16000")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn plan(args: &str) -> Result<LoadPlan, String> {
        let args = std::iter::once("load").chain(args.split_whitespace());
        let cli = Cli::try_parse_from(args).map_err(|error| error.to_string())?;
        cli.load.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn flags_make_one_class() {
        let plan =
            plan("--model a --model b:3 --rate 100 --deadline-ms 25 --arrivals gamma --shape-parameter 0.5").unwrap();
        let [class] = &plan.classes[..] else { panic!("{plan:?}") };
        assert_eq!(class.models, [("a".to_owned(), 0.25), ("b".to_owned(), 0.75)]);
        assert_eq!(
            class.pattern,
            Loop::Open { rate: 100.0, process: Process::Gamma { shape: 0.5 }, from: Duration::ZERO, join_every: None }
        );
        assert_eq!(class.deadline, Some(Duration::from_millis(25)));
        assert_eq!(plan.address.port(), 8000);
    }

    #[test]
    fn classes_come_from_arguments_and_files_alike() {
        let text = "[[class]]\nname = \"fast\"\nmodel = \"a\"\nrate = 10\ndeadline_ms = 5.5\n\
                    [[class]]\nmodels = [\"n{0..2}\", \"b\"]\nconcurrency = 8\nzipf = 0.0\nbatch = 4\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("load.toml");
        std::fs::write(&file, text).unwrap();
        let from_file = plan(&format!("--file {}", file.display())).unwrap();
        let from_arguments = plan(
            "--class name=fast,model=a,rate=10,deadline_ms=5.5 \
             --class model=n{0..2},model=b,concurrency=8,zipf=0.0,batch=4",
        )
        .unwrap();
        assert_eq!(format!("{:?}", from_file.classes), format!("{:?}", from_arguments.classes));
        let bulk = &from_file.classes[1];
        assert_eq!((bulk.name.as_str(), bulk.models.len(), bulk.batch), ("class 2", 4, 4));
        assert!(matches!(bulk.pattern, Loop::Closed { clients: 8, .. }));
    }

    #[test]
    fn the_file_in_the_documentation_works() {
        let page = include_str!("../../../docs/load.md");
        let text = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mixed.toml");
        std::fs::write(&file, text).unwrap();
        let plan = plan(&format!("--file {}", file.display())).unwrap();
        assert_eq!(plan.classes.iter().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["fast", "bulk"]);
        assert!(matches!(plan.classes[0].pattern, Loop::Open { process: Process::Gamma { .. }, .. }));
    }

    #[test]
    fn nonsense_is_refused_with_a_sentence() {
        for (args, part) in [
            ("--model a", "say how much: a rate"),
            ("--rate 5", "no model to ask"),
            ("--model a --rate 0", "the rate is 0: it must be above 0"),
            ("--model a --rate nan", "the rate is NaN"),
            ("--model a:0 --rate 1", "the weight must be a number above 0"),
            ("--model a --concurrency 0", "at least one client"),
            ("--model a --rate 1 --warmup 10", "nothing would be left"),
            ("--model a --rate 1 --url 192.0.2.1:80", "--allow-remote"),
            ("--class rate=x", "rate can't be \"x\""),
            ("--class model=a,concurrency=1,from_s=2", "are for a rate"),
            ("--class model=a:2,rate=1,join_every_ms=2", "have equal shares"),
            ("--class speed=1", "\"speed\" isn't a key"),
            ("--model a --rate 1 --shape x", "isn't NAME:DIMS"),
            ("--model a --rate 1 --value x:many", "isn't NAME:NUMBER"),
            ("--model a --rate 1 --grpc-connections 0", "--grpc-connections is 0"),
            ("--model a --rate 1 --batch 0", "at least one row"),
            ("--model a --rate 1 --lengths 4-9", "lengths can't be \"4-9\""),
            ("--model a --rate 1 --url https://localhost:1", "--tls-ca FILE"),
            ("--model a --rate 1 --url http://localhost:1 --tls-ca x", "isn't encrypted"),
            ("--model a --rate 1 --tls-ca /no/such/ca", "--tls-ca /no/such/ca: no certificate"),
            ("--model a --rate 1 --tls-certificate a --tls-key b", "--tls-ca"),
            ("--model a --rate 1 --tls-ca a --tls-certificate b", "--tls-key"),
            ("--model a --rate 1 --api-key-file /no/such/key", "--api-key-file /no/such/key"),
            ("--file /no/such/file", "/no/such/file can't be read"),
        ] {
            let error = plan(args).unwrap_err();
            assert!(error.contains(part), "{args}: {error}");
        }
    }
}
