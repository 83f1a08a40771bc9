//! TLS on every port: certificates from files, which are read again when they change.

use rustls::ServerConfig;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tls::{HTTP1, HTTP2, TlsFiles};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A port, by what is spoken there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsPort {
    Http,
    Grpc,
    Metrics,
}

impl TlsPort {
    const ALL: [Self; 3] = [Self::Http, Self::Grpc, Self::Metrics];

    /// The protocols that it has, the best first.
    fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http => vec![HTTP2.to_vec(), HTTP1.to_vec()],
            Self::Grpc => vec![HTTP2.to_vec()],
            Self::Metrics => vec![HTTP1.to_vec()],
        }
    }
}

/// How connections are encrypted, by number of the [`TlsPort`].
type PortConfigs = [Arc<ServerConfig>; TlsPort::ALL.len()];

/// How connections are encrypted.
pub(crate) struct Tls {
    files: TlsFiles,
    /// How long a client may take to agree on it.
    patience: Duration,
    /// Looked at once for each connection.
    configs: RwLock<PortConfigs>,
}

impl Tls {
    /// Reads the files; a sentence says which can't be used.
    pub(crate) fn open(files: &TlsFiles, patience: Duration) -> Result<Self, String> {
        Ok(Self { files: files.clone(), patience, configs: RwLock::new(read(files)?) })
    }

    /// The files behind it.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let TlsFiles { certificate, key, client_ca } = &self.files;
        [certificate, key].into_iter().chain(client_ca).cloned().collect()
    }

    /// Reads the files again, for connections from now on. What can't be used changes nothing.
    pub(crate) fn read_again(&self) -> Result<(), String> {
        let new = read(&self.files)?;
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Agrees with a client on how the connection is encrypted; `None` if that can't be done, or takes too long.
    pub(crate) async fn accept<I: AsyncRead + AsyncWrite + Unpin>(&self, port: TlsPort, io: I) -> Option<TlsStream<I>> {
        let config = Arc::clone(&self.configs.read().unwrap_or_else(PoisonError::into_inner)[port as usize]);
        let agreed = tokio::time::timeout(self.patience, TlsAcceptor::from(config).accept(io)).await;
        // Why a client can't is its affair, as is how a connection ends.
        agreed.ok()?.ok()
    }
}

/// Whether HTTP/2 was agreed on.
pub(crate) fn agreed_on_http2<I>(stream: &TlsStream<I>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(HTTP2)
}

fn read(files: &TlsFiles) -> Result<PortConfigs, String> {
    let config = files.read()?;
    Ok(TlsPort::ALL.map(|port| {
        let mut config = config.clone();
        config.alpn_protocols = port.protocols();
        Arc::new(config)
    }))
}
