//! API keys: who holds which, and what the holder may do.
//!
//! A file has a line for each key, with a name, the key's SHA-256 and rights:
//!
//! ```text
//!  # who     the key's hash         what for
//!  web       sha256:9f86d081884c…   infer=resnet* infer=bert
//!  ops       sha256:60303ae22b99…   infer read control operate
//! ```
//!
//! Keys have 256 random bits. Nobody finds such a key by trying, however fast the hash, so a slow one, which is made
//! for words that people remember, would only make every request slow. Whoever reads the file learns no key.

use crate::io::clients::{ClientIdentity, ClientUse, Owner};
use base::Reason;
use hyper::header::{AUTHORIZATION, HeaderMap};
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use subtle::ConstantTimeEq;
use wire::Fault;

/// What stands before a key, so that whoever finds one somewhere knows what it opens.
const KEY_PREFIX: &str = "punctual-";
const HASH_PREFIX: &str = "sha256:";
const KEY_BYTES: usize = 32;

/// What stands for a key.
pub(crate) type KeyHash = [u8; digest::SHA256_OUTPUT_LEN];

/// What a key's holder may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Right {
    /// Ask models, all of them or some.
    Infer,
    /// See what there is: metadata, configurations, statistics, settings, metrics.
    Read,
    /// Load and unload models, divide GPUs, register shared memory.
    Control,
    /// Change what is logged and traced.
    Operate,
}

impl Right {
    const ALL: [Self; 4] = [Self::Infer, Self::Read, Self::Control, Self::Operate];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Infer => "infer",
            Self::Read => "read",
            Self::Control => "control",
            Self::Operate => "operate",
        }
    }
}

/// The rights of a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Rights {
    /// Patterns of the models that may be asked.
    models: Vec<String>,
    /// By number of the [`Right`].
    granted: [bool; Right::ALL.len()],
}

impl Rights {
    fn read<'w>(words: impl Iterator<Item = &'w str>) -> Result<Self, String> {
        let mut rights = Self::default();
        for word in words {
            let (name, pattern) = word.split_once('=').map_or((word, None), |(name, pattern)| (name, Some(pattern)));
            let right = Right::ALL.into_iter().find(|right| right.name() == name);
            match (right, pattern) {
                (Some(Right::Infer), pattern) if pattern != Some("") => {
                    rights.models.push(pattern.unwrap_or("*").to_owned());
                }
                (Some(_), None) => {}
                _ => {
                    return Err(format!(
                        "{word:?} is no right: there are infer, infer=MODEL, read, control and operate"
                    ));
                }
            }
            rights.granted[right.map_or(0, |right| right as usize)] = true;
        }
        if rights == Self::default() {
            return Err("it has no right: add infer, infer=MODEL, read, control or operate".to_owned());
        }
        Ok(rights)
    }
}

/// Whether a name fits a pattern, in which `*` stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The earliest place leaves the most for what follows.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[derive(Debug)]
struct Key {
    name: Arc<str>,
    hash: KeyHash,
    rights: Rights,
    /// What its holder has of the server. Keys of one name are one client: a new one and that which it replaces.
    client: Arc<ClientUse>,
}

/// The keys of a file.
#[derive(Debug, Default)]
pub(crate) struct KeySet {
    keys: Vec<Arc<Key>>,
}

impl KeySet {
    /// Reads them. Whoever had a key of the same name before is the same client.
    fn read(text: &str, before: &Self) -> Result<Self, String> {
        let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let mut set = Self::default();
        for (number, line) in lines {
            let client_of = |name: &str| set.client(name).or_else(|| before.client(name));
            let key = read_line(line, client_of).map_err(|reason| format!("line {number}: {reason}"))?;
            set.keys.push(Arc::new(key));
        }
        match set.keys.is_empty() {
            true => Err("there is no key in it: make one with punctual key".to_owned()),
            false => Ok(set),
        }
    }

