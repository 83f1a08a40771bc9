//! Regions of shared memory that clients registered, and tensors in them.
//!
//! A region is a part of a file below `/dev/shm`, which is what `shm_open` makes. Tensors are read and written with one
//! system call each, never mapped: the client may change or cut the memory at any time, and a mapping that is cut ends
//! the process (docs/notes/012-shared-memory.md). A region that is unregistered goes when the last request that uses it
//! is over.

use crate::body::hold::HeldBytes;
use crate::io::IoContext;
use crate::io::clients::Owner;
use crate::io::offload::offload;
use base::Reason;
use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use wire::proto::SystemSharedMemoryRegisterRequest;
use wire::proto::system_shared_memory_status_response::RegionStatus;
use wire::room::room;
use wire::{Fault, InferRequest, Region, check_elements};

/// Where the system keeps shared memory objects.
const FOLDER: &str = "/dev/shm";
/// Regions that can be registered (P9): each is an open file.
const MAX_REGIONS: usize = 4096;
/// The longest name of a region, and of an object.
const MAX_NAME_BYTES: usize = 255;
/// Tensors of this size and more are copied on another thread.
pub(crate) const OFFLOAD_COPY_BYTES: usize = 1 << 20;

/// A region that is registered.
#[derive(Debug)]
struct Registered {
    status: RegionStatus,
    file: File,
    /// Requests that are to read from it or write to it.
    uses: AtomicUsize,
    /// Whether it goes when the last of them is over; no other request takes it up then.
    leaves: AtomicBool,
    /// Wakes those who wait for that.
    unused: Notify,
}

impl Registered {
    fn is_unused(&self) -> bool {
        self.uses.load(Ordering::SeqCst) == 0
    }

    async fn until_unused(&self) {
        loop {
            // Made before the look: what ends in between wakes it.
            let unused = self.unused.notified();
            if self.is_unused() {
                return;
            }
            unused.await;
        }
    }
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
            if let Some(known) = map.get(&name) {
                let what = match known.leaves.load(Ordering::SeqCst) {
                    false => "is registered already: unregister it first",
                    true => "is still used by requests from before it was unregistered: wait for their answers",
                };
                return Err(Fault::new(Reason::AlreadyExists, format!("shared memory region {name:?} {what}")));
            }
            if map.len() >= MAX_REGIONS {
                return Err(Fault::new(
                    Reason::QueueFull,
                    format!(
                        "there are {MAX_REGIONS} shared memory regions, the most that there can be: unregister some"
                    ),
                ));
            }
            let (uses, leaves, unused) = Default::default();
            map.insert(name, Arc::new(Registered { status, file, uses, leaves, unused }));
            Ok(())
        })
    }

    /// Lets go of the region of that name, or of all of them for an empty one: no request takes it up any more, and
    /// those that use it end as if nothing had happened. Returns when they have ended; whoever doesn't wait for that
    /// changes nothing.
    pub(crate) async fn unregister(&self, name: &str) {
        let map = Arc::clone(&self.map());
        let meant = map.iter().filter(|(known, _)| name.is_empty() || *known == name);
        let leaving: Vec<_> = meant.map(|(_, region)| region).collect();
        for region in &leaving {
            region.leaves.store(true, Ordering::SeqCst);
            if region.is_unused() {
                self.forget(region);
            }
        }
        for region in leaving {
            region.until_unused().await;
        }
    }

    fn forget(&self, region: &Arc<Registered>) {
        let name = &region.status.name;
        let forgotten = self.change(|map| {
            if map.get(name).is_some_and(|known| Arc::ptr_eq(known, region)) {
                map.remove(name);
            }
            Ok(())
        });
        debug_assert!(forgotten.is_ok(), "forgetting can't fail");
    }
}

/// A request's use of a region, from the moment at which it finds it until it needs it no longer.
#[derive(Debug)]
struct RegionUse {
    region: Arc<Registered>,
    regions: Arc<Regions>,
}

impl RegionUse {
    /// `None` if the region leaves.
    fn begin(region: Arc<Registered>, regions: &Arc<Regions>) -> Option<Self> {
        // Counted, then looked; `unregister` does it the other way round. Either this sees that the region leaves, or
        // that sees this use.
        region.uses.fetch_add(1, Ordering::SeqCst);
        let begun = Self { region, regions: Arc::clone(regions) };
        (!begun.region.leaves.load(Ordering::SeqCst)).then_some(begun)
    }
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        let was_last = self.region.uses.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.region.leaves.load(Ordering::SeqCst) {
            self.regions.forget(&self.region);
            self.region.unused.notify_waiters();
        }
    }
}

/// One thread's copy of the regions, which it keeps until they change: requests wait for no lock.
#[derive(Debug, Default)]
pub(crate) struct RegionsView {
    /// Only this thread locks it.
    cached: Mutex<(u64, Arc<Map>)>,
}

