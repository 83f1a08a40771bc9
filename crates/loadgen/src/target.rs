//! The requests of a run, prepared ahead, and the ways to send them.

use crate::LoadError;
use crate::connect::Encryption;
use crate::grpc::{GrpcClient, GrpcEndpoint, GrpcRequest};
use crate::http::{HttpConnection, HttpRequest};
use crate::inputs::{self, InputSpec};
use crate::options::Protocol;
use crate::plan::{ClassPlan, LoadPlan};
use crate::stats::RequestOutcome;
use base::DataType;
use serde::Deserialize;
use std::collections::HashMap;
use std::rc::Rc;
use workload::Random;

/// A request, ready to be sent any number of times.
#[derive(Clone, Debug)]
pub enum Target {
    Http(HttpRequest),
    Grpc(GrpcRequest),
}

/// A way to send requests, one at a time.
#[derive(Debug)]
pub enum Transport {
    Http(HttpConnection),
    Grpc(GrpcClient),
}

impl Transport {
    /// Sends a request and says what became of it.
    pub async fn ask(&mut self, target: &Target) -> RequestOutcome {
        match (self, target) {
            (Self::Http(connection), Target::Http(request)) => connection.ask(request).await,
            (Self::Grpc(client), Target::Grpc(request)) => client.ask(request).await,
            (Self::Http(_), Target::Grpc(_)) | (Self::Grpc(_), Target::Http(_)) => {
                unreachable!("one run has one protocol")
            }
        }
    }

    /// Opens the connection ahead, if there is one to open. A failure shows again with the first request.
    pub async fn warm_up(&mut self) {
        if let Self::Http(connection) = self {
            let _ = connection.connect().await;
        }
    }
}

/// Makes transports.
#[derive(Debug)]
pub struct Transports {
    address: std::net::SocketAddr,
    encryption: Option<Encryption>,
    clients: Vec<GrpcClient>,
    next: std::cell::Cell<usize>,
}

impl Transports {
    /// Connects where connections are shared.
    pub async fn open(plan: &LoadPlan) -> Result<Self, LoadError> {
        let mut clients = Vec::new();
        if plan.protocol == Protocol::Grpc {
            let server = Rc::new(grpc_endpoint(plan));
            for _ in 0..plan.grpc_connections {
                clients.push(GrpcClient::connect(&server).await.map_err(LoadError::Target)?);
            }
        }
        Ok(Self { address: plan.address, encryption: plan.encryption.clone(), clients, next: Default::default() })
    }

    /// One more.
    pub fn make(&self) -> Transport {
        if self.clients.is_empty() {
            return Transport::Http(HttpConnection::new(self.address, self.encryption.clone()));
        }
        self.next.set((self.next.get() + 1) % self.clients.len());
        Transport::Grpc(self.clients[self.next.get()].clone())
    }

    /// The requests of each class: for each of its models, one behind another, as many as it has lengths.
    pub async fn targets(&self, plan: &LoadPlan) -> Result<Vec<Vec<Target>>, LoadError> {
        let mut transport = self.make();
        let mut known: HashMap<&str, Vec<InputSpec>> = HashMap::new();
        let mut all = Vec::new();
        for (index, class) in plan.classes.iter().enumerate() {
            // The same lengths for all models.
            let mut random = Random::new(plan.seed, 1 + index as u64);
            let lengths: Vec<i64> = match class.lengths {
                None => vec![1],
                Some(lengths) => (0..lengths.variants()).map(|variant| lengths.of(variant, &mut random)).collect(),
            };
            let mut bodies = HashMap::new();
            let mut targets = Vec::with_capacity(class.models.len());
            for (model, _) in &class.models {
                if !known.contains_key(model.as_str()) {
                    let specs = ask_metadata(&mut transport, plan, model).await;
                    known.insert(model, specs.map_err(LoadError::Target)?);
                }
                for &length in &lengths {
                    let target = make_target(plan, class, model, (&known[model.as_str()], length), &mut bodies);
                    targets.push(target.map_err(|reason| LoadError::Target(format!("model {model:?}: {reason}")))?);
                }
            }
            all.push(targets);
        }
        Ok(all)
    }
}

fn grpc_endpoint(plan: &LoadPlan) -> GrpcEndpoint {
    GrpcEndpoint { address: plan.address, encryption: plan.encryption.clone(), key: plan.key.clone() }
}

/// Models that take the same inputs share one body: hundreds of models must not mean hundreds of copies.
type Bodies = HashMap<(Vec<InputSpec>, i64), (bytes::Bytes, Option<usize>)>;

fn make_target(
    plan: &LoadPlan,
    class: &ClassPlan,
    model: &str,
    (specs, length): (&[InputSpec], i64),
    bodies: &mut Bodies,
) -> Result<Target, String> {
    let make = || inputs::make_inputs(specs, class.batch, length, plan);
    if plan.protocol == Protocol::Grpc {
        return Ok(Target::Grpc(GrpcRequest::infer(
            &grpc_endpoint(plan),
            &inputs::grpc_request(model, &make()?, class),
        )));
    }
    let key = (specs.to_vec(), length);
    let (body, header) = match bodies.get(&key) {
        Some(body) => body.clone(),
        None => {
            let made = make()?;
            let body = match plan.protocol {
                Protocol::HttpJson => (inputs::json_body(&made, class)?, None),
                Protocol::HttpBinary | Protocol::Grpc => {
                    let (body, header) = inputs::binary_body(&made, class);
                    (body, Some(header))
                }
            };
            bodies.insert(key, body.clone());
            body
        }
    };
    Ok(Target::Http(HttpRequest::infer(&plan.host, plan.key.as_ref(), model, body, header)))
}

async fn ask_metadata(transport: &mut Transport, plan: &LoadPlan, model: &str) -> Result<Vec<InputSpec>, String> {
    #[derive(Deserialize)]
    struct Metadata {
        inputs: Vec<Tensor>,
    }
    #[derive(Deserialize)]
    struct Tensor {
        name: String,
        datatype: String,
        shape: Vec<i64>,
    }
    match transport {
        Transport::Grpc(client) => {
            client.metadata(model).await.map_err(|reason| format!("model {model:?} can't be asked: {reason}"))
        }
        Transport::Http(connection) => {
            let request = HttpRequest::metadata(&plan.host, plan.key.as_ref(), model);
            let answer = connection
                .exchange(&request, true)
                .await
                .map_err(|error| format!("{} doesn't answer HTTP ({error}): is the server up?", plan.host))?;
            if answer.status != 200 {
                let body = String::from_utf8_lossy(answer.body);
                return Err(format!("model {model:?} can't be asked: HTTP {}: {body}", answer.status));
            }
            let metadata: Metadata = serde_json::from_slice(answer.body)
                .map_err(|error| format!("the server's description of model {model:?} can't be read: {error}"))?;
            metadata.inputs.into_iter().map(|t| input_spec(t.name, &t.datatype, t.shape)).collect()
        }
    }
}

/// An input as described by a server.
pub fn input_spec(name: String, datatype: &str, shape: Vec<i64>) -> Result<InputSpec, String> {
    let datatype = DataType::from_name(datatype)
        .ok_or_else(|| format!("input {name:?} has the type {datatype:?}, which isn't one of the protocol's"))?;
    Ok(InputSpec { name, datatype, shape })
}