    /// The client whose keys have that name.
    fn client(&self, name: &str) -> Option<Arc<ClientUse>> {
        self.keys.iter().find(|key| *key.name == *name).map(|key| Arc::clone(&key.client))
    }

    /// The key with that hash. Looks at all of them, however early it is found, so that nobody learns from the time.
    fn find(&self, hash: &KeyHash) -> Option<&Arc<Key>> {
        self.keys.iter().fold(None, |found, key| if key.hash.ct_eq(hash).into() { Some(key) } else { found })
    }
}

fn read_line(line: &str, client_of: impl Fn(&str) -> Option<Arc<ClientUse>>) -> Result<Key, String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(hash)) = (words.next(), words.next()) else {
        return Err("write it as NAME sha256:HASH RIGHT...".to_owned());
    };
    let hash = hash.strip_prefix(HASH_PREFIX).and_then(from_hex);
    let hash = hash.ok_or("the second word must be sha256: and 64 hexadecimal digits, as punctual key writes it")?;
    let rights = Rights::read(words)?;
    let client = client_of(name).unwrap_or_else(|| Arc::new(ClientUse::new(ClientIdentity::Key(name.into()))));
    Ok(Key { name: name.into(), hash, rights, client })
}

fn from_hex(text: &str) -> Option<KeyHash> {
    let mut hash = KeyHash::default();
    if text.len() != 2 * hash.len() || !text.is_ascii() {
        return None;
    }
    for (position, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * position..2 * position + 2], 16).ok()?;
    }
    Some(hash)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(key: &[u8]) -> KeyHash {
    let mut hash = KeyHash::default();
    hash.copy_from_slice(digest::digest(&digest::SHA256, key).as_ref());
    hash
}

/// A key that was just made.
#[derive(Debug)]
pub struct NewKey {
    /// What its holder sends. It can't be found again.
    pub key: String,
    /// What stands for it in the file of keys.
    pub line: String,
}

impl NewKey {
    /// Makes one for a holder of that name, with rights as the file has them. What makes no sense is a sentence.
    pub fn make(name: &str, rights: &[String]) -> Result<Self, String> {
        let mut random = [0; KEY_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| "the system gives no random numbers")?;
        let key = format!("{KEY_PREFIX}{}", to_hex(&random));
        let line = format!("{name} {HASH_PREFIX}{} {}", to_hex(&hash(key.as_bytes())), rights.join(" "));
        // Reads it back, so that what it can't read isn't written.
        let read = KeySet::read(&line, &KeySet::default()).map_err(|reason| reason.replace("line 1: ", ""))?;
        match &read.keys[..] {
            [read] if *read.name == *name => Ok(Self { key, line }),
            _ => Err(format!("{name:?} is no name: use a word without blanks that doesn't begin with #")),
        }
    }
}

/// Who asks.
#[derive(Clone, Debug, Default)]
pub(crate) enum Caller {
    /// Nobody in particular: no key is asked for.
    #[default]
    Anybody,
    /// Whoever holds a key.
    Holder(Arc<KeyHolder>),
}

impl Caller {
    /// Whose a call is that came on that connection.
    pub(crate) fn owner<'a>(&'a self, connection: &'a Arc<Owner>) -> &'a Arc<Owner> {
        match self {
            Self::Anybody => connection,
            Self::Holder(holder) => holder.owner.as_ref().unwrap_or(connection),
        }
    }
}

/// Whoever holds a key, and asks on a connection.
pub(crate) struct KeyHolder {
    key: Arc<Key>,
    /// Of the keys among which it was found.
    generation: u64,
    /// The connection, as far as it is the holder's; `None` where it isn't known.
    owner: Option<Arc<Owner>>,
}

impl fmt::Debug for KeyHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHolder({:?})", self.key.name)
    }
}

/// The key that came last on a connection: clients send the same one with each request, and hashing it costs more than
/// comparing it.
pub(crate) struct KeyMemo {
    sent: Box<[u8]>,
    holder: Arc<KeyHolder>,
}

