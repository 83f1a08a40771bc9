//! The gate: looks at the head of a call, and lets it pass or says why not.

use super::audit::{Author, RefusedCalls, write_line};
use super::browsers::Browsers;
use super::deeds::{Api, Deed};
use super::files::WatchedFiles;
use super::keys::{Caller, Keys, KeysView, Right};
use super::restricted::Restrictions;
use crate::Config;
use crate::io::accept::Protocol;
use crate::io::clients::Owner;
use crate::io::connection::Activity;
use base::{Reason, Timestamp};
use hyper::Uri;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::Fault;

/// What is told to those who would change what only this machine's own users may.
const NOBODY_NAMED: &str = "only this machine's own users may change this, and others reach the server: start it with --api-keys FILE to say who \
                            may, or restrict it with --http-restricted-api and --grpc-restricted-protocol";

/// What is known of a call before its body is read.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    /// On which connection.
    pub(crate) connection: Option<AskedOn<'a>>,
}

/// The connection that a call came on.
#[derive(Clone, Copy)]
pub(crate) struct AskedOn<'a> {
    pub(crate) activity: &'a Activity,
    pub(crate) owner: &'a Arc<Owner>,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(protocol: Protocol, head: &'a Parts, connection: Option<AskedOn<'a>>) -> Self {
        Self { protocol, uri: &head.uri, headers: &head.headers, connection }
    }

    /// From where, as far as that is known.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.connection.and_then(|on| on.activity.peer())
    }

    /// Whose connection it is.
    fn owner(&self) -> Option<&'a Arc<Owner>> {
        self.connection.map(|on| on.owner)
    }
}

/// What holds for all calls.
pub(crate) struct Rules {
    restricted_http: Restrictions,
    restricted_grpc: Restrictions,
    /// Who may do what, if that is asked.
    keys: Option<Arc<Keys>>,
    /// Whether only this machine's own users reach the server.
    local: bool,
    pub(crate) browsers: Browsers,
}

impl Rules {
    /// Reads the keys, if there are some; a sentence says why they can't be.
    pub(crate) fn new(config: &Config) -> Result<Self, String> {
        let keys = config.api_keys.as_deref().map(Keys::open).transpose()?;
        Ok(Self {
            restricted_http: config.restricted_http.clone(),
            restricted_grpc: config.restricted_grpc.clone(),
            keys: keys.map(Arc::new),
            local: config.is_local(),
            browsers: Browsers::new(config),
        })
    }

    /// The files behind them.
    pub(crate) fn files(&self) -> Vec<WatchedFiles> {
        let keys = self.keys.iter().map(|keys| {
            let read = Arc::clone(keys);
            WatchedFiles::new("the API keys", vec![keys.path().to_owned()], move || read.read_again())
        });
        keys.collect()
    }

    fn restricted(&self, protocol: Protocol) -> &Restrictions {
        match protocol {
            Protocol::Http => &self.restricted_http,
            Protocol::Grpc => &self.restricted_grpc,
        }
    }
}

/// One thread's gate.
pub(crate) struct Gate {
    pub(crate) rules: Arc<Rules>,
    keys: Option<KeysView>,
    /// Whether inference asks for anything, over HTTP and over gRPC: where it doesn't, this is all that it costs.
    infer_guarded: [bool; 2],
    refused: RefusedCalls,
}

impl Gate {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        let keys = rules.keys.as_ref().map(|keys| KeysView::new(Arc::clone(keys)));
        let guarded = |protocol| keys.is_some() || rules.restricted(protocol).has(Api::Inference);
        Self {
            infer_guarded: [Protocol::Http, Protocol::Grpc].map(guarded),
            keys,
            rules,
            refused: RefusedCalls::default(),
        }
    }

    /// Lets a call for inference pass, or says why not. Which models the caller may ask is another question.
    pub(crate) fn admit_infer(&self, asked: Asked<'_>) -> Result<Caller, Fault> {
        if self.infer_guarded[asked.protocol as usize] { self.admit(asked, Deed::Infer) } else { Ok(Caller::Anybody) }
    }

    /// Refuses whoever may not ask that model.
    pub(crate) fn may_ask(&self, caller: &Caller, model: &str) -> Result<(), Fault> {
        match (caller, &self.keys) {
            (Caller::Holder(holder), Some(keys)) => keys.may_ask(holder, model),
            _ => Ok(()),
        }
    }

    /// Lets a call pass, and says who it is; or says why not.
    pub(crate) fn admit(&self, asked: Asked<'_>, deed: Deed) -> Result<Caller, Fault> {
        let rules = &*self.rules;
        if deed.changes() {
            rules.browsers.may_change(asked)?;
        }
        let restricted = rules.restricted(asked.protocol);
        restricted.check(deed.api(), asked.headers)?;
        match (&self.keys, deed.right()) {
            (Some(keys), Some(right)) => keys.admit(right, asked.headers, asked.owner()),
            _ if deed.is_for_named() && !rules.local && self.keys.is_none() && !restricted.has(deed.api()) => {
                Err(Fault::new(Reason::Forbidden, NOBODY_NAMED))
            }
            _ => Ok(Caller::Anybody),
        }
    }

    /// Who asks, whatever their key is good for.
    pub(crate) fn caller(&self, asked: Asked<'_>) -> Caller {
        self.keys.as_ref().and_then(|keys| keys.holder(asked.headers, asked.owner())).unwrap_or_default()
    }

    /// Notes a call that would have changed something and was refused. Those of keys are all noted.
    pub(crate) fn note_refused(&self, now: Timestamp, asked: Asked<'_>, reason: Reason) {
        let (path, peer) = (asked.uri.path(), asked.peer());
        match self.caller(asked) {
            Caller::Anybody => self.refused.add(now, peer, path, reason),
            caller => write_line(&Author { caller, peer }, path, Some(reason), 0),
        }
    }

    /// Refuses whoever may not read metrics.
    pub(crate) fn may_read(&self, headers: &HeaderMap) -> Result<(), Fault> {
        self.keys.as_ref().map_or(Ok(()), |keys| keys.admit(Right::Read, headers, None).map(drop))
    }
}
