//! The device's memory, taken once at the start.
//!
//! ```text
//!  addresses (reserved, far more than memory)     physical memory (a fixed number of pages of 2 MiB, in slabs)
//!  ├─ model a ─┤├─ model b ──────┤├─ workspace…    ▢▢▢▢ ▢▢ ▢▢▢▢▢▢ …
//!        └──────── LOAD maps a free slab there, UNLOAD gives it back ────────┘
//! ```
//!
//! A model has its addresses from the moment it is prepared, so that graphs that name them stay valid while its weights
//! come and go. Workspaces and IO buffers have theirs too and only ever grow, when a model is prepared that needs more.

use crate::addresses::AddressPlan;
use crate::driver::{Address, DriverError, Gpu, Pinned, call};
use crate::slabs::{SlabSource, Slabs};
use crate::streams::CudaStream;
use cudarc::driver::sys;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A physical page: what the driver maps on its large pages.
pub const PAGE_BYTES: usize = 2 << 20;
/// Addresses that are reserved, if the system lets us: every model that is prepared has some, loaded or not.
const RESERVED_BYTES: u64 = 8 << 40;

/// Slabs that are taken at the start have this many pages; loads make their own sizes of them.
const FIRST_SLAB_PAGES: u32 = 32;

type Handle = sys::CUmemGenericAllocationHandle;

/// See the module.
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    base: Address,
    reserved_bytes: usize,
    state: Mutex<MemoryState>,
    /// Loads whose copies are under way.
    loads: AtomicUsize,
}

struct MemoryState {
    slabs: Slabs<Handle>,
    /// Pages beyond those that the scheduler counts.
    spare: u32,
    plan: AddressPlan,
}

impl DeviceMemory {
    /// Reserves addresses and takes that many pages for weights. A sentence if the device doesn't have them.
    pub fn take(gpu: &Arc<Gpu>, pages: u32) -> Result<Arc<Self>, String> {
        gpu.enter().map_err(|refused| refused.to_string())?;
        let (base, reserved_bytes) = reserve(gpu.memory_bytes)?;
        let plan = AddressPlan::new((reserved_bytes / PAGE_BYTES) as u64);
        let state = Mutex::new(MemoryState { slabs: Slabs::new(pages), spare: 0, plan });
        let memory = Self { gpu: Arc::clone(gpu), base, reserved_bytes, state, loads: AtomicUsize::new(0) };
        let sizes = |left: &u32| left.checked_sub(FIRST_SLAB_PAGES).filter(|left| *left > 0);
        let made = std::iter::successors((pages > 0).then_some(pages), sizes)
            .map(|left| memory.slab(left.min(FIRST_SLAB_PAGES)).map(|slab| (left.min(FIRST_SLAB_PAGES), slab)))
            .collect::<Result<Vec<_>, _>>()?;
        made.into_iter().for_each(|(pages, slab)| memory.state().slabs.give_back(pages, slab));
        Ok(Arc::new(memory))
    }

    /// Whether weights are being copied here: the copy engine turns to nothing else before they are there.
    pub fn is_loading(&self) -> bool {
        self.loads.load(Ordering::Relaxed) > 0
    }