impl KeyMemo {
    /// Whose key it is, if it is this one and the keys are those among which it was found. Behind a proxy a connection
    /// is shared by clients that may not learn each other's keys: comparing takes the same time wherever they differ.
    fn holder(&self, sent: &[u8], generation: u64) -> Option<Arc<KeyHolder>> {
        (is_same(&self.sent, sent) && self.holder.generation == generation).then(|| Arc::clone(&self.holder))
    }
}

/// Whether two keys are the same, found in a time that says nothing of where they differ. A word of eight bytes takes
/// as long as a byte.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let ((one_words, one_rest), (other_words, other_rest)) = (one.as_chunks(), other.as_chunks());
    let words = one_words.iter().zip(other_words);
    let of_words = |(one, other): (&[u8; 8], &[u8; 8])| u64::from_ne_bytes(*one).ct_eq(&u64::from_ne_bytes(*other));
    let rest = one_rest.ct_eq(other_rest);
    one.len() == other.len() && words.map(of_words).fold(rest, |same, word| same & word).into()
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anybody => f.write_str("anybody"),
            Self::Holder(holder) => f.write_str(&holder.key.name),
        }
    }
}

/// The keys that hold, which are read again when their file changes.
#[derive(Debug)]
pub(crate) struct Keys {
    path: PathBuf,
    /// Grows with each change.
    generation: AtomicU64,
    set: Mutex<Arc<KeySet>>,
}

