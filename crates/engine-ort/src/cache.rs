//! Optimised models on disk, one file for each, named by the content that it was made from.
//!
//! ```text
//!  | head: magic, lengths, checksum | skeleton (the graph as ONNX) | block (the weights) |
//!  0                                4096                           next multiple of 4096
//! ```
//!
//! A file is written under another name, brought to disk, and renamed, so it is there either whole or not at all; what
//! is broken nevertheless is noticed by its checksum, removed, and made again. Nobody keeps others from cutting such a
//! file, and whoever reads what was cut from a mapped file is killed: what is checked and mapped is a copy without a
//! name. The time of change is that of the last use: whatever nobody used for a month goes when something new is kept.

use crate::block::Block;
use memmap2::{Mmap, MmapMut};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Changes whenever the layout of the file or of the block does.
const MAGIC: &[u8; 16] = b"punctual ort  1\n";
const PAGE: usize = 4096;
const HEAD: usize = MAGIC.len() + 8 + 8 + 32;

/// Ends the names of the cache's files.
const EXTENSION: &str = "ort-cache";
/// Begin the names of what is being written.
pub(crate) const WORK: &str = ".work-";
const PART: &str = ".part-";
/// For how long a file is kept that nobody uses.
const KEPT: Duration = Duration::from_secs(30 * 86_400);
/// For how long something may be written; older, it was left by a process that was killed.
const WRITTEN: Duration = Duration::from_secs(86_400);

/// What a model becomes when it is optimised.
pub(crate) struct Optimised {
    /// The graph, with the larger weights left out.
    pub(crate) skeleton: Vec<u8>,
    /// The larger weights.
    pub(crate) block: Block,
    /// How many bytes they are; the block may end later.
    pub(crate) block_bytes: usize,
}

impl Optimised {
    fn checksum(&self) -> blake3::Hash {
        checksum(&self.skeleton, &self.block[..self.block_bytes])
    }

    /// Brings weights that lie in the cache's file into memory that is never read from disk again.
    pub(crate) fn pinned(self) -> io::Result<Self> {
        if matches!(self.block, Block::Owned(_)) {
            return Ok(self);
        }
        let mut memory = Block::memory(self.block_bytes)?;
        memory[..self.block_bytes].copy_from_slice(&self.block[..self.block_bytes]);
        Ok(Self { block: Block::Owned(memory), ..self })
    }
}

fn checksum(skeleton: &[u8], block: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(skeleton).update(block).finalize()
}

/// The file for a key.
pub(crate) fn path(folder: &Path, key: &blake3::Hash) -> PathBuf {
    folder.join(format!("{}.{EXTENSION}", key.to_hex()))
}

/// What is kept in a file; `None` if there is none, or none that is whole (then it is removed).
pub(crate) fn read(path: &Path) -> Option<Optimised> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!("{}: the cached model can't be read and is made again: {error}", path.display());
            return None;
        }
    };
    let copied = private_copy(&file, path.parent().unwrap_or(Path::new("."))).map_err(|error| error.to_string());
    let optimised = copied.and_then(parse);
    // Where it can't be noted, the file may go a month after it was made.
    if let Err(error) = file.set_modified(SystemTime::now()) {
        tracing::debug!("{}: its use can't be noted: {error}", path.display());
    }
    if let Err(reason) = &optimised {
        tracing::warn!("{}: the cached model is broken ({reason}) and is made again", path.display());
        if let Err(error) = fs::remove_file(path) {
            tracing::warn!("{}: the broken file can't be removed: {error}", path.display());
        }
    }
    optimised.ok()
}

