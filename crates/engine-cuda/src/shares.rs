//! Shares of a device: partitions with multiprocessors of their own, made of green contexts.
//!
//! Memory is the same for all of them, so that weights stay where they are when shares change.

use crate::driver::{DriverError, Gpu, call};
use crate::split;
use cudarc::driver::sys;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

/// A set of multiprocessors with a context of its own, or the whole device.
pub struct Partition {
    gpu: Arc<Gpu>,
    green: Option<sys::CUgreenCtx>,
    context: sys::CUcontext,
    multiprocessors: u32,
}

// SAFETY: the handles are names; the driver's calls with them may come from any thread.
unsafe impl Send for Partition {}
// SAFETY: as above.
unsafe impl Sync for Partition {}

impl Partition {
    /// The whole device.
    pub fn whole(gpu: &Arc<Gpu>) -> Arc<Self> {
        let (context, multiprocessors) = (gpu.context(), gpu.multiprocessors);
        Arc::new(Self { gpu: Arc::clone(gpu), green: None, context, multiprocessors })
    }

    /// One partition for each share, in their order, none overlapping another. A single share of 1 is the whole device.
    pub fn divide(gpu: &Arc<Gpu>, shares: &[f64]) -> Result<Vec<Arc<Self>>, String> {
        if matches!(shares, [share] if *share >= 1.0) {
            return Ok(vec![Self::whole(gpu)]);
        }
        let refused = |refused: DriverError| format!("the device can't be shared: {refused}");
        gpu.enter().map_err(refused)?;
        let (parts, rest_of_all) = parts(&resource(gpu).map_err(refused)?).map_err(refused)?;
        let each = split::split(parts.len() as u32, shares)?;
        let all_taken = each.iter().sum::<u32>() as usize == parts.len();
        let mut rest = parts.as_slice();
        each.iter()
            .map(|&count| {
                let (own, others) = rest.split_at(count as usize);
                rest = others;
                let mut own = own.to_vec();
                if all_taken && others.is_empty() {
                    // What is no whole part goes to the last share, if the driver lets us put it there.
                    own.push(rest_of_all);
                    if let Ok(made) = Self::of_parts(gpu, &mut own) {
                        return Ok(made);
                    }
                    own.pop();
                }
                Self::of_parts(gpu, &mut own).map_err(refused)
            })
            .collect()
    }

    fn of_parts(gpu: &Arc<Gpu>, own: &mut [sys::CUdevResource]) -> Result<Arc<Self>, DriverError> {
        let (mut descriptor, mut green, mut context) = (null_mut(), null_mut(), null_mut());
        let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as u32;
        // SAFETY: the parts come from one split of this device; each call writes one handle.
        unsafe {
            call!(cuDevResourceGenerateDesc(&raw mut descriptor, own.as_mut_ptr(), own.len() as u32))?;
            call!(cuGreenCtxCreate(&raw mut green, descriptor, gpu.raw(), flags))?;
            let mut made = Self { gpu: Arc::clone(gpu), green: Some(green), context, multiprocessors: 0 };
            call!(cuCtxFromGreenCtx(&raw mut context, green))?;
            made.context = context;
            made.multiprocessors = own.iter().map(|part| part.__bindgen_anon_1.sm.smCount).sum();
            Ok(Arc::new(made))
        }
    }

    /// Makes its context the thread's.
    pub fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context lives as long as `self`.
        unsafe { call!(cuCtxSetCurrent(self.context)) }
    }

    /// The device that it is part of.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Its multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    pub(crate) fn green(&self) -> Option<sys::CUgreenCtx> {
        self.green
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        if let Some(green) = self.green {
            let _ = self.gpu.enter();
            // SAFETY: made once, destroyed once; streams of it hold it.
            unsafe { sys::cuGreenCtxDestroy(green) };
        }
    }
}

/// The device's multiprocessors.
fn resource(gpu: &Gpu) -> Result<sys::CUdevResource, DriverError> {
    let mut all = MaybeUninit::zeroed();
    let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
    // SAFETY: zeros are a valid value of this type (kind 0 is "invalid"), and the call fills it.
    unsafe {
        call!(cuDeviceGetDevResource(gpu.raw(), all.as_mut_ptr(), kind))?;
        Ok(all.assume_init())
    }
}

/// Cuts it into the smallest parts that the driver gives, all of one size, and what is left over.
fn parts(all: &sys::CUdevResource) -> Result<(Vec<sys::CUdevResource>, sys::CUdevResource), DriverError> {
    // SAFETY: as in `resource`; without a place for results the call only counts, with one it writes at most `count`.
    unsafe {
        let sms = all.__bindgen_anon_1.sm;
        let unit = sms.minSmPartitionSize.max(sms.smCoscheduledAlignment).max(1);
        let mut count = 0;
        call!(cuDevSmResourceSplitByCount(null_mut(), &raw mut count, all, null_mut(), 0, unit))?;
        let mut parts: Vec<sys::CUdevResource> = vec![MaybeUninit::zeroed().assume_init(); count as usize];
        let mut rest = MaybeUninit::<sys::CUdevResource>::zeroed();
        call!(cuDevSmResourceSplitByCount(parts.as_mut_ptr(), &raw mut count, all, rest.as_mut_ptr(), 0, unit))?;
        parts.truncate(count as usize);
        Ok((parts, rest.assume_init()))
    }
}