impl Keys {
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let set = Mutex::new(Arc::new(read_file(path, &KeySet::default())?));
        Ok(Self { path: path.to_owned(), generation: AtomicU64::new(0), set })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again. What can't be read leaves the keys as they are.
    pub(crate) fn read_again(&self) -> Result<(), String> {
        let new = Arc::new(read_file(&self.path, &self.set())?);
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = new;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn set(&self) -> Arc<KeySet> {
        Arc::clone(&self.set.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn read_file(path: &Path, before: &KeySet) -> Result<KeySet, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    KeySet::read(&text, before).map_err(|reason| format!("{}: {reason}", path.display()))
}

/// One thread's view of the keys.
#[derive(Debug)]
pub(crate) struct KeysView {
    keys: Arc<Keys>,
    /// Only this thread locks it.
    cached: Mutex<(u64, Arc<KeySet>)>,
}

impl KeysView {
    pub(crate) fn new(keys: Arc<Keys>) -> Self {
        let cached = Mutex::new((keys.generation.load(Ordering::Acquire), keys.set()));
        Self { keys, cached }
    }

    /// Looks at the keys that hold now, and their generation.
    fn with<T>(&self, look: impl FnOnce(&KeySet, u64) -> T) -> T {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        // Read before the keys: a change in between is seen next time.
        let generation = self.keys.generation.load(Ordering::Acquire);
        if cached.0 != generation {
            *cached = (generation, self.keys.set());
        }
        look(&cached.1, generation)
    }

    /// Who sent these headers on that connection, if their key has that right.
    pub(crate) fn admit(
        &self,
        right: Right,
        headers: &HeaderMap,
        connection: Option<&Arc<Owner>>,
    ) -> Result<Caller, Fault> {
        let holder = self.find(bearer(headers)?, connection).ok_or_else(unknown_key)?;
        match holder.key.rights.granted[right as usize] {
            true => Ok(Caller::Holder(holder)),
            false => Err(forbidden(&holder.key.name, right.name())),
        }
    }

    /// Who sent these headers, whatever their key is good for; `None` if that isn't known.
    pub(crate) fn holder(&self, headers: &HeaderMap, connection: Option<&Arc<Owner>>) -> Option<Caller> {
        self.find(bearer(headers).ok()?, connection).map(Caller::Holder)
    }

    /// Whose key this is.
    fn find(&self, sent: &[u8], connection: Option<&Arc<Owner>>) -> Option<Arc<KeyHolder>> {
        self.with(|set, generation| {
            let mut memo = connection.map(|connection| connection.memo());
            let known = memo.as_deref().and_then(Option::as_ref).and_then(|memo| memo.holder(sent, generation));
            if known.is_some() {
                return known;
            }
            let key = Arc::clone(set.find(&hash(sent))?);
            let owner = connection.map(|connection| connection.on_behalf(&key.client));
            let holder = Arc::new(KeyHolder { key, generation, owner });
            if let Some(memo) = &mut memo {
                **memo = Some(KeyMemo { sent: sent.into(), holder: Arc::clone(&holder) });
            }
            Some(holder)
        })
    }

    /// Refuses whoever may not ask that model, or whose key is gone since the call began.
    pub(crate) fn may_ask(&self, holder: &KeyHolder, model: &str) -> Result<(), Fault> {
        self.with(|set, generation| {
            let key = match holder.generation == generation {
                true => &holder.key,
                false => set.find(&holder.key.hash).ok_or_else(unknown_key)?,
            };
            match key.rights.models.iter().any(|pattern| fits(pattern, model)) {
                true => Ok(()),
                false => Err(forbidden(&key.name, &format!("infer={model}"))),
            }
        })
    }
}

/// The key in `Authorization: Bearer KEY`, which is the same header on both protocols.
fn bearer(headers: &HeaderMap) -> Result<&[u8], Fault> {
    const SCHEME: &[u8] = b"bearer ";
    let value = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    match value.split_at_checked(SCHEME.len()) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(SCHEME) => Ok(key.trim_ascii()),
        _ => Err(Fault::new(
            Reason::Unauthenticated,
            "the server asks for a key: send it in the header \"Authorization: Bearer KEY\" (metadata over gRPC)",
        )),
    }
}

fn unknown_key() -> Fault {
    Fault::new(Reason::Unauthenticated, "this is none of the server's keys: ask whoever runs it for one")
}

fn forbidden(name: &str, right: &str) -> Fault {
    let message = format!("the key {name:?} has no right to this: its line in the file of keys needs {right:?}");
    Fault::new(Reason::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientLimits, Config};
    use base::Timestamp;
    use hyper::header::HeaderValue;

    fn words(rights: &[&str]) -> Vec<String> {
        rights.iter().map(|&right| right.to_owned()).collect()
    }

    #[test]
    fn keys_are_the_same_in_every_byte() {
        for length in [0, 1, 7, 8, 9, 73] {
            let key: Vec<u8> = (0..length).collect();
            assert!(is_same(&key, &key.clone()), "{length}");
            for changed in 0..key.len() {
                let mut other = key.clone();
                other[changed] ^= 0x80;
                assert!(!is_same(&key, &other), "{length}: {changed}");
                assert!(!is_same(&key, &key[..changed]) && !is_same(&key[..changed], &key), "{length}: {changed}");
            }
        }
    }

    fn sent(key: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}")).unwrap())])
    }

    fn may_ask(view: &KeysView, caller: &Caller, model: &str) -> Result<(), Fault> {
        let Caller::Holder(holder) = caller else { panic!("it has a key") };
        view.may_ask(holder, model)
    }

    struct File {
        _folder: tempfile::TempDir,
        keys: Arc<Keys>,
        view: KeysView,
    }

    fn file(lines: &str) -> File {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, lines).unwrap();
        let keys = Arc::new(Keys::open(&path).unwrap());
        File { _folder: folder, view: KeysView::new(Arc::clone(&keys)), keys }
    }

