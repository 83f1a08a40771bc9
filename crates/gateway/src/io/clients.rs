//! Clients, as limits see them, and what each has of the server.

use crate::config::ClientLimits;
use crate::io::ServerState;
use crate::io::fair_queue::Payer;
use crate::io::time_bucket::TimeBucket;
use crate::rights::KeyMemo;
use base::{Reason, Timestamp};
use controller::TimeAccount;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::Fault;

/// Who a client is. This alone decides with whom a connection or a request is counted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ClientIdentity {
    /// Where it comes from. Of an IPv6 address the network counts: whoever has one address there has all of them.
    Address(IpAddr),
    /// The name of the key that its requests come with, wherever they come from.
    Key(Arc<str>),
}

impl fmt::Display for ClientIdentity {
    /// As a refusal calls it: a client knows its address, or doesn't care behind a proxy, and may have several keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(_) => f.write_str("this client"),
            Self::Key(name) => write!(f, "the key {name:?}"),
        }
    }
}

impl ClientIdentity {
    /// The client at an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// What a client has of the server.
#[derive(Debug)]
pub(crate) struct ClientUse {
    who: ClientIdentity,
    number: usize,
    connections: AtomicUsize,
    requests: AtomicUsize,
    held_bytes: AtomicUsize,
    rate: Mutex<Rate>,
    /// The device time that its requests took.
    account: Arc<TimeAccount>,
    time: Mutex<TimeBucket>,
}

/// Clients are numbered as they come, in the whole process.
static CLIENTS: AtomicUsize = AtomicUsize::new(0);

impl ClientUse {
    /// One that has nothing.
    pub(crate) fn new(who: ClientIdentity) -> Self {
        Self {
            who,
            number: CLIENTS.fetch_add(1, Ordering::Relaxed),
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            rate: Mutex::default(),
            account: Arc::default(),
            time: Mutex::default(),
        }
    }
}

/// One of a client's connections: whatever is held and done for it belongs to the client. Requests that come with a key
/// belong to the key's holder, not to the client at the other end of the connection, which may be a proxy.
pub(crate) struct Owner {
    pub(crate) shared: Arc<ServerState>,
    client: Arc<ClientUse>,
    number: u64,
    /// The key that came last on it. Only its own thread locks it.
    memo: Mutex<Option<KeyMemo>>,
}

impl Owner {
    /// Who pays for its work.
    pub(crate) fn payer(&self) -> Payer {
        Payer { client: self.client.number, connection: self.number }
    }

    /// The name of the key that its requests come with, if they come with one.
    pub(crate) fn key_name(&self) -> Option<&str> {
        match &self.client.who {
            ClientIdentity::Address(_) => None,
            ClientIdentity::Key(name) => Some(name),
        }
    }

    /// The same connection, as far as it belongs to another client.
    pub(crate) fn on_behalf(&self, client: &Arc<ClientUse>) -> Arc<Self> {
        Self::new(&self.shared, Arc::clone(client), self.number)
    }

    fn new(shared: &Arc<ServerState>, client: Arc<ClientUse>, number: u64) -> Arc<Self> {
        client.connections.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { shared: Arc::clone(shared), client, number, memo: Mutex::default() })
    }

    /// The key that came last on the connection.
    pub(crate) fn memo(&self) -> MutexGuard<'_, Option<KeyMemo>> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of the client begins, unless it has too many. What is returned ends it.
    pub(crate) fn request(&self, now: Timestamp) -> Result<Option<ClientRequest>, Fault> {
        match &self.shared.config.client_limits {
            None => Ok(None),
            Some(limits) => self.limited(limits, now).map(Some),
        }
    }

    fn limited(&self, limits: &ClientLimits, now: Timestamp) -> Result<ClientRequest, Fault> {
        let others = self.client.requests.fetch_add(1, Ordering::Relaxed);
        let request = ClientRequest { client: Arc::clone(&self.client) };
        if let Some(most) = limits.requests
            && others >= most
        {
            let who = &self.client.who;
            let message = format!(
                "{who} has {most} requests in flight, the most that one client may have: wait for answers first"
            );
            return Err(Fault::new(Reason::ClientLimit, message));
        }
        if let Some(rate) = limits.rate
            && !self.client.rate.lock().unwrap_or_else(PoisonError::into_inner).take(rate, now)
        {
            let who = &self.client.who;
            let message =
                format!("{who} sends more than {rate} requests a second, the most that one client may: send fewer");
            return Err(Fault::new(Reason::ClientLimit, message));
        }
        Ok(request)
    }