impl RegionsView {
    /// The region of that name, for a request to use.
    fn find(&self, regions: &Arc<Regions>, name: &str) -> Option<RegionUse> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        // Read before the regions: a change in between is seen next time.
        let generation = regions.generation.load(Ordering::Acquire);
        if cached.0 != generation {
            *cached = (generation, Arc::clone(&regions.map()));
        }
        RegionUse::begin(Arc::clone(cached.1.get(name)?), regions)
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

/// Where a tensor lies: a region that stays as long as this, and the position in its file.
#[derive(Debug)]
pub(crate) struct RegionSlice {
    within: RegionUse,
    at: u64,
    length: usize,
}

/// Finds the part of a region that a tensor names.
fn find_slice(context: &IoContext, what: &str, name: &str, part: &Region) -> Result<RegionSlice, Fault> {
    if !context.shared.config.shared_memory {
        return Err(no_shared_memory());
    }
    let region = &part.name;
    let within = context.regions.find(&context.shared.regions, region).ok_or_else(|| {
        Fault::bad(format!("{what} {name:?} is in the shared memory region {region:?}, which isn't registered"))
    })?;
    let size = within.region.status.byte_size;
    if part.offset.checked_add(part.byte_size).is_none_or(|end| end > size) {
        return Err(Fault::bad(format!(
            "{what} {name:?} has {} bytes from byte {} on, but the shared memory region {region:?} has {size} bytes",
            part.byte_size, part.offset
        )));
    }
    // Fits: the sum of all three was checked when the region was registered.
    let at = within.region.status.offset + part.offset;
    let length = usize::try_from(part.byte_size).unwrap_or(usize::MAX);
    Ok(RegionSlice { within, at, length })
}

/// Reads the inputs that lie in regions. They count as held like those that come in bodies, until what is returned is
/// dropped.
pub(crate) async fn fetch(
    context: &IoContext,
    owner: &Arc<Owner>,
    request: &mut InferRequest<'_>,
) -> Result<Option<HeldBytes>, Fault> {
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
        held.get_or_insert_with(|| HeldBytes::new(owner)).add(slice.length)?;
        let sentence =
            format!("input {:?} could not be read from the shared memory region {:?}", input.name, region.name);
        let read = move || {
            let mut data = room(slice.length)?;
            data.resize(slice.length, 0);
            match slice.within.region.file.read_exact_at(&mut data, slice.at) {
                Ok(()) => Ok(Bytes::from(data)),
                Err(error) => Err(Fault::bad(format!("{sentence}: {error}; was it cut?"))),
            }
        };
        input.data = if region.byte_size < OFFLOAD_COPY_BYTES as u64 {
            read()?
        } else {
            offload(owner, region.byte_size as usize, read).await?
        };
        check_elements(&input.name, input.datatype, &input.shape, &input.data)?;
    }
    Ok(held)
}

/// Finds the place of an output in a region, before anything is computed. The region stays until it is written there.
pub(crate) fn reserve(context: &IoContext, name: &str, region: &Region) -> Result<RegionSlice, Fault> {
    find_slice(context, "output", name, region)
}

/// Writes an output to its place in a region, which then says how long it is.
pub(crate) async fn place(
    owner: &Arc<Owner>,
    name: &str,
    data: &Bytes,
    slice: RegionSlice,
    region: &mut Region,
) -> Result<(), Fault> {
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
    let (bytes, is_large) = (data.len(), data.len() >= OFFLOAD_COPY_BYTES);
    let write = move || {
        let bad = |error: &dyn std::fmt::Display| Fault::bad(format!("{sentence}: {error}"));
        // Writing behind the end would make the object longer.
        let end = slice.at + data.len() as u64;
        let file = &slice.within.region.file;
        if length(file).map_err(|error| bad(&error))? < end {
            return Err(bad(&"it was cut"));
        }
        file.write_all_at(&data, slice.at).map_err(|error| bad(&error))
    };
    if is_large { offload(owner, bytes, write).await } else { write() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::block_on;
    use expect_test::expect;
    use std::pin::pin;
    use std::task::{Context, Waker};

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
        let (regions, view) = (Arc::new(Regions::default()), RegionsView::default());
        assert!(view.find(&regions, "a").is_none());
        regions.register(&request("a", &key, 20, 80)).unwrap();
        regions.register(&request("b", &key[1..], 0, 1)).unwrap();
        assert_eq!(view.find(&regions, "a").unwrap().region.status.offset, 20);
        assert_eq!(regions.status("").len(), 2);
        assert_eq!(regions.status("b")["b"].key, key[1..]);
        let again = regions.register(&request("a", &key, 0, 1)).unwrap_err();
        assert_eq!(again.reason, Reason::AlreadyExists);
        block_on(regions.unregister("a"));
        assert!(view.find(&regions, "a").is_none());
        block_on(regions.unregister(""));
        assert!(regions.status("").is_empty());
    }

    #[test]
    fn unregistering_waits_for_the_requests_that_use_a_region() {
        let (_object, key) = object();
        let (regions, view) = (Arc::new(Regions::default()), RegionsView::default());
        for name in ["used", "unused"] {
            regions.register(&request(name, &key, 0, 10)).unwrap();
        }
        let names = || regions.status("").into_keys().collect::<Vec<_>>();
        let mut cx = Context::from_waker(Waker::noop());
        let (first, second) = (view.find(&regions, "used").unwrap(), view.find(&regions, "used").unwrap());
        let mut waits = pin!(regions.unregister(""));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert_eq!(names(), ["used"], "who isn't used goes at once");
        assert!(view.find(&regions, "used").is_none(), "nobody takes it up any more");
        let again = regions.register(&request("used", &key, 0, 10)).unwrap_err();
        assert!(again.to_string().contains("is still used by requests"), "{again}");
        drop(first);
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        drop(second);
        assert!(names().is_empty() && waits.poll(&mut cx).is_ready());
        regions.register(&request("used", &key, 0, 10)).unwrap();
    }

    #[test]
    fn a_region_goes_with_its_last_use_though_nobody_waits_for_that() {
        let (_object, key) = object();
        let (regions, view) = (Arc::new(Regions::default()), RegionsView::default());
        regions.register(&request("a", &key, 0, 10)).unwrap();
        let used = view.find(&regions, "a").unwrap();
        let mut gives_up = Box::pin(regions.unregister("a"));
        assert!(gives_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(gives_up);
        assert_eq!(regions.status("").len(), 1);
        drop(used);
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