    #[test]
    fn a_key_has_the_rights_of_its_line_and_no_others() {
        let some = NewKey::make("web", &words(&["infer=resnet*", "infer=bert"])).unwrap();
        let all = NewKey::make("ops", &words(&["infer", "read", "control", "operate"])).unwrap();
        let File { view, .. } = &file(&format!("# keys\n\n{}\n  {}  \n", some.line, all.line));
        let caller = view.admit(Right::Infer, &sent(&some.key), None).unwrap();
        assert_eq!(caller.to_string(), "web");
        for (model, may) in [("resnet50", true), ("bert", true), ("bert2", false), ("mlp", false)] {
            assert_eq!(may_ask(view, &caller, model).is_ok(), may, "{model}");
        }
        let refused = may_ask(view, &caller, "mlp").unwrap_err();
        assert_eq!(refused.reason, Reason::Forbidden);
        for right in [Right::Read, Right::Control, Right::Operate] {
            assert_eq!(view.admit(right, &sent(&some.key), None).unwrap_err().reason, Reason::Forbidden, "{right:?}");
            assert_eq!(view.admit(right, &sent(&all.key), None).unwrap().to_string(), "ops");
        }
        for wrong in [&some.line, "", "punctual-", &all.key[1..], &all.key.to_uppercase()] {
            assert_eq!(
                view.admit(Right::Read, &sent(wrong), None).unwrap_err().reason,
                Reason::Unauthenticated,
                "{wrong}"
            );
        }
        assert_eq!(view.admit(Right::Read, &HeaderMap::new(), None).unwrap_err().reason, Reason::Unauthenticated);
    }

    #[test]
    fn a_file_that_changes_is_what_holds_also_for_calls_that_have_begun() {
        let (old, new) =
            (NewKey::make("a", &words(&["infer"])).unwrap(), NewKey::make("a", &words(&["infer"])).unwrap());
        assert_ne!(old.key, new.key);
        let File { keys, view, .. } = &file(&old.line);
        let begun = view.admit(Right::Infer, &sent(&old.key), None).unwrap();
        std::fs::write(keys.path(), format!("{}\n{}", old.line, new.line)).unwrap();
        keys.read_again().unwrap();
        assert!(
            may_ask(view, &begun, "m").is_ok() && view.admit(Right::Infer, &sent(&new.key), None).is_ok(),
            "both hold"
        );
        std::fs::write(keys.path(), &new.line).unwrap();
        keys.read_again().unwrap();
        assert_eq!(may_ask(view, &begun, "m").unwrap_err().reason, Reason::Unauthenticated);
        assert!(view.admit(Right::Infer, &sent(&old.key), None).is_err());
        for broken in ["", "# nothing", "a sha256:12 infer"] {
            std::fs::write(keys.path(), broken).unwrap();
            assert!(keys.read_again().is_err(), "{broken}");
        }
        assert!(view.admit(Right::Infer, &sent(&new.key), None).is_ok(), "what can't be read changes nothing");
    }

    fn holder(caller: &Caller) -> &Arc<KeyHolder> {
        let Caller::Holder(holder) = caller else { panic!("it has a key") };
        holder
    }

    #[test]
    fn the_last_key_of_a_connection_is_known_again_until_the_file_changes() {
        let (one, other) = (NewKey::make("a", &words(&["infer"])), NewKey::make("b", &words(&["infer", "read"])));
        let (one, other) = (one.unwrap(), other.unwrap());
        let File { keys, view, .. } = &file(&format!("{}\n{}", one.line, other.line));
        let connection = Owner::alone(Config::default());
        let admit = |key: &NewKey, right| view.admit(right, &sent(&key.key), Some(&connection));
        let first = admit(&one, Right::Infer).unwrap();
        let again = admit(&one, Right::Infer).unwrap();
        assert!(Arc::ptr_eq(holder(&first), holder(&again)), "it isn't looked for again");
        assert_eq!(admit(&one, Right::Read).unwrap_err().reason, Reason::Forbidden, "its rights are its own");
        assert_eq!(admit(&other, Right::Read).unwrap().to_string(), "b");
        assert_eq!(admit(&one, Right::Infer).unwrap().to_string(), "a");
        let wrong = NewKey { key: one.key[..one.key.len() - 1].to_owned(), line: String::new() };
        assert_eq!(admit(&wrong, Right::Infer).unwrap_err().reason, Reason::Unauthenticated);
        std::fs::write(keys.path(), &other.line).unwrap();
        keys.read_again().unwrap();
        assert_eq!(admit(&one, Right::Infer).unwrap_err().reason, Reason::Unauthenticated, "it is gone at once");
        assert!(admit(&other, Right::Infer).is_ok());
    }