    /// A slab of so many pages, if there are so many free ones.
    fn slab(&self, pages: u32) -> Result<Handle, String> {
        let mut state = self.state();
        let free = state.slabs.free_pages();
        let source = state.slabs.take(pages);
        match source.ok_or_else(|| format!("P5: {pages} pages wanted, {free} are free on {:?}", self.gpu))? {
            SlabSource::Slab(slab) => Ok(slab),
            SlabSource::Make { after } => {
                for (_, slab) in after {
                    // SAFETY: nobody has mapped it, and nobody will: it isn't among the slabs any more.
                    unsafe { sys::cuMemRelease(slab) };
                }
                create(&self.gpu, pages as usize * PAGE_BYTES).map_err(|refused| {
                    state.slabs.add(pages);
                    format!(
                        "{pages} pages of {:?} could not be had, another program may have taken them: {refused}",
                        self.gpu
                    )
                })
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        // A panic in between is a broken invariant that ends the process's use of this device anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages for weights that nobody has.
    pub fn free_pages(&self) -> u32 {
        self.state().slabs.free_pages()
    }

    /// Makes sure that so many pages are there beyond those that the scheduler counts: a model is measured before it
    /// knows of it.
    pub fn spare(&self, pages: u32) {
        let mut state = self.state();
        let more = pages.saturating_sub(state.spare);
        state.spare += more;
        state.slabs.add(more);
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Addresses for so many bytes, with nothing behind them yet.
    pub fn place(self: &Arc<Self>, bytes: usize) -> Result<AddressRange, String> {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        let start = self.state().plan.take(pages as u64);
        let start = start.ok_or_else(|| {
            format!(
                "no {bytes} bytes of addresses are left of the {} that are reserved: remove models",
                self.reserved_bytes
            )
        })?;
        let address = self.base + start * PAGE_BYTES as u64;
        Ok(AddressRange { memory: Arc::clone(self), address, pages })
    }

    /// Lets the device read and write what is mapped there.
    fn allow(&self, address: Address, bytes: usize) -> Result<(), DriverError> {
        let access = sys::CUmemAccessDesc {
            location: location(&self.gpu),
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the whole range is mapped; one descriptor is read.
        unsafe { call!(cuMemSetAccess(address, bytes, &raw const access, 1)) }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _ = self.gpu.enter();
        // SAFETY: whatever is mapped holds this value, so that nothing is mapped any more.
        unsafe {
            self.state().slabs.drain().for_each(|slab| {
                sys::cuMemRelease(slab);
            });
            sys::cuMemAddressFree(self.base, self.reserved_bytes);
        }
    }
}

/// Reserves as many addresses as the system gives, at least twice the device's memory.
fn reserve(memory_bytes: u64) -> Result<(Address, usize), String> {
    let mut bytes = RESERVED_BYTES;
    loop {
        let mut base = 0;
        // SAFETY: one address is written.
        match unsafe { call!(cuMemAddressReserve(&raw mut base, bytes as usize, PAGE_BYTES, 0, 0)) } {
            Ok(()) => return Ok((base, bytes as usize)),
            Err(_) if bytes / 2 >= 2 * memory_bytes => bytes /= 2,
            Err(refused) => return Err(format!("no addresses could be reserved: {refused}")),
        }
    }
}

fn location(gpu: &Gpu) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.raw() }
}

/// Physical memory, a multiple of a page.
fn create(gpu: &Gpu, bytes: usize) -> Result<Handle, DriverError> {
    // SAFETY: zeros are a valid value of this plain structure and mean "nothing special".
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(gpu);
    let mut handle = 0;
    // SAFETY: one handle is written; the properties are read.
    unsafe { call!(cuMemCreate(&raw mut handle, bytes, &raw const properties, 0))? };
    Ok(handle)
}

/// Addresses that belong to somebody until this is dropped.
pub struct AddressRange {
    memory: Arc<DeviceMemory>,
    address: Address,
    pages: usize,
}

impl AddressRange {
    /// Where it begins.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its length in pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Unmaps the first so many pages. The driver takes several mappings at once if they cover the range.
    fn unmap(&self, pages: usize) {
        if pages == 0 {
            return;
        }
        let _ = self.memory.gpu.enter();
        // SAFETY: exactly these pages are mapped, and nothing on the device uses them any more (P6).
        let unmapped = unsafe { call!(cuMemUnmap(self.address, pages * PAGE_BYTES)) };
        if let Err(refused) = unmapped {
            panic!("pages can't be taken back from a model: {refused}");
        }
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let start = (self.address - self.memory.base) / PAGE_BYTES as u64;
        self.memory.state().plan.give_back(start, self.pages as u64);
    }
}

/// Weights on the device: a place with a slab. Dropping it is UNLOAD.
pub struct LoadedWeights {
    place: Arc<AddressRange>,
    slab: Handle,
    mapped: bool,
}

impl LoadedWeights {
    /// LOAD: maps a slab and copies the blob into it. Returns when all of it is there.
    pub fn load(place: &Arc<AddressRange>, blob: &Pinned, bytes: usize, stream: &CudaStream) -> Result<Self, String> {
        assert!(bytes <= blob.len() && bytes <= place.pages * PAGE_BYTES, "a blob fits its place");
        let refused = |refused: DriverError| refused.to_string();
        stream.partition().enter().map_err(refused)?;
        let slab = place.memory.slab(place.pages as u32)?;
        let mut weights = Self { place: Arc::clone(place), slab, mapped: false };
        weights.map().map_err(refused)?;
        place.memory.loads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the target is mapped; the blob is never written again and outlives the copy, which is waited for
        // below.
        let copied = unsafe { stream.copy_in(place.address, blob.start(), bytes) };
        // Also after a failure: nothing may be under way when the slab is unmapped.
        let copied = copied.and(stream.wait());
        place.memory.loads.fetch_sub(1, Ordering::Relaxed);
        copied.map_err(refused)?;
        Ok(weights)
    }

    fn map(&mut self) -> Result<(), DriverError> {
        let place = &self.place;
        // SAFETY: the addresses are this place's alone and nothing is mapped there; the slab is this load's alone.
        unsafe { call!(cuMemMap(place.address, place.pages * PAGE_BYTES, 0, self.slab, 0))? };
        self.mapped = true;
        place.memory.allow(place.address, place.pages * PAGE_BYTES)
    }

    /// Where they begin.
    pub fn address(&self) -> Address {
        self.place.address
    }
}

impl Drop for LoadedWeights {
    fn drop(&mut self) {
        if self.mapped {
            self.place.unmap(self.place.pages);
        }
        self.place.memory.state().slabs.give_back(self.place.pages as u32, self.slab);
    }
}

/// Memory that stays at its address and only grows: workspaces and IO buffers.
pub struct Region {
    place: AddressRange,
    handles: Vec<Handle>,
    bytes: usize,
}

impl Region {
    /// Addresses for at most so many bytes; nothing is behind them yet.
    pub fn new(memory: &Arc<DeviceMemory>, at_most: usize) -> Result<Self, String> {
        Ok(Self { place: memory.place(at_most)?, handles: Vec::new(), bytes: 0 })
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.place.address
    }

    /// Bytes that are there.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes sure that so many bytes are there. What is there stays as it is.
    pub fn grow(&mut self, bytes: usize) -> Result<(), String> {
        let memory = &self.place.memory;
        let more = bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES;
        let Some(more) = more.checked_sub(self.bytes).filter(|more| *more > 0) else { return Ok(()) };
        if bytes > self.place.pages * PAGE_BYTES {
            return Err(format!(
                "{bytes} bytes of working memory are more than the {} that a device has for it",
                self.place.pages * PAGE_BYTES
            ));
        }
        let failed = |refused: DriverError| format!("{more} more bytes of working memory are needed: {refused}");
        memory.gpu.enter().map_err(failed)?;
        let handle = create(&memory.gpu, more).map_err(failed)?;
        let address = self.place.address + self.bytes as u64;
        // SAFETY: behind what is mapped already, inside the place; the handle is released when the region is dropped.
        if let Err(refused) = unsafe { call!(cuMemMap(address, more, 0, handle, 0)) } {
            // SAFETY: made above, mapped nowhere.
            unsafe { sys::cuMemRelease(handle) };
            return Err(failed(refused));
        }
        self.handles.push(handle);
        self.bytes += more;
        memory.allow(address, more).map_err(failed)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.place.unmap(self.bytes / PAGE_BYTES);
        for handle in &self.handles {
            // SAFETY: made once, unmapped above, released once.
            unsafe { sys::cuMemRelease(*handle) };
        }
    }
}
