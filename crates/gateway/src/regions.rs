//! Regions of shared memory that clients registered, and tensors in them.
//!
//! A region is a part of a file below `/dev/shm`, which is what `shm_open` makes. Tensors are read and written with one
//! system call each, never mapped: the client may change or cut the memory at any time, and a mapping that is cut ends
//! the process (docs/notes/012-shared-memory.md).

use crate::body::hold::HeldBytes;
use crate::io::IoContext;
use crate::io::offload::offload;
use base::Reason;
use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::proto::SystemSharedMemoryRegisterRequest;
use wire::proto::system_shared_memory_status_response::RegionStatus;
use wire::{Fault, InferRequest, Region, check_elements};

/// Where the system keeps shared memory objects.
const FOLDER: &str = "/dev/shm";
/// Regions that can be registered (P9): each is an open file.
const MAX_REGIONS: usize = 4096;
/// The longest name of a region, and of an object.
const MAX_NAME_BYTES: usize = 255;
/// Tensors of this size and more are copied on another thread.
const OFFLOAD_COPY_BYTES: usize = 1 << 20;

/// A region that is registered.
#[derive(Debug)]
struct Registered {
    status: RegionStatus,
    file: File,
}

type Map = BTreeMap<String, Arc<Registered>>;

/// The regions of all threads.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// Grows with each change.
    generation: AtomicU64,
    map: Mutex<Arc<Map>>,
}

impl Regions {
    fn map(&self) -> MutexGuard<'_, Arc<Map>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Map) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut map = self.map();
        let outcome = change(Arc::make_mut(&mut map));
        self.generation.fetch_add(1, Ordering::Release);
        outcome
    }

    /// The region of that name, or all of them for an empty one.
    pub(crate) fn status(&self, name: &str) -> BTreeMap<String, RegionStatus> {
        let map = self.map();
        let wanted = map.iter().filter(|(known, _)| name.is_empty() || *known == name);
        wanted.map(|(name, region)| (name.clone(), region.status.clone())).collect()
    }

    /// Opens the object that a request names and takes it up.
    pub(crate) fn register(&self, request: &SystemSharedMemoryRegisterRequest) -> Result<(), Fault> {
        let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request.clone();
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(Fault::bad(format!("a region's name has 1 to {MAX_NAME_BYTES} bytes, not {}", name.len())));
        }
        if byte_size == 0 {
            return Err(Fault::bad(format!("region {name:?} has a byte_size of 0: a region has at least one byte")));
        }
        let file = open(&name, &key)?;
        let end = offset.checked_add(byte_size);
        let length = length(&file).map_err(|error| unusable(&name, &key, &error))?;
        if end.is_none_or(|end| end > length) {
            return Err(Fault::bad(format!(
                "region {name:?} would have {byte_size} bytes from byte {offset} on, but {key:?} has {length} bytes"
            )));
        }
        let status = RegionStatus { name: name.clone(), key, offset, byte_size };
        self.change(|map| {
            if map.contains_key(&name) {
                return Err(Fault::new(
                    Reason::AlreadyExists,
                    format!("shared memory region {name:?} is registered already: unregister it first"),
                ));
            }
            if map.len() >= MAX_REGIONS {
                return Err(Fault::new(
                    Reason::QueueFull,
                    format!(
                        "there are {MAX_REGIONS} shared memory regions, the most that there can be: unregister some"
                    ),
                ));
            }
            map.insert(name, Arc::new(Registered { status, file }));
            Ok(())
        })
    }

    /// Forgets the region of that name, or all of them for an empty one. Requests that use it go on.
    pub(crate) fn unregister(&self, name: &str) {
        let forgotten = self.change(|map| {
            if name.is_empty() {
                map.clear();
            } else {
                map.remove(name);
            }
            Ok(())
        });
        debug_assert!(forgotten.is_ok(), "forgetting can't fail");
    }
}

/// One thread's copy of the regions, which it keeps until they change: requests wait for no lock.
#[derive(Debug, Default)]
pub(crate) struct RegionsView {
    /// Only this thread locks it.
    cached: Mutex<(u64, Arc<Map>)>,
}

impl RegionsView {
    fn find(&self, regions: &Regions, name: &str) -> Option<Arc<Registered>> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        // Read before the regions: a change in between is seen next time.
        let generation = regions.generation.load(Ordering::Acquire);
        if cached.0 != generation {
            *cached = (generation, Arc::clone(&regions.map()));
        }
        cached.1.get(name).cloned()
    }
}