    #[test]
    fn keys_of_one_name_are_one_client_on_every_connection_and_after_a_change() {
        let [old, new, other] = ["a", "a", "b"].map(|name| NewKey::make(name, &words(&["infer"])).unwrap());
        let File { keys, view, .. } = &file(&format!("{}\n{}", old.line, other.line));
        let limits = ClientLimits { requests: Some(1), ..ClientLimits::default() };
        let first = Owner::alone(Config { client_limits: Some(limits), ..Config::default() });
        let second = Owner::another(&first);
        let begin = |key: &NewKey, connection: &Arc<Owner>| {
            let caller = view.admit(Right::Infer, &sent(&key.key), Some(connection)).unwrap();
            caller.owner(connection).request(Timestamp::ZERO)
        };
        let under_way = begin(&old, &first).unwrap();
        let refused = begin(&old, &second).map(|_| ()).unwrap_err().to_string();
        assert!(refused.starts_with("the key \"a\" has 1 requests in flight"), "{refused}");
        assert!(!refused.contains(&old.key));
        let elsewhere = begin(&other, &first).unwrap();
        std::fs::write(keys.path(), format!("{}\n{}\n{}", old.line, new.line, other.line)).unwrap();
        keys.read_again().unwrap();
        assert!(begin(&new, &first).is_err(), "a new key of that name is the same client");
        assert!(begin(&other, &second).is_err());
        drop((under_way, elsewhere));
        assert!(begin(&new, &second).is_ok() && begin(&other, &second).is_ok());
    }

    #[test]
    fn the_file_has_no_key_in_it() {
        let NewKey { key, line } = NewKey::make("a", &words(&["read"])).unwrap();
        assert!(!line.contains(&key) && !line.contains(&key[KEY_PREFIX.len()..]));
        assert_eq!(key.len(), KEY_PREFIX.len() + 2 * KEY_BYTES);
        // What sha256sum says of "abc".
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(to_hex(&hash(b"abc")), known);
        assert_eq!(from_hex(known), Some(hash(b"abc")));
    }

    #[test]
    fn lines_that_make_no_sense_are_sentences() {
        let of = |text: &str| KeySet::read(text, &KeySet::default()).unwrap_err();
        let hash = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for (line, said) in [
            ("a".to_owned(), "line 1: write it as"),
            (format!("\na {}", &hash[..70]), "line 2: the second word"),
            (format!("a {hash}é"), "the second word"),
            (format!("a {hash}"), "no right"),
            (format!("a {hash} infer="), "is no right"),
            (format!("a {hash} read=x"), "is no right"),
            (format!("a {hash} read write"), "\"write\" is no right"),
            ("# only this".to_owned(), "punctual key"),
        ] {
            assert!(of(&line).contains(said), "{line}: {}", of(&line));
        }
        for name in ["", "two words", "#x", "a\nb"] {
            assert!(NewKey::make(name, &words(&["read"])).is_err(), "{name:?}");
        }
        assert!(NewKey::make("a", &[]).unwrap_err().contains("no right"));
    }

    #[test]
    fn patterns() {
        for (pattern, name, fit) in [
            ("*", "", true),
            ("*", "anything", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("a*b*c", "axbyc", true),
            ("a*b*c", "axcyb", false),
            ("ab*ba", "aba", false),
            ("a**c", "ac", true),
            ("*x*", "wxy", true),
        ] {
            assert_eq!(fits(pattern, name), fit, "{pattern} {name}");
        }
    }
}
