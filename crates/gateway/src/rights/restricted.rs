//! Triton's restricted APIs: calls that ask for a header with a secret value.

use super::deeds::Api;
use base::Reason;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use std::fmt;
use subtle::ConstantTimeEq;
use wire::Fault;

/// What headers of gRPC begin with, as Triton has it.
const GRPC_PREFIX: &str = "triton-grpc-protocol-";

/// Which APIs ask for which header, on one protocol.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Restrictions {
    /// By number of the [`Api`].
    headers: [Option<RequiredHeader>; Api::ALL.len()],
    /// Triton's word for APIs on the protocol.
    word: &'static str,
}

#[derive(Clone, PartialEq, Eq)]
struct RequiredHeader {
    name: HeaderName,
    value: HeaderValue,
}

impl Restrictions {
    /// Those of HTTP, each group as `API,API:HEADER=VALUE`.
    pub fn of_http(groups: &[String]) -> Result<Self, String> {
        Self::read("api", "", groups)
    }

    /// Those of gRPC, each group as `PROTOCOL,PROTOCOL:HEADER=VALUE`. `triton-grpc-protocol-` stands before the header.
    pub fn of_grpc(groups: &[String]) -> Result<Self, String> {
        Self::read("protocol", GRPC_PREFIX, groups)
    }

    fn read(word: &'static str, prefix: &str, groups: &[String]) -> Result<Self, String> {
        let mut restrictions = Self { word, ..Self::default() };
        for group in groups {
            let (apis, header) = read_group(prefix, group)?;
            for name in apis.split(',') {
                let known = Api::ALL.into_iter().find(|api| api.name() == name);
                let api = known.ok_or_else(|| {
                    let names = Api::ALL.map(Api::name).join(", ");
                    format!("unknown restricted {word} '{name}': there are {names}")
                })?;
                if restrictions.headers[api as usize].replace(header.clone()).is_some() {
                    return Err(format!("restricted {word} '{name}' can not be specified in multiple config groups"));
                }
            }
        }
        Ok(restrictions)
    }

    /// Whether an API asks for a header.
    pub(crate) fn has(&self, api: Api) -> bool {
        self.headers[api as usize].is_some()
    }

    /// Refuses a call without the header that its API asks for.
    pub(crate) fn check(&self, api: Api, headers: &HeaderMap) -> Result<(), Fault> {
        let Some(RequiredHeader { name, value }) = &self.headers[api as usize] else { return Ok(()) };
        let given = headers.get(name).map_or(&b""[..], HeaderValue::as_bytes);
        if given.ct_eq(value.as_bytes()).into() {
            return Ok(());
        }
        let word = if self.word == "api" { "API" } else { self.word };
        Err(Fault::new(Reason::Forbidden, format!("This {word} is restricted, expecting header '{name}'")))
    }
}

fn read_group<'g>(prefix: &str, group: &'g str) -> Result<(&'g str, RequiredHeader), String> {
    let parts = group.split_once(':').and_then(|(apis, header)| Some((apis, header.split_once('=')?)));
    let parts = parts.filter(|(apis, (name, value))| !apis.is_empty() && !name.is_empty() && !value.is_empty());
    let bad = || "write it as NAME,NAME:HEADER=VALUE; a header has letters, digits and dashes".to_owned();
    let (apis, (name, value)) = parts.ok_or_else(bad)?;
    let name = format!("{prefix}{name}").parse::<HeaderName>().map_err(|_| bad())?;
    let value = HeaderValue::from_str(value).map_err(|_| bad())?;
    Ok((apis, RequiredHeader { name, value }))
}

/// Values are secrets.
impl fmt::Debug for Restrictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let restricted = Api::ALL.into_iter().zip(&self.headers);
        f.debug_map().entries(restricted.filter_map(|(api, header)| Some((api, &header.as_ref()?.name)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_restricted_api_asks_for_its_header() {
        let http =
            Restrictions::of_http(&groups(&["model-repository:admin-key=a=b", "inference,metadata:K=v"])).unwrap();
        let asked = |api, name: &'static str, value: &'static str| {
            http.check(api, &HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]))
        };
        assert_eq!(asked(Api::ModelRepository, "admin-key", "a=b"), Ok(()));
        assert_eq!(asked(Api::Metadata, "k", "v"), Ok(()), "names of headers have no case");
        assert_eq!(asked(Api::Statistics, "x", "y"), Ok(()), "the others are open");
        for (name, value) in [("admin-key", "a=c"), ("admin-key", "a=bb"), ("admin-key", ""), ("k", "v")] {
            let fault = asked(Api::ModelRepository, name, value).unwrap_err();
            assert_eq!(fault.reason, Reason::Forbidden);
            assert_eq!(fault.message, "This API is restricted, expecting header 'admin-key'");
        }
        let grpc = Restrictions::of_grpc(&groups(&["inference:infer-key=infer-value"])).unwrap();
        let sentence = "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'";
        assert_eq!(grpc.check(Api::Inference, &HeaderMap::new()).unwrap_err().message, sentence);
        assert!(!format!("{http:?} {grpc:?}").contains("value"), "values are secrets");
    }

    #[test]
    fn groups_that_make_no_sense_are_sentences() {
        let refusal = |texts: &[&str]| Restrictions::of_http(&groups(texts)).unwrap_err();
        for wrong in ["", "health", "health:", "health:k", "health:=v", "health:k=", ":k=v", "health:a b=v"] {
            assert!(refusal(&[wrong]).contains("NAME,NAME:HEADER=VALUE"), "{wrong}");
        }
        assert!(refusal(&["model-reposit,health:k1=v1"]).starts_with("unknown restricted api 'model-reposit'"));
        let twice = "restricted api 'health' can not be specified in multiple config groups";
        assert_eq!(refusal(&["model-repository,health:k1=v1", "metadata,health:k2=v2"]), twice);
    }
}