/// Opens the object of that key, and nothing else: neither elsewhere in the system, nor a link, nor a device.
fn open(name: &str, key: &str) -> Result<File, Fault> {
    // As `shm_open` has it, the slash in front belongs to the name.
    let object = key.strip_prefix('/').unwrap_or(key);
    let plain = !object.is_empty() && object != "." && object != ".." && !object.contains(['/', '\0']);
    if !plain || object.len() > MAX_NAME_BYTES {
        return Err(Fault::bad(format!(
            "region {name:?} has the key {key:?}, which names no shared memory object: it is a slash and a name without slashes"
        )));
    }
    // Not blocking: a pipe would wait for somebody to write.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(format!("{FOLDER}/{object}"), flags, Mode::empty())
        .map(File::from)
        .map_err(|error| unusable(name, key, &error.into()))?;
    let is_file = file.metadata().map_err(|error| unusable(name, key, &error))?.is_file();
    if !is_file {
        return Err(Fault::bad(format!("region {name:?} has the key {key:?}, which is no shared memory object")));
    }
    Ok(file)
}

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

fn unusable(name: &str, key: &str, error: &io::Error) -> Fault {
    Fault::bad(format!("region {name:?} has the key {key:?}, which can't be opened: {error}"))
}

/// The refusal of everything with shared memory where it isn't allowed.
pub(crate) fn no_shared_memory() -> Fault {
    let message = "shared memory is off, because it lets clients read and write what lies in the server's /dev/shm: start the \
                   server with --allow-shared-memory, or send tensors in the request";
    Fault::new(Reason::Unsupported, message)
}

/// Where a tensor lies: an open file and the position in it.
struct RegionSlice {
    file: Arc<Registered>,
    at: u64,
    length: usize,
}

/// Finds the part of a region that a tensor names.
fn find_slice(context: &IoContext, what: &str, name: &str, part: &Region) -> Result<RegionSlice, Fault> {
    if !context.shared.config.shared_memory {
        return Err(no_shared_memory());
    }
    let region = &part.name;
    let file = context.regions.find(&context.shared.regions, region).ok_or_else(|| {
        Fault::bad(format!("{what} {name:?} is in the shared memory region {region:?}, which isn't registered"))
    })?;
    let size = file.status.byte_size;
    if part.offset.checked_add(part.byte_size).is_none_or(|end| end > size) {
        return Err(Fault::bad(format!(
            "{what} {name:?} has {} bytes from byte {} on, but the shared memory region {region:?} has {size} bytes",
            part.byte_size, part.offset
        )));
    }
    // Fits: the sum of all three was checked when the region was registered.
    let at = file.status.offset + part.offset;
    let length = usize::try_from(part.byte_size).unwrap_or(usize::MAX);
    Ok(RegionSlice { file, at, length })
}

/// Reads the inputs that lie in regions. They count as held like those that come in bodies, until what is returned is
/// dropped.
pub(crate) async fn fetch(context: &IoContext, request: &mut InferRequest<'_>) -> Result<Option<HeldBytes>, Fault> {
    let mut held = None;
    let mut left = context.shared.config.max_body_bytes;
    for input in &mut request.inputs {
        let Some(region) = &input.region else { continue };
        let slice = find_slice(context, "input", &input.name, region)?;
        left = left.checked_sub(slice.length).ok_or_else(|| {
            Fault::new(
                Reason::BodyTooLarge,
                format!(
                    "the inputs in shared memory have more than {} bytes, the most that this server takes: send less in one request",
                    context.shared.config.max_body_bytes
                ),
            )
        })?;
        held.get_or_insert_with(|| HeldBytes::new(&context.shared)).add(slice.length)?;
        let sentence =
            format!("input {:?} could not be read from the shared memory region {:?}", input.name, region.name);
        let read = move || {
            let mut data = vec![0; slice.length];
            match slice.file.file.read_exact_at(&mut data, slice.at) {
                Ok(()) => Ok(Bytes::from(data)),
                Err(error) => Err(Fault::bad(format!("{sentence}: {error}; was it cut?"))),
            }
        };
        input.data = if region.byte_size < OFFLOAD_COPY_BYTES as u64 { read()? } else { offload(read).await? };
        check_elements(&input.name, input.datatype, &input.shape, &input.data)?;
    }
    Ok(held)
}

/// Whether an output may be written to a region; said before anything is computed.
pub(crate) fn check_place(context: &IoContext, name: &str, region: &Region) -> Result<(), Fault> {
    find_slice(context, "output", name, region).map(drop)
}

