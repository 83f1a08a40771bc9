//! A model that can be executed.

use crate::blame;
use crate::model::{self, OrtModel};
use crate::run_options::RunOptions;
use crate::runtime::{Runtime, RuntimeError, no_memory};
use crate::session::{Session, SessionTensor};
use crate::signature::{self, Port};
use crate::sizes::SeenSizes;
use crate::strings;
use crate::wide::WidePlace;
use base::{DataType, element_count};
use engine::{AtOnce, Breaker, EngineError, Sink, TensorView};
use ort::sys;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

/// See the module. Its buffers are kept from one execution to the next.
pub(crate) struct OrtLoaded {
    runtime: &'static Runtime,
    /// `None` only while it is being dropped.
    session: Option<Session>,
    /// Where the device may have all cores.
    wide: Option<WidePlace>,
    model: Arc<OrtModel>,
    /// The C strings belong to the model.
    input_names: Vec<*const core::ffi::c_char>,
    output_names: Vec<*const core::ffi::c_char>,
    values: Vec<SessionTensor>,
    inputs: Vec<*const sys::OrtValue>,
    outputs: Vec<*mut sys::OrtValue>,
    /// Inputs that did not lie where their type may lie, moved; words, so that every type may lie there.
    aligned: Vec<Vec<u64>>,
    text: Vec<u8>,
    options: Arc<RunOptions>,
    /// Whether the first dimension counts rows, of which the configuration bounds the number.
    batched: bool,
    /// Whether executions may differ in size, but for the number of rows.
    elastic: bool,
}

// SAFETY: the pointers are to strings of the model, which is held, and to values that are only there during a call.
unsafe impl Send for OrtLoaded {}

impl OrtLoaded {
    pub(crate) fn new(
        runtime: &'static Runtime,
        model: Arc<OrtModel>,
        (session, wide): (Session, Option<WidePlace>),
        batched: bool,
    ) -> Result<Self, RuntimeError> {
        let (inputs, outputs) = (model.ports.inputs.len(), model.ports.outputs.len());
        let elastic = model.ports.inputs.iter().any(|port| port.spec.is_open(batched.into()));
        Ok(Self {
            runtime,
            session: Some(session),
            wide,
            input_names: model::names(&model.ports.inputs),
            output_names: model::names(&model.ports.outputs),
            values: Vec::with_capacity(inputs),
            inputs: Vec::with_capacity(inputs),
            outputs: vec![ptr::null_mut(); outputs],
            aligned: vec![Vec::new(); inputs],
            text: Vec::new(),
            options: Arc::new(RunOptions::new(runtime, elastic)?),
            batched,
            elastic,
            model,
        })
    }

    /// Frees what an execution left: all inputs, and outputs that weren't handed out.
    fn clear(&mut self) {
        self.inputs.clear();
        self.values.clear();
        for raw in self.outputs.iter_mut().filter(|raw| !raw.is_null()) {
            // SAFETY: made for us by the runtime, and taken out here, so freed once.
            drop(unsafe { SessionTensor::owned(self.runtime, std::mem::replace(raw, ptr::null_mut())) });
        }
    }

    /// Makes a value over each input.
    fn bind(&mut self, inputs: &[TensorView<'_>]) -> Result<(), RuntimeError> {
        let ports = &self.model.ports.inputs;
        if inputs.len() != ports.len() {
            return Err(RuntimeError(format!("{} inputs were given, the model has {}", inputs.len(), ports.len())));
        }
        for ((port, view), aligned) in ports.iter().zip(inputs).zip(&mut self.aligned) {
            let value = bind(self.runtime, port, view, aligned)?;
            self.inputs.push(value.raw);
            self.values.push(value);
        }
        Ok(())
    }

    /// How to run with these inputs: plainly, or so that memory is given back.
    fn run_options(&self, inputs: &[TensorView<'_>]) -> *const sys::OrtRunOptions {
        if !self.elastic {
            return self.options.plain();
        }
        let bytes = inputs.iter().map(|view| view.data.len() as u64).sum::<u64>();
        let rows = inputs.first().and_then(|view| view.shape.first()).filter(|_| self.batched);
        let rows = rows.and_then(|&rows| u64::try_from(rows).ok()).unwrap_or(1).max(1);
        if self.sizes().see(bytes / rows) { self.options.shrinking() } else { self.options.plain() }
    }

    fn run_with(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let done = self.run(self.run_options(inputs));
        if done.is_err() && self.elastic {
            self.sizes().failed();
        }
        done
    }

    /// What was seen of the model. A panic in between leaves numbers that are as good as any.
    fn sizes(&self) -> MutexGuard<'_, SeenSizes> {
        self.model.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&mut self, options: *const sys::OrtRunOptions) -> Result<(), EngineError> {
        let wide = self.wide.as_ref().and_then(WidePlace::session);
        let session = wide.unwrap_or_else(|| self.session.as_ref().expect("there until it is dropped"));
        self.options.begin();
        // SAFETY: the options are held; names and values are live and as many as is said; outputs are
        // null, so the runtime makes them. No other thread can use this session, since `self` is borrowed mutably.
        let status = unsafe {
            (self.runtime.api.Run)(
                session.raw,
                options,
                self.input_names.as_ptr(),
                self.inputs.as_ptr(),
                self.inputs.len(),
                self.output_names.as_ptr(),
                self.output_names.len(),
                self.outputs.as_mut_ptr(),
            )
        };
        let has_computed = &self.model.has_computed;
        self.runtime.check_execution(status).map_err(|(code, refused)| match self.options.is_broken_off() {
            true => EngineError::BrokenOff,
            false => blame::failed(code, refused, has_computed.load(Ordering::Relaxed)),
        })?;
        if !has_computed.load(Ordering::Relaxed) {
            has_computed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Hands the outputs to the sink.
    fn emit(&mut self, sink: &mut Sink<'_>) -> Result<(), RuntimeError> {
        for index in 0..self.outputs.len() {
            let raw = std::mem::replace(&mut self.outputs[index], ptr::null_mut());
            if raw.is_null() {
                let name = &self.model.ports.outputs[index].spec.name;
                return Err(RuntimeError(format!("output {name} has no value")));
            }
            // SAFETY: the runtime made it for us.
            let value = unsafe { SessionTensor::owned(self.runtime, raw) };
            emit(self.runtime, &value, &mut self.text, &mut |view| sink(index, view))?;
        }
        Ok(())
    }
}

impl AtOnce for OrtLoaded {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        // Outputs that nobody took, and what a sink that panicked left behind.
        self.clear();
        let done = self.bind(inputs).map_err(blame::of_inputs).and_then(|()| self.run_with(inputs));
        // The inputs' memory is the caller's: no value may outlive this call.
        self.inputs.clear();
        self.values.clear();
        done
    }

    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        let done = self.emit(sink);
        self.clear();
        done.map_err(|refused| EngineError::Execute(refused.0))
    }

    fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        Some(Arc::clone(&self.options) as Arc<dyn Breaker>)
    }
}

