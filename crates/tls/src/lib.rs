//! TLS from PEM files: what a server shows and whom a client trusts. Sentences name the flag whose file can't be used.

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What HTTP/2 is called while a connection is made.
pub const HTTP2: &[u8] = b"h2";
/// What HTTP/1.1 is called then.
pub const HTTP1: &[u8] = b"http/1.1";

/// Where certificates and keys of a server are, as PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The server's certificate, and behind it those that lead to one that clients know.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Those who sign the certificates of clients; `None`: clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Where those of a client are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientTlsFiles {
    /// Those who sign the certificates of servers.
    pub ca: PathBuf,
    /// The client's own certificate and its private key, if it has one.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// How a server's connections are encrypted; which protocols it has is for the caller to add.
    pub fn read(&self) -> Result<ServerConfig, String> {
        let versions = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let versions = versions.map_err(|error| error.to_string())?;
        let clients = match &self.client_ca {
            None => versions.with_no_client_auth(),
            Some(path) => {
                let signers = Arc::new(signers("--tls-client-ca", path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(signers, provider()).build();
                versions.with_client_cert_verifier(verifier.map_err(|error| bad("--tls-client-ca", path, &error))?)
            }
        };
        let (chain, key) = own(&self.certificate, &self.key)?;
        clients.with_single_cert(chain, key).map_err(|error| unfit(&self.certificate, &self.key, &error))
    }
}

impl ClientTlsFiles {
    /// How a client's connections are encrypted; which protocols it offers is for the caller to add.
    pub fn read(&self) -> Result<ClientConfig, String> {
        let versions = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let versions = versions.map_err(|error| error.to_string())?;
        let trusting = versions.with_root_certificates(signers("--tls-ca", &self.ca)?);
        match &self.own {
            None => Ok(trusting.with_no_client_auth()),
            Some((certificate, key)) => {
                let (chain, private) = own(certificate, key)?;
                trusting.with_client_auth_cert(chain, private).map_err(|error| unfit(certificate, key, &error))
            }
        }
    }
}

/// Whose cryptography it is: docs/notes/019-who-may-do-what.md.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn bad(flag: &str, path: &Path, reason: &dyn fmt::Display) -> String {
    format!("{flag} {}: {reason}", path.display())
}

fn unfit(certificate: &Path, key: &Path, error: &rustls::Error) -> String {
    bad("--tls-certificate", certificate, &format!("it doesn't fit --tls-key {}: {error}", key.display()))
}

/// One's own certificate with those behind it, and its private key.
fn own(certificate: &Path, key: &Path) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = certificates(certificate).map_err(|reason| bad("--tls-certificate", certificate, &reason))?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| bad("--tls-key", key, &format!("no private key could be read: {error}")))?;
    Ok((chain, key))
}

/// Those who sign the certificates of others.
fn signers(flag: &str, path: &Path) -> Result<RootCertStore, String> {
    let mut signers = RootCertStore::empty();
    for certificate in certificates(path).map_err(|reason| bad(flag, path, &reason))? {
        signers.add(certificate).map_err(|error| bad(flag, path, &error))?;
    }
    Ok(signers)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| format!("no certificate could be read: {error}"))?;
    if found.is_empty() { Err("there is no certificate in it: it must be PEM".to_owned()) } else { Ok(found) }
}
