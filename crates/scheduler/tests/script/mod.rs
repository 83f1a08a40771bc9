//! Scenarios as text: events in, commands out.
//!
//! A line is `TIME EVENT ARGUMENTS`, times in milliseconds. `device PAGES` and `model PAGES ALPHA BETA LOAD [SIZE...]`
//! take the next number (`doubted` instead of `model`: its profile may be wrong); `ask MODEL DEADLINE [ROWS [PRIORITY
//! [APPLICATION]]]` too (`-` for no deadline); `measure MODEL APPLICATION SPAN...` says what requests take alone; `done
//! ACTION [TIME]` (when it ended, if that was before), `late ACTION`, `broken ACTION`, `failed ACTION` report; `cancel
//! REQUEST`, `pipeline STAGE...` makes one of stages `MODEL` or `MODEL>NEXT,NEXT` (`~` behind it: calls vary), `stage
//! PIPELINE STAGE DEADLINE` asks; `lose DEVICE`, `remove MODEL`, `expect MODEL`, `allot DEVICE:MODEL,MODEL...`
//! (`DEVICE:-` nobody, `DEVICE:*` everybody), `borrow DEVICE SPAN`, `return DEVICE`, `wake` (at the scheduler's own
//! wish).

#![allow(clippy::unwrap_used, reason = "a script that can't be read is a broken test")]

use base::{
    ActionId, ApplicationId, DeviceId, Duration, LatencyProfile, ModelId, PipelineId, RequestId, Timestamp, Transfers,
};
use expect_test::Expect;
use scheduler::{
    ActionStatus, Allotment, Command, Config, DeviceSpec, Event, Measured, ModelSpec, Outcome, PipelineSpec,
    PipelineStage, Rejection, Report, Request, Sample, Scheduler, StageSpec,
};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Runs a script and compares its log.
pub fn check(config: Config, script: &str, expected: Expect) {
    let mut world = World { scheduler: Scheduler::new(config), ..World::default() };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        world.line(line);
    }
    expected.assert_eq(&world.log);
}

struct World {
    scheduler: Scheduler,
    log: String,
    devices: u32,
    models: u32,
    requests: u32,
    pipelines: Vec<PipelineSpec>,
    started: BTreeMap<u64, Timestamp>,
}

impl Default for World {
    fn default() -> Self {
        let scheduler = Scheduler::new(Config::clockwork());
        let (log, pipelines, started) = (String::new(), Vec::new(), BTreeMap::new());
        Self { scheduler, log, devices: 0, models: 0, requests: 0, pipelines, started }
    }
}

fn sizes(words: &[&str]) -> Vec<u32> {
    if words.is_empty() { vec![1, 2, 4] } else { words.iter().map(|word| word.parse().unwrap()).collect() }
}

fn at(text: &str) -> Timestamp {
    if text == "-" { Timestamp::NEVER } else { Timestamp::ZERO + Duration::from_millis_f64(text.parse().unwrap()) }
}

fn millis(timestamp: Timestamp) -> String {
    if timestamp == Timestamp::NEVER { "-".into() } else { format!("{}", timestamp.as_nanos() as f64 / 1e6) }
}

