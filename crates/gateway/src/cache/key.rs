//! What makes two requests the same: the model that is asked, as it was brought up, and everything in its inputs.

use controller::Tensor;
use ring::rand::{SecureRandom, SystemRandom};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::io;

/// Under what an answer is kept. Two requests have the same key only if the same model would be given the same inputs:
/// 256 bits of BLAKE3 are never equal by chance, nor can anybody make them so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AnswerKey {
    /// The number of the model: a version whose files were changed has another.
    pub(crate) kept_under: u64,
    digest: [u8; blake3::OUT_LEN],
}

impl AnswerKey {
    /// Which of so many tables it belongs into: by other bytes than those that its place in there depends on.
    pub(crate) fn table(&self, tables: usize) -> usize {
        usize::from(self.digest[blake3::OUT_LEN - 1]) % tables
    }
}

impl Hash for AnswerKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Any eight bytes of it are as good as a hash.
        let [first, ..] = self.digest.as_chunks::<8>().0 else { return };
        state.write_u64(u64::from_le_bytes(*first));
    }
}

/// Tables that are asked for keys need no further hash.
pub(crate) type KeyHash = BuildHasherDefault<DigestHasher>;

/// Hands on what a key says.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// Makes keys. Its secret is new with each start: nobody can find requests that meet in one place of a table.
pub(crate) struct KeyMaker {
    secret: [u8; blake3::KEY_LEN],
}

impl KeyMaker {
    pub(crate) fn new() -> io::Result<Self> {
        let mut secret = [0; blake3::KEY_LEN];
        SystemRandom::new().fill(&mut secret).map_err(|_| io::Error::other("the system gives no random numbers"))?;
        Ok(Self { secret })
    }

    /// The key of a request whose inputs fit the model and stand in its order: an input's place says its name and its
    /// type. How they came, in which order, and what is wanted of the outputs makes no difference.
    pub(crate) fn key(&self, kept_under: u64, inputs: &[Tensor]) -> AnswerKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        for Tensor { datatype, shape, data } in inputs {
            // Lengths first: no input can look like another with a part of its neighbour.
            let mut head = Vec::with_capacity(24 + 8 * shape.len());
            head.extend_from_slice(datatype.name().as_bytes());
            head.push(0);
            head.extend_from_slice(&(shape.len() as u64).to_le_bytes());
            shape.iter().for_each(|dim| head.extend_from_slice(&dim.to_le_bytes()));
            head.extend_from_slice(&(data.len() as u64).to_le_bytes());
            hasher.update(&head);
            hasher.update(data);
        }
        AnswerKey { kept_under, digest: *hasher.finalize().as_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;

    fn tensor(datatype: DataType, shape: &[i64], data: &[u8]) -> Tensor {
        Tensor { datatype, shape: shape.into(), data: data.to_vec().into() }
    }

    #[test]
    fn whatever_changes_the_answer_changes_the_key() {
        let maker = KeyMaker::new().unwrap();
        let (a, b) = (tensor(DataType::Uint8, &[1, 2], b"ab"), tensor(DataType::Uint8, &[1], b"c"));
        let key = |kept_under, inputs: &[&Tensor]| {
            maker.key(kept_under, &inputs.iter().map(|&input| input.clone()).collect::<Vec<_>>())
        };
        let mut keys = vec![
            key(0, &[&a, &b]),
            key(1, &[&a, &b]),
            key(0, &[&b, &a]),
            key(0, &[&a]),
            key(0, &[&tensor(DataType::Int8, &[1, 2], b"ab"), &b]),
            key(0, &[&tensor(DataType::Uint8, &[2, 1], b"ab"), &b]),
            key(0, &[&tensor(DataType::Uint8, &[1, 2], b"aB"), &b]),
            key(0, &[&tensor(DataType::Uint8, &[1, 3], b"abc"), &tensor(DataType::Uint8, &[0], b"")]),
        ];
        assert_eq!(keys[0], key(0, &[&a.clone(), &b]));
        let all = keys.len();
        keys.sort_by_key(|key| (key.kept_under, key.digest));
        keys.dedup();
        assert_eq!(keys.len(), all);
        assert_ne!(KeyMaker::new().unwrap().key(0, &[a.clone(), b]).digest, keys[0].digest, "each start has its own");
    }
}