impl Drop for OrtLoaded {
    fn drop(&mut self) {
        self.clear();
        if let Some(session) = self.session.take() {
            self.model.park(session);
        }
    }
}

fn bind(
    runtime: &'static Runtime,
    port: &Port,
    view: &TensorView<'_>,
    aligned: &mut Vec<u64>,
) -> Result<SessionTensor, RuntimeError> {
    let name = &port.spec.name;
    if view.datatype != port.spec.datatype {
        return Err(RuntimeError(format!("input {name} is {}, expected {}", view.datatype, port.spec.datatype)));
    }
    let count = element_count(view.shape).ok_or_else(|| {
        RuntimeError(format!("input {name} has the shape {:?}, which no memory can hold", view.shape))
    })?;
    let Some(size) = view.datatype.size() else {
        let strings = strings::split(view.data, count).map_err(|why| RuntimeError(format!("input {name}: {why}")))?;
        return strings::to_value(runtime, view.shape, &strings);
    };
    if count.checked_mul(size) != Some(view.data.len()) {
        let (length, shape) = (view.data.len(), view.shape);
        return Err(RuntimeError(format!(
            "input {name} has {length} bytes, which is not what the shape {shape:?} takes"
        )));
    }
    if view.datatype == DataType::Bool && view.data.iter().any(|&byte| byte > 1) {
        return Err(RuntimeError(format!("input {name} has a byte that is neither 0 nor 1, but its type is BOOL")));
    }
    let data = if view.data.as_ptr().align_offset(size) == 0 { view.data.as_ptr() } else { moved(view.data, aligned)? };
    // SAFETY: the caller's memory (or the copy) is there until the call to `compute` returns, and the value is dropped
    // before; length, alignment and the values of booleans were checked above.
    unsafe { SessionTensor::over(runtime, data, view.data.len(), view.shape, signature::element(view.datatype)) }
}

/// Copies bytes to where every type may lie.
fn moved(data: &[u8], aligned: &mut Vec<u64>) -> Result<*const u8, RuntimeError> {
    aligned.clear();
    aligned.try_reserve(data.len().div_ceil(8)).map_err(|_| no_memory(data.len()))?;
    aligned.resize(data.len().div_ceil(8), 0);
    let place = aligned.as_mut_ptr().cast::<u8>();
    // SAFETY: `aligned` was just given at least that many bytes, and is no part of `data`.
    unsafe { ptr::copy_nonoverlapping(data.as_ptr(), place, data.len()) };
    Ok(place)
}

fn emit(
    runtime: &'static Runtime,
    value: &SessionTensor,
    text: &mut Vec<u8>,
    sink: &mut dyn FnMut(TensorView<'_>),
) -> Result<(), RuntimeError> {
    let mut element = 0_i32;
    let (mut dims, mut rank) = (ptr::null(), 0);
    // SAFETY: the value is live and the out-pointers are valid (the element is a number as far as the runtime is
    // concerned: a newer one may know types that the enum doesn't); the shape belongs to the value.
    let shape: &[i64] = unsafe {
        let describe = runtime.api.GetTensorElementTypeAndShapeDataReference;
        runtime.check(describe(value.raw, (&raw mut element).cast(), &mut dims, &mut rank))?;
        if rank == 0 { &[] } else { std::slice::from_raw_parts(dims, rank) }
    };
    let datatype = signature::data_type(element).ok_or_else(|| {
        RuntimeError(format!("an output has elements that the protocol has no type for (number {element} in ONNX)"))
    })?;
    let count =
        element_count(shape).ok_or_else(|| RuntimeError(format!("an output has the impossible shape {shape:?}")))?;
    let data: &[u8] = match datatype.size() {
        None => {
            // SAFETY: a live tensor of `count` strings.
            unsafe { strings::from_value(runtime, value.raw, count, text) }?;
            text
        }
        Some(_) if count == 0 => &[],
        Some(size) => {
            let mut data = ptr::null_mut();
            // SAFETY: the value is live; its memory has `count` elements of `size` bytes and isn't written to any more.
            unsafe {
                runtime.check((runtime.api.GetTensorMutableData)(value.raw, &mut data))?;
                std::slice::from_raw_parts(data.cast::<u8>(), count * size)
            }
        }
    };
    sink(TensorView { datatype, shape, data });
    Ok(())
}
