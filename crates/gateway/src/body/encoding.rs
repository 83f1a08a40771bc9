//! Compression of bodies: gzip, and deflate in its zlib form, as HTTP means it.

use base::Reason;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use std::io::{self, Read, Write};
use wire::Fault;

/// What is inflated before it is counted.
const PIECE_BYTES: u64 = 64 << 10;

/// How a body is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encoding {
    Gzip,
    Deflate,
}

impl Encoding {
    /// The name in headers.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Gzip, Self::Deflate].into_iter().find(|encoding| name.eq_ignore_ascii_case(encoding.name()))
    }

    /// What the header of that name says of a request, such as `Content-Encoding`; `None` for one that isn't
    /// compressed.
    pub(crate) fn of_request(header: &str, value: &str) -> Result<Option<Self>, Fault> {
        let name = value.trim();
        if name.is_empty() || name.eq_ignore_ascii_case("identity") {
            return Ok(None);
        }
        Self::from_name(name).map(Some).ok_or_else(|| {
            Fault::new(
                Reason::UnsupportedEncoding,
                format!("the {header} {name:?} isn't known here: use gzip, deflate or none"),
            )
        })
    }

    /// The first of the encodings that `Accept-Encoding` allows.
    pub(crate) fn for_response(header: &str) -> Option<Self> {
        header.split(',').find_map(|part| {
            let (name, quality) = part.split_once(';').unwrap_or((part, ""));
            let refused = quality.trim().strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()) == Some(0.0);
            Self::from_name(name.trim()).filter(|_| !refused)
        })
    }

    /// The body as it was before compression, if that isn't larger than `limit`. `count` is told of each piece before
    /// the next one is made, and may refuse.
    pub(crate) fn decompress(
        self,
        body: &[u8],
        limit: usize,
        count: impl FnMut(usize) -> Result<(), Fault>,
    ) -> Result<Bytes, Fault> {
        match self {
            Self::Gzip => self.read_all(MultiGzDecoder::new(body), limit, count),
            Self::Deflate => self.read_all(ZlibDecoder::new(body), limit, count),
        }
    }

    fn read_all(
        self,
        mut decoder: impl Read,
        limit: usize,
        mut count: impl FnMut(usize) -> Result<(), Fault>,
    ) -> Result<Bytes, Fault> {
        let mut bytes = Vec::new();
        loop {
            let piece = decoder.by_ref().take(PIECE_BYTES).read_to_end(&mut bytes);
            if bytes.len() > limit {
                return Err(Fault::new(
                    Reason::BodyTooLarge,
                    format!("the body is larger than {limit} bytes once it is decompressed: send less in one request"),
                ));
            }
            match piece {
                Ok(0) => return Ok(Bytes::from(bytes)),
                Ok(read) => count(read)?,
                Err(error) => return Err(Fault::bad(format!("the body is not valid {}: {error}", self.name()))),
            }
        }
    }

    /// Compresses pieces of that length, together, behind what is there. Fast rather than small: somebody waits.
    pub(crate) fn compress<'a>(
        self,
        mut out: Vec<u8>,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        length: usize,
    ) -> Vec<u8> {
        out.reserve(length / 2 + 64);
        let compressed = match self {
            Self::Gzip => write_all(GzEncoder::new(out, Compression::fast()), pieces, GzEncoder::finish),
            Self::Deflate => write_all(ZlibEncoder::new(out, Compression::fast()), pieces, ZlibEncoder::finish),
        };
        compressed.expect("a Vec takes every write")
    }
}

fn write_all<'a, W: Write>(
    mut encoder: W,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    finish: impl FnOnce(W) -> io::Result<Vec<u8>>,
) -> io::Result<Vec<u8>> {
    for piece in pieces {
        encoder.write_all(piece)?;
    }
    finish(encoder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn inflate(encoding: Encoding, body: &[u8], limit: usize) -> Result<Bytes, Fault> {
        encoding.decompress(body, limit, |_| Ok(()))
    }

    #[test]
    fn a_bomb_is_counted_while_it_is_inflated() {
        let blanks = vec![b' '; 10 << 20];
        let bomb = Encoding::Gzip.compress(Vec::new(), [&blanks[..]], blanks.len());
        let mut counted = 0;
        let refused = Encoding::Gzip.decompress(&bomb, blanks.len(), |bytes| {
            counted += bytes;
            if counted > 1 << 20 { Err(Fault::bad("enough")) } else { Ok(()) }
        });
        assert_eq!(refused.unwrap_err().to_string(), "enough");
        assert!(counted <= (1 << 20) + PIECE_BYTES as usize, "{counted}");
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let pieces = [Bytes::from(vec![b'a'; 5000]), Bytes::from_static(b"end")];
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            let compressed = encoding.compress(b"before".to_vec(), pieces.iter().map(|piece| &piece[..]), 5003);
            assert!(compressed.len() < 200);
            let compressed = compressed.strip_prefix(b"before").unwrap();
            assert_eq!(inflate(encoding, compressed, 5003).unwrap(), pieces.concat());
            let refused = inflate(encoding, compressed, 5002).unwrap_err();
            assert_eq!(refused.reason, Reason::BodyTooLarge);
            for end in 0..compressed.len() {
                assert!(inflate(encoding, &compressed[..end], 6000).is_err(), "{encoding:?} cut at {end}");
            }
        }
    }

    #[test]
    fn headers() {
        assert_eq!(Encoding::of_request("Content-Encoding", "GZIP").unwrap(), Some(Encoding::Gzip));
        assert_eq!(Encoding::of_request("grpc-encoding", "identity").unwrap(), None);
        expect![[r#"the Content-Encoding "br" isn't known here: use gzip, deflate or none"#]]
            .assert_eq(&Encoding::of_request("Content-Encoding", "br").unwrap_err().to_string());
        assert_eq!(Encoding::for_response("br, deflate;q=0.5, gzip"), Some(Encoding::Deflate));
        assert_eq!(Encoding::for_response("gzip;q=0, identity"), None);
        assert_eq!(Encoding::for_response("*"), None);
    }

    #[test]
    fn noise_is_a_sentence() {
        let said = inflate(Encoding::Gzip, b"not gzip at all", 100).unwrap_err().to_string();
        assert!(said.starts_with("the body is not valid gzip: "), "{said}");
    }
}