/// What is in a file now, where nobody else can change it: in a file without a name beside it, which the system may put
/// out of memory and read again; or in memory, where such a file can't be made.
fn private_copy(mut file: &File, folder: &Path) -> io::Result<Mmap> {
    let copied = tempfile::tempfile_in(folder).and_then(|mut copy| io::copy(&mut file, &mut copy).map(|_| copy));
    match copied {
        // SAFETY: the file has no name, and this function alone has it open: nobody changes what is mapped.
        Ok(copy) => unsafe { Mmap::map(&copy) },
        Err(error) => {
            tracing::debug!("a cached model is read into memory, since it can't be copied: {error}");
            in_memory(file)
        }
    }
}

fn in_memory(mut file: &File) -> io::Result<Mmap> {
    use io::Seek as _;
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut memory = MmapMut::map_anon(length.max(1))?;
    file.rewind()?;
    file.read_exact(&mut memory[..length])?;
    memory.make_read_only()
}

fn parse(map: Mmap) -> Result<Optimised, String> {
    let CachedParts { skeleton, block } = cached_parts(&map)?;
    let (skeleton, start, block_bytes) = (map[skeleton].to_vec(), block.start, block.len());
    Ok(Optimised { skeleton, block: Block::Mapped { map, start }, block_bytes })
}

/// Where the parts of a cache's file are.
#[derive(Debug)]
pub struct CachedParts {
    skeleton: Range<usize>,
    block: Range<usize>,
}

/// The parts of a cache's file that is whole, or what is wrong with it.
pub fn cached_parts(file: &[u8]) -> Result<CachedParts, String> {
    let head: &[u8; HEAD] = file.first_chunk().ok_or("it is too short")?;
    let (magic, rest) = head.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err("it doesn't begin as it should".into());
    }
    let number = |at: usize| {
        let bytes = rest[at..at + 8].try_into().expect("a slice of 8 bytes");
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| "its lengths are too large")
    };
    let (skeleton_bytes, block_bytes) = (number(0)?, number(8)?);
    let skeleton = PAGE..PAGE.checked_add(skeleton_bytes).ok_or("its lengths are too large")?;
    let start = skeleton.end.checked_next_multiple_of(PAGE).ok_or("its lengths are too large")?;
    if start.checked_add(block_bytes) != Some(file.len()) {
        return Err(format!("it has {} bytes, but its head says {start} and {block_bytes}", file.len()));
    }
    let block = start..file.len();
    if checksum(&file[skeleton.clone()], &file[block.clone()]).as_bytes() != &rest[16..] {
        return Err("its checksum is wrong".into());
    }
    Ok(CachedParts { skeleton, block })
}

/// Keeps an optimised model. On an error nothing is left behind.
pub(crate) fn write(path: &Path, optimised: &Optimised) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let mut part = tempfile::Builder::new().prefix(PART).tempfile_in(folder)?;
    let file = part.as_file_mut();
    let skeleton_end = PAGE + optimised.skeleton.len();
    let padding = vec![0; PAGE];
    file.write_all(MAGIC)?;
    file.write_all(&(optimised.skeleton.len() as u64).to_le_bytes())?;
    file.write_all(&(optimised.block_bytes as u64).to_le_bytes())?;
    file.write_all(optimised.checksum().as_bytes())?;
    file.write_all(&padding[HEAD..])?;
    file.write_all(&optimised.skeleton)?;
    file.write_all(&padding[..skeleton_end.next_multiple_of(PAGE) - skeleton_end])?;
    file.write_all(&optimised.block[..optimised.block_bytes])?;
    file.sync_all()?;
    part.persist(path).map_err(|error| error.error)?;
    // The name, too, must survive a loss of power.
    File::open(folder)?.sync_all()
}

