//! The way to the server: a connection, encrypted or not, and the key that requests carry.

use crate::plan::PlanError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tls::ClientTlsFiles;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// An API key. It isn't shown, wherever a plan is.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// A key as it was given, which a header must be able to carry.
    pub fn new(key: &str) -> Result<Self, PlanError> {
        let key = key.trim();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(PlanError::value("the API key is no word of plain letters: give what punctual key has shown"));
        }
        Ok(Self(key.to_owned()))
    }

    /// The key in a file.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| PlanError::value(format!("--api-key-file {}: {error}", path.display())))?;
        Self::new(&text)
    }

    /// What the header `Authorization` says.
    pub fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey")
    }
}

/// How connections are encrypted.
#[derive(Clone)]
pub struct Encryption {
    connector: TlsConnector,
    server: ServerName<'static>,
}

impl Encryption {
    /// Reads the files, for connections to a server of that name that speak that protocol.
    pub fn open(files: &ClientTlsFiles, host: &str, protocol: &[u8]) -> Result<Self, PlanError> {
        let mut config = files.read().map_err(PlanError::Value)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
        let server = ServerName::try_from(name.to_owned())
            .map_err(|error| PlanError::value(format!("{name:?} can't be in a certificate: {error}")))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), server })
    }
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encryption({:?})", self.server)
    }
}

/// A connection to the server.
#[derive(Debug)]
pub enum ServerStream {
    Plain(TcpStream),
    // In a box: it is ten times as large.
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl ServerStream {
    /// Opens one.
    pub async fn open(address: SocketAddr, encryption: Option<&Encryption>) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(match encryption {
            None => Self::Plain(stream),
            Some(Encryption { connector, server }) => {
                Self::Encrypted(Box::new(connector.connect(server.clone(), stream).await?))
            }
        })
    }
}

/// Calls the same on whichever it is.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            ServerStream::Plain(stream) => {
                let $inner = Pin::new(stream);
                $call
            }
            ServerStream::Encrypted(stream) => {
                let $inner = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_word_and_isnt_shown() {
        let key = ApiKey::new(" punctual-00\n").unwrap();
        assert_eq!((key.header().as_str(), format!("{key:?}").as_str()), ("Bearer punctual-00", "ApiKey"));
        for bad in ["", " \n", "two words", "caf\u{e9}", "a\r\nhost: b"] {
            assert!(ApiKey::new(bad).is_err(), "{bad:?}");
        }
        let missing = ApiKey::read(Path::new("/no/such/key")).unwrap_err().to_string();
        assert!(missing.starts_with("--api-key-file /no/such/key: "), "{missing}");
    }
}
