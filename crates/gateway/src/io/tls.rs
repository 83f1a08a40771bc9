//! TLS on every port: certificates from files, which are read again when they change.

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What HTTP/2 is called while a connection is made.
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Where certificates and keys are, as PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The server's certificate, and behind it those that lead to one that clients know.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Those who sign the certificates of clients; `None`: clients need none.
    pub client_ca: Option<PathBuf>,
}

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
    let config = config(files)?;
    Ok(TlsPort::ALL.map(|port| {
        let mut config = config.clone();
        config.alpn_protocols = port.protocols();
        Arc::new(config)
    }))
}

fn config(files: &TlsFiles) -> Result<ServerConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let versions = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| error.to_string())?;
    let clients = match &files.client_ca {
        None => versions.with_no_client_auth(),
        Some(path) => {
            let bad = |reason: &dyn fmt::Display| format!("--tls-client-ca {}: {reason}", path.display());
            let mut signers = RootCertStore::empty();
            for certificate in certificates(path).map_err(|reason| bad(&reason))? {
                signers.add(certificate).map_err(|error| bad(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(signers), provider).build();
            versions.with_client_cert_verifier(verifier.map_err(|error| bad(&error))?)
        }
    };
    let bad = |path: &Path, reason: &dyn fmt::Display| format!("--tls-certificate {}: {reason}", path.display());
    let chain = certificates(&files.certificate).map_err(|reason| bad(&files.certificate, &reason))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| format!("--tls-key {}: no private key could be read: {error}", files.key.display()))?;
    clients
        .with_single_cert(chain, key)
        .map_err(|error| bad(&files.certificate, &format!("it doesn't fit --tls-key {}: {error}", files.key.display())))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| format!("no certificate could be read: {error}"))?;
    if found.is_empty() { Err("there is no certificate in it: it must be PEM".to_owned()) } else { Ok(found) }
}