    /// Refuses a request that would be computed if its client has used up its share of the time of so many devices.
    pub(crate) fn may_compute(&self, now: Timestamp, devices: impl FnOnce() -> u32) -> Result<(), Fault> {
        let Some(share) = self.device_share() else { return Ok(()) };
        let client = &*self.client;
        // This one isn't under way.
        let others = client.requests.load(Ordering::Relaxed).saturating_sub(1);
        let mut bucket = client.time.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(share * f64::from(devices().max(1)), client.account.total(), others, now).map_err(|wait| {
            let who = &client.who;
            let message = format!(
                "{who} has used its share of the devices' time, {share} of it, the most that one client may: come again in {:.1} s",
                wait.as_secs_f64()
            );
            Fault { retry_after: Some(wait), ..Fault::new(Reason::ClientLimit, message) }
        })
    }

    /// Who pays for the device time of a request, where that is limited.
    pub(crate) fn account(&self) -> Option<Arc<TimeAccount>> {
        self.device_share().map(|_| Arc::clone(&self.client.account))
    }

    fn device_share(&self) -> Option<f64> {
        self.shared.config.client_limits.as_ref().and_then(|limits| limits.device_share)
    }

    /// Counts bytes that are held for the client, or says that it has too many. They are counted in either case.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), Fault> {
        let config = &self.shared.config;
        let Some(most) = config.client_limits.as_ref().and_then(|limits| limits.held_bytes) else { return Ok(()) };
        // Never less than one request may have: it could never be taken.
        let most = most.max(config.max_body_bytes);
        let held = self.client.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        if held == 0 || held.saturating_add(bytes) <= most {
            return Ok(());
        }
        let who = &self.client.who;
        let message = format!(
            "the server holds requests and answers of {most} bytes for {who}, the most that one client may have: try again later"
        );
        Err(Fault::new(Reason::ClientLimit, message))
    }

    /// Gives back what was counted.
    pub(crate) fn give_back(&self, bytes: usize) {
        if self.shared.config.client_limits.as_ref().is_some_and(|limits| limits.held_bytes.is_some()) {
            self.client.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.client.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request of a client that is in flight until this is dropped.
pub(crate) struct ClientRequest {
    client: Arc<ClientUse>,
}

impl Drop for ClientRequest {
    fn drop(&mut self) {
        self.client.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many requests a client may begin now: as many as in a second after it sent none for one.
#[derive(Debug, Default)]
struct Rate {
    left: f64,
    seen_at: Option<Timestamp>,
}

impl Rate {
    /// Begins a request, if there is one left.
    fn take(&mut self, rate: f64, now: Timestamp) -> bool {
        let most = rate.max(1.0);
        // Requests whose bodies took long come with an arrival of before: no span fills it twice.
        let now = self.seen_at.map_or(now, |seen_at| now.max(seen_at));
        let gained = self.seen_at.map_or(most, |seen_at| now.since(seen_at).as_secs_f64() * rate);
        self.left = (self.left + gained).min(most);
        self.seen_at = Some(now);
        let takes = self.left >= 1.0;
        if takes {
            self.left -= 1.0;
        }
        takes
    }
}

/// The clients that have something of the server, and some that had. Only the acceptor asks.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    known: HashMap<ClientIdentity, Arc<ClientUse>>,
    /// When this many are known, those that have nothing are forgotten.
    forget_at: usize,
    connections: u64,
}

/// So many are known before any of them is forgotten.
const KNOWN: usize = 1024;

impl Clients {
    /// Counts a connection of a client, or says that it has too many.
    pub(crate) fn connect(&mut self, who: ClientIdentity, shared: &Arc<ServerState>) -> Result<Arc<Owner>, Fault> {
        self.connections += 1;
        let known = self.known.entry(who.clone()).or_insert_with(|| Arc::new(ClientUse::new(who)));
        let connections = known.connections.load(Ordering::Relaxed);
        let owner = Owner::new(shared, Arc::clone(known), self.connections);
        self.forget();
        let most = shared.config.max_client_connections;
        if connections < most {
            return Ok(owner);
        }
        let message =
            format!("this client has {most} connections, the most that one client may have: use fewer, or close some");
        Err(Fault::new(Reason::ClientLimit, message))
    }

    fn forget(&mut self) {
        if self.known.len() > self.forget_at {
            self.known.retain(|_, client| Arc::strong_count(client) > 1);
            self.forget_at = (2 * self.known.len()).max(KNOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use base::Duration;
    use telemetry::{Metrics, Tracer};

    impl Owner {
        /// The only connection to a server.
        pub(crate) fn alone(config: Config) -> Arc<Self> {
            Clients::default().connect(who("127.0.0.1"), &shared(config)).unwrap()
        }

        /// Another connection of the same client.
        pub(crate) fn another(other: &Self) -> Arc<Self> {
            Self::new(&other.shared, Arc::clone(&other.client), other.number + 1)
        }
    }

    fn shared(config: Config) -> Arc<ServerState> {
        let rules = crate::rights::Rules::new(&config).unwrap();
        Arc::new(ServerState::new(config, rules, Metrics::new(), Tracer::default()))
    }

    fn limited(limits: ClientLimits) -> Arc<Owner> {
        Owner::alone(Config { max_body_bytes: 10, client_limits: Some(limits), ..Config::default() })
    }

    fn who(address: &str) -> ClientIdentity {
        ClientIdentity::of(address.parse().unwrap())
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn an_address_is_a_client_and_so_is_a_network_of_ipv6() {
        assert_ne!(who("10.0.0.1"), who("10.0.0.2"));
        assert_eq!(who("10.0.0.1"), who("::ffff:10.0.0.1"));
        assert_eq!(who("2001:db8::1"), who("2001:db8::ffff:2"));
        assert_ne!(who("2001:db8::1"), who("2001:db8:0:1::1"));
    }

    #[test]
    fn one_client_does_not_get_all_connections() {
        let shared = shared(Config { max_client_connections: 2, ..Config::default() });
        let mut clients = Clients::default();
        let first = clients.connect(who("10.0.0.1"), &shared).unwrap();
        let _second = clients.connect(who("10.0.0.1"), &shared).unwrap();
        let refused = clients.connect(who("10.0.0.1"), &shared).map(|_| ()).unwrap_err();
        assert_eq!(refused.reason, Reason::ClientLimit);
        clients.connect(who("10.0.0.2"), &shared).unwrap();
        drop(first);
        clients.connect(who("10.0.0.1"), &shared).unwrap();
    }

    #[test]
    fn one_client_does_not_get_all_requests() {
        let owner = limited(ClientLimits { requests: Some(2), ..ClientLimits::default() });
        let other = Owner::another(&owner);
        let first = owner.request(at(0)).unwrap();
        let second = other.request(at(0)).unwrap();
        let refused = owner.request(at(0)).map(|_| ()).unwrap_err().to_string();
        assert!(refused.starts_with("this client has 2 requests in flight"), "{refused}");
        drop(first);
        let third = owner.request(at(0)).unwrap();
        assert!(second.is_some() && third.is_some());
    }

    #[test]
    fn a_rate_is_kept_over_time_and_bursts_are_a_second_long() {
        let owner = limited(ClientLimits { rate: Some(10.0), ..ClientLimits::default() });
        let taken = |millis| (0..100).filter(|_| owner.request(at(millis)).is_ok()).count();
        assert_eq!(taken(0), 10);
        assert_eq!(taken(50), 0);
        assert_eq!(taken(150), 1);
        assert_eq!(taken(10_000), 10);
        let refused = owner.request(at(10_000)).map(|_| ()).unwrap_err().to_string();
        assert!(refused.starts_with("this client sends more than 10 requests a second"), "{refused}");
    }

    #[test]
    fn one_client_does_not_hold_all_bytes() {
        let owner = limited(ClientLimits { held_bytes: Some(100), ..ClientLimits::default() });
        owner.hold(60).unwrap();
        Owner::another(&owner).hold(40).unwrap();
        let refused = owner.hold(1).unwrap_err().to_string();
        assert!(refused.starts_with("the server holds requests and answers of 100 bytes for this client"), "{refused}");
        owner.give_back(101);
        owner.hold(1000).unwrap();
    }

    #[test]
    fn clients_that_are_gone_are_forgotten() {
        let (mut clients, shared) = (Clients::default(), shared(Config::default()));
        let kept = clients.connect(who("10.0.0.1"), &shared).unwrap();
        for number in 0..10_000_u32 {
            let address = IpAddr::from(number.to_be_bytes());
            clients.connect(ClientIdentity::of(address), &shared).unwrap();
        }
        assert!(clients.known.len() <= KNOWN + 1, "{}", clients.known.len());
        assert!(clients.known.contains_key(&who("10.0.0.1")));
        drop(kept);
    }
}