/// Writes an output to its region, which then says how long it is.
pub(crate) async fn place(context: &IoContext, name: &str, data: &Bytes, region: &mut Region) -> Result<(), Fault> {
    let slice = find_slice(context, "output", name, region)?;
    if data.len() > slice.length {
        return Err(Fault::bad(format!(
            "output {name:?} has {} bytes, but its shared_memory_byte_size is {}: give it more",
            data.len(),
            slice.length
        )));
    }
    region.byte_size = data.len() as u64;
    let sentence = format!("output {name:?} could not be written to the shared memory region {:?}", region.name);
    let data = data.clone();
    let is_large = data.len() >= OFFLOAD_COPY_BYTES;
    let write = move || {
        let bad = |error: &dyn std::fmt::Display| Fault::bad(format!("{sentence}: {error}"));
        // Writing behind the end would make the object longer.
        let end = slice.at + data.len() as u64;
        if length(&slice.file.file).map_err(|error| bad(&error))? < end {
            return Err(bad(&"it was cut"));
        }
        slice.file.file.write_all_at(&data, slice.at).map_err(|error| bad(&error))
    };
    if is_large { offload(write).await } else { write() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn request(name: &str, key: &str, offset: u64, byte_size: u64) -> SystemSharedMemoryRegisterRequest {
        SystemSharedMemoryRegisterRequest { name: name.into(), key: key.into(), offset, byte_size }
    }

    /// An object of 100 bytes, and its key.
    fn object() -> (tempfile::NamedTempFile, String) {
        let object = tempfile::Builder::new().prefix("punctual-test-").tempfile_in(FOLDER).unwrap();
        object.as_file().set_len(100).unwrap();
        let key = format!("/{}", object.path().file_name().unwrap().to_str().unwrap());
        (object, key)
    }

    #[test]
    fn registered_and_forgotten() {
        let (_object, key) = object();
        let (regions, view) = (Regions::default(), RegionsView::default());
        assert!(view.find(&regions, "a").is_none());
        regions.register(&request("a", &key, 20, 80)).unwrap();
        regions.register(&request("b", &key[1..], 0, 1)).unwrap();
        assert_eq!(view.find(&regions, "a").unwrap().status.offset, 20);
        assert_eq!(regions.status("").len(), 2);
        assert_eq!(regions.status("b")["b"].key, key[1..]);
        let again = regions.register(&request("a", &key, 0, 1)).unwrap_err();
        assert_eq!(again.reason, Reason::AlreadyExists);
        regions.unregister("a");
        assert!(view.find(&regions, "a").is_none());
        regions.unregister("");
        assert!(regions.status("").is_empty());
    }

    #[test]
    fn only_objects_below_the_folder_are_opened() {
        let folder = tempfile::Builder::new().prefix("punctual-test-").tempdir_in(FOLDER).unwrap();
        let link = folder.path().with_extension("link");
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        let key = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let keys = ["", "/", ".", "..", "/..", "/../etc/passwd", "a/b", "//a", "a\0b", &"a".repeat(256)];
        for bad in keys.into_iter().map(str::to_owned).chain([key(folder.path()), key(&link), "not there".into()]) {
            assert!(Regions::default().register(&request("r", &bad, 0, 1)).is_err(), "{bad}");
        }
        std::fs::remove_file(link).unwrap();
        expect![[r#"region "r" has the key "/../etc/passwd", which names no shared memory object: it is a slash and a name without slashes"#]].assert_eq(&open("r", "/../etc/passwd").unwrap_err().to_string());
        expect![[r#"region "r" has the key "/punctual is not there", which can't be opened: No such file or directory (os error 2)"#]].assert_eq(&open("r", "/punctual is not there").unwrap_err().to_string());
    }

    #[test]
    fn regions_end_before_their_object() {
        let (_object, key) = object();
        let said = |offset, size| {
            let fault = Regions::default().register(&request("r", &key, offset, size)).unwrap_err();
            fault.to_string().replace(&key, "KEY")
        };
        expect![[r#"region "r" would have 101 bytes from byte 0 on, but "KEY" has 100 bytes"#]]
            .assert_eq(&said(0, 101));
        expect![[r#"region "r" would have 2 bytes from byte 18446744073709551615 on, but "KEY" has 100 bytes"#]]
            .assert_eq(&said(u64::MAX, 2));
        expect![[r#"region "r" has a byte_size of 0: a region has at least one byte"#]].assert_eq(&said(0, 0));
    }
}