impl World {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| words[index].parse::<u32>().unwrap();
        let now = at(words[0]);
        let span = |index: usize| Duration::from_millis_f64(words[index].parse().unwrap());
        let event = match words[1] {
            "device" => {
                self.devices += 1;
                Event::DeviceAdded(DeviceSpec { device: DeviceId(self.devices - 1), pages: number(2), kind: 0 })
            }
            word @ ("model" | "doubted") => {
                self.models += 1;
                let profile = LatencyProfile::linear(span(3), span(4), &sizes(&words[6..]), span(5)).unwrap();
                Event::ModelAdded(ModelSpec {
                    model: ModelId(self.models - 1),
                    pages: number(2),
                    profile: if word == "doubted" { profile.doubted() } else { profile },
                    elsewhere: Vec::new(),
                    objective: None,
                    fixed: Duration::ZERO,
                    fairness: scheduler::Fairness::default(),
                })
            }
            "ask" => {
                self.requests += 1;
                Event::Submitted(Request {
                    id: RequestId { slot: self.requests - 1, generation: 0 },
                    model: ModelId(number(2)),
                    deadline_at: at(words[3]),
                    rows: words.get(4).map_or(1, |rows| rows.parse().unwrap()),
                    priority: words.get(5).map_or(0, |priority| priority.parse().unwrap()),
                    application: ApplicationId(words.get(6).map_or(0, |name| name.parse().unwrap())),
                    size: None,
                })
            }
            "pipeline" => {
                let stage = |word: &&str| {
                    let varies = word.ends_with('~');
                    let word = word.trim_end_matches('~');
                    let (model, next) = word.split_once('>').unwrap_or((word, ""));
                    let next = next.split(',').filter(|word| !word.is_empty());
                    StageSpec {
                        model: ModelId(model.parse().unwrap()),
                        next: next.map(|word| word.parse().unwrap()).collect(),
                        calls: 1.0,
                        varies,
                        gap: Duration::ZERO,
                    }
                };
                let pipeline = PipelineId(self.pipelines.len() as u32);
                let spec = PipelineSpec { pipeline, stages: words[2..].iter().map(stage).collect() };
                self.pipelines.push(spec.clone());
                Event::PipelineAdded(spec)
            }
            "stage" => {
                self.requests += 1;
                let stage = PipelineStage { pipeline: PipelineId(number(2)), stage: number(3) };
                let request = Request {
                    id: RequestId { slot: self.requests - 1, generation: 0 },
                    model: self.pipelines[stage.pipeline.index()].stages[stage.stage as usize].model,
                    deadline_at: at(words[4]),
                    rows: 1,
                    priority: 0,
                    application: ApplicationId::DEFAULT,
                    size: None,
                };
                Event::StageSubmitted(request, stage)
            }
            "measure" => {
                let sample =
                    |word: &&str| Sample { size: None, alone: Duration::from_millis_f64(word.parse().unwrap()) };
                let (model, application) = (ModelId(number(2)), ApplicationId(number(3)));
                // A single request says little: each was measured a hundred times.
                let samples: Vec<Sample> = words[4..].iter().map(sample).collect();
                Event::Measured(Measured { model, application, samples: samples.repeat(100) })
            }
            "done" => {
                let action = u64::from(number(2));
                let started_at = self.started[&action];
                let ended_at = words.get(3).map_or(now, |word| at(word));
                let status = ActionStatus::Done { started_at, ended_at, transfers: Transfers::default() };
                Event::Reported(Report { action: ActionId(action), status })
            }
            "late" => Event::Reported(Report { action: ActionId(u64::from(number(2))), status: ActionStatus::TooLate }),
            "failed" => {
                Event::Reported(Report { action: ActionId(u64::from(number(2))), status: ActionStatus::Failed })
            }
            "broken" => {
                Event::Reported(Report { action: ActionId(u64::from(number(2))), status: ActionStatus::Preempted })
            }
            "cancel" => Event::Cancelled(RequestId { slot: number(2), generation: 0 }),
            "lose" => Event::DeviceLost(DeviceId(number(2))),
            "remove" => Event::ModelRemoved(ModelId(number(2))),
            "expect" => Event::Expected(ModelId(number(2))),
            "allot" => {
                let model = |word: &str| ModelId(word.parse().unwrap());
                let models = |word: &str| match word {
                    "*" => None,
                    "-" => Some(Vec::new()),
                    some => Some(some.split(',').map(model).collect()),
                };
                let allotment = |word: &&str| {
                    let (device, allotted) = word.split_once(':').unwrap();
                    Allotment { device: DeviceId(device.parse().unwrap()), models: models(allotted) }
                };
                Event::Allotted(words[2..].iter().map(allotment).collect())
            }
            "borrow" => Event::Borrowed { device: DeviceId(number(2)), action: ActionId::DRIVERS, expected: span(3) },
            "return" => Event::Returned { device: DeviceId(number(2)), action: ActionId::DRIVERS },
            "wake" => {
                let (wakeup, reason) = self.scheduler.next_wakeup().expect("the scheduler wants to be woken");
                assert!(wakeup <= now, "the scheduler wants to sleep until {wakeup}");
                writeln!(self.log, "{:<5} woken for {reason:?}", words[0]).unwrap();
                Event::WokeUp
            }
            other => panic!("unknown event {other}"),
        };
        let mut commands = Vec::new();
        self.scheduler.step(now, event, &mut commands);
        for command in commands {
            self.show(words[0], now, &command);
        }
    }

    fn show(&mut self, when: &str, now: Timestamp, command: &Command) {
        let text = match command {
            Command::Execute(e) => {
                let begins = e.window.earliest.max(now);
                self.started.insert(e.action.0, begins);
                let slots: Vec<String> = e.requests.iter().map(|r| r.slot.to_string()).collect();
                let (model, device, latest) = (e.model, e.device, millis(e.window.latest));
                format!("{} exec {model} on {device} batch {} [{}] by {latest}", e.action, e.batch, slots.join(" "))
            }
            Command::Load(load) => {
                self.started.insert(load.action.0, now);
                let latest = millis(load.window.latest);
                format!("{} load {} on {} by {latest}", load.action, load.model, load.device)
            }
            Command::Unload(unload) => format!("   unload {} on {}", unload.model, unload.device),
            Command::Preempt { device, action } => format!("   break off {} on {device}", action.0),
            Command::Finish { request, outcome } => format!("   request {}: {}", request.slot, name(outcome)),
        };
        writeln!(self.log, "{when:<5} {text}").unwrap();
    }
}

fn name(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Rejected(Rejection::DeadlineUnreachable { earliest_at }) => {
            format!("unreachable before {}", millis(*earliest_at))
        }
        Outcome::Rejected(Rejection::Overloaded { earliest_at }) => {
            format!("overloaded until {}", millis(*earliest_at))
        }
        other => format!("{other:?}"),
    }
}