/// Removes files that nobody used for long, and what killed processes left. Only what was made here is touched.
pub(crate) fn prune(folder: &Path, in_use: &HashSet<PathBuf>, now: SystemTime) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let limit = if path.extension().is_some_and(|extension| extension == EXTENSION) {
            KEPT
        } else if name.starts_with(WORK) || name.starts_with(PART) {
            WRITTEN
        } else {
            continue;
        };
        let age = entry.metadata().and_then(|data| data.modified()).map(|at| now.duration_since(at));
        if in_use.contains(&path) || !matches!(age, Ok(Ok(age)) if age > limit) {
            continue;
        }
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Ok(()) => tracing::info!("{}: removed, since it wasn't used for long", path.display()),
            Err(error) => tracing::warn!("{}: it wasn't used for long, but can't be removed: {error}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Optimised {
        let mut memory = Block::memory(10_000).unwrap();
        memory[..10_000].fill(7);
        Optimised { skeleton: b"graph".to_vec(), block: Block::Owned(memory), block_bytes: 10_000 }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder.path().join("made/as/needed"), &blake3::hash(b"model"));
        assert!(read(&path).is_none());
        write(&path, &sample()).unwrap();
        let kept = read(&path).unwrap();
        assert_eq!(kept.skeleton, b"graph");
        assert_eq!(kept.block_bytes, 10_000);
        assert!(kept.block.iter().all(|&byte| byte == 7));
        let pinned = kept.pinned().unwrap();
        assert!(matches!(pinned.block, Block::Owned(_)));
        assert!(pinned.block[..10_000].iter().all(|&byte| byte == 7));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn whatever_is_broken_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), &blake3::hash(b"model"));
        write(&path, &sample()).unwrap();
        let whole = fs::read(&path).unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let lies = [MAGIC.as_slice(), &u64::MAX.to_le_bytes(), &u64::MAX.to_le_bytes(), &[0; 32]].concat();
        let broken = [
            vec![],
            whole[..20].to_vec(),
            whole[..whole.len() - 1].to_vec(),
            [&whole[..], b"x"].concat(),
            flipped(0),
            flipped(20),
            flipped(40),
            flipped(PAGE),
            flipped(whole.len() - 1),
            lies,
        ];
        for (number, bytes) in broken.into_iter().enumerate() {
            fs::write(&path, bytes).unwrap();
            assert!(read(&path).is_none(), "case {number}");
            assert!(!path.exists(), "case {number}");
        }
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_used_ends_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), &blake3::hash(b"model"));
        write(&path, &sample()).unwrap();
        let kept = read(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert!(kept.block.iter().all(|&byte| byte == 7));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the copy has no name");
    }

    #[test]
    fn what_can_not_be_copied_is_read_into_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), &blake3::hash(b"model"));
        write(&path, &sample()).unwrap();
        let file = File::open(&path).unwrap();
        let kept = parse(private_copy(&file, &folder.path().join("nowhere")).unwrap()).unwrap();
        assert!(kept.block.iter().all(|&byte| byte == 7));
        fs::write(&path, "").unwrap();
        assert!(parse(in_memory(&file).unwrap()).is_err());
    }

    #[test]
    fn what_nobody_uses_goes() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let make = |name: &str, age: Duration| {
            let path = folder.path().join(name);
            if name.starts_with(WORK) {
                fs::create_dir(&path).unwrap();
                fs::write(path.join("model.onnx"), "").unwrap();
            } else {
                write(&path, &sample()).unwrap();
            }
            File::open(&path).unwrap().set_modified(now - age).unwrap();
            path
        };
        let (long, day) = (KEPT + WRITTEN, WRITTEN * 2);
        make("old.ort-cache", long);
        make(".part-left", day);
        make(".work-left", day);
        let stays = [
            make("held.ort-cache", long),
            make("read.ort-cache", long),
            make("young.ort-cache", day),
            make(".part-young", Duration::ZERO),
            make(".work-young", Duration::ZERO),
            make("profile.json", long),
        ];
        read(&stays[1]).unwrap();
        prune(folder.path(), &HashSet::from([stays[0].clone()]), now);
        let left: HashSet<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, HashSet::from(stays));
    }

    #[test]
    fn a_folder_that_can_not_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(write(&path(&file, &blake3::hash(b"model")), &sample()).is_err());
    }
}
