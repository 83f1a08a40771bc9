//! A model in host memory: what sessions are made from, and the sessions that are parked until the next load.

use crate::block;
use crate::cache::{self, Optimised};
use crate::external::External;
use crate::optimise::{bad_model, optimise};
use crate::optional::OptionalInputs;
use crate::runtime::{Runtime, RuntimeError};
use crate::session::{PackedWeights, Session, SessionOptions, SessionTensor};
use crate::signature::{Port, Ports};
use crate::sizes::SeenSizes;
use crate::weights::{self, ExternalWeights};
use bytes::Bytes;
use engine::{EngineError, Tensor};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Sessions of models up to this size (a page of device memory) are kept after an unload and taken up by the next load:
/// they hold next to nothing, and making one takes 20 to 50 us for each node of the graph. What larger ones hold,
/// packed weights above all, an unload must free.
const MAX_PARKED_BYTES: u64 = 2 << 20;
/// How many sessions of one model are kept.
const MAX_PARKED: usize = 8;

/// See the module. Models of equal content share one.
pub(crate) struct OrtModel {
    // The order is that of dropping: sessions before what they use.
    parked: Mutex<Vec<Session>>,
    options: SessionOptions,
    /// For sessions that use several threads where others don't, and share their weights: nothing for a model that
    /// can't be split, of which each session has its own.
    wide_options: Option<SessionOptions>,
    /// Whether such a session could not be made the last time.
    stays_narrow: AtomicBool,
    #[allow(dead_code, reason = "the options point to them")]
    values: Vec<SessionTensor>,
    source: SessionSource,
    packs: bool,
    /// What its sessions have packed, as long as there is one: as many devices as hold the model share it.
    packed: Mutex<Weak<PackedWeights>>,
    pub(crate) ports: Ports,
    /// What inputs are where nobody gives them, in the order of the inputs; none: all must be given.
    pub(crate) defaults: Vec<Option<Tensor>>,
    pub(crate) weight_bytes: u64,
    /// Of its executions, whichever session runs them.
    pub(crate) sizes: Mutex<SeenSizes>,
    /// Whether one of its sessions has computed something.
    pub(crate) has_computed: AtomicBool,
}

/// What a session is made from.
enum SessionSource {
    /// The optimised graph without its weights, which are supplied from the block.
    Split(Optimised),
    /// The original file, for models that can't be split: every session optimises it anew.
    Whole(Bytes),
}

impl SessionSource {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Split(optimised) => &optimised.skeleton,
            Self::Whole(bytes) => bytes,
        }
    }

    fn weight_bytes(&self) -> u64 {
        match self {
            Self::Split(optimised) => (optimised.skeleton.len() + optimised.block_bytes) as u64,
            Self::Whole(bytes) => bytes.len() as u64,
        }
    }
}

impl OrtModel {
    /// Makes the model of a file's bytes, or finds it in the cache. What the file holds by now doesn't matter, and the
    /// files in its folder must hold what they held before: the cache's name for the result was made from both.
    pub(crate) fn prepare(
        runtime: &'static Runtime,
        file: &Path,
        bytes: Bytes,
        external: &External,
        cached: Option<&Path>,
    ) -> Result<Self, EngineError> {
        if let Some(optimised) = cached.and_then(cache::read) {
            match Self::split(runtime, optimised) {
                Ok(model) => return Ok(model),
                Err(refused) => tracing::warn!("{}: its cached form is not usable: {}", file.display(), refused.0),
            }
        }
        let optimised = optimise(runtime, file, &bytes, cached)?;
        external.check_unchanged(file)?;
        if let Some(optimised) = optimised {
            match Self::split(runtime, optimised) {
                Ok(model) => return Ok(model.keep(runtime, cached)),
                // The runtime writes some graphs in a form that it can't read, for instance with branches whose weights
                // have equal names.
                Err(refused) => tracing::debug!("{}: it is kept as it is: {}", file.display(), refused.0),
            }
        }
        let whole = Self::whole(runtime, file, bytes).map_err(|refused| bad_model(file, &refused))?;
        external.check_unchanged(file)?;
        Ok(whole)
    }

    fn split(runtime: &'static Runtime, optimised: Optimised) -> Result<Self, RuntimeError> {
        let weights = weights::external_weights(&optimised.skeleton)
            .ok_or_else(|| RuntimeError("its weights can't be told apart by name".into()))?;
        // Convolutions compute with weights as they are; matrix products are up to a quarter slower unless theirs are
        // packed, which takes as long as copying them several times.
        let packs = 2 * weights.convolution_bytes < optimised.block_bytes || weights.list.is_empty();
        let optimised = if packs {
            optimised
        } else {
            optimised.pinned().map_err(|error| RuntimeError(format!("no memory for its weights: {error}")))?
        };
        let values = values(runtime, &weights, &optimised)?;
        let options = |pooled: bool| split_options(runtime, (pooled, packs), &weights, &values);
        let wide_options = if runtime.has_wide { Some(options(true)?) } else { None };
        let options = options(runtime.pooled)?;
        let packed = if packs { Some(Arc::new(PackedWeights::new(runtime)?)) } else { None };
        let session = Session::from_bytes(runtime, &optimised.skeleton, &options, packed.clone())?;
        let known = Mutex::new(packed.as_ref().map_or_else(Weak::new, Arc::downgrade));
        let model = Self::of(options, SessionSource::Split(optimised), session)?;
        Ok(Self { wide_options, values, packs, packed: known, ..model })
    }

    fn whole(runtime: &'static Runtime, file: &Path, bytes: Bytes) -> Result<Self, RuntimeError> {
        let options = SessionOptions::new(runtime)?;
        options.optimise(true)?;
        options.weights_next_to(file)?;
        let session = Session::from_bytes(runtime, &bytes, &options, None)?;
        Self::of(options, SessionSource::Whole(bytes), session)
    }

    /// With its first session, which is dropped before what it uses where that has no ports that we know.
    fn of(options: SessionOptions, source: SessionSource, session: Session) -> Result<Self, RuntimeError> {
        let ports = Ports::of(&session)?;
        let weight_bytes = source.weight_bytes();
        let (parked, packed, defaults, sizes, stays_narrow, has_computed) = Default::default();
        let (wide_options, values, packs) = (None, Vec::new(), true);
        let model = Self {
            parked,
            options,
            wide_options,
            stays_narrow,
            values,
            source,
            packs,
            packed,
            ports,
            defaults,
            weight_bytes,
            sizes,
            has_computed,
        };
        model.park(session);
        Ok(model)
    }

    /// With inputs that the runtime doesn't count as such, because it has values for them.
    pub(crate) fn with_optional(mut self, optional: OptionalInputs) -> Self {
        if !optional.list.is_empty() {
            self.defaults = vec![None; self.ports.inputs.len()];
        }
        for (port, value) in optional.list {
            self.ports.inputs.push(port);
            self.defaults.push(Some(value));
        }
        self
    }

    /// Keeps the optimised form for the next start, if there is room.
    fn keep(self, runtime: &'static Runtime, cached: Option<&Path>) -> Self {
        let (Some(path), SessionSource::Split(optimised)) = (cached, &self.source) else { return self };
        if let Err(error) = cache::write(path, optimised) {
            let path = path.display();
            tracing::warn!("{path}: the optimised model can't be kept, the next start takes longer: {error}");
            return self;
        }
        if !self.packs {
            return self;
        }
        // What a session packs isn't looked at again until the next load: lying in a copy of the cache's file, it
        // needn't stay in memory.
        let mapped = cache::read(path).and_then(|optimised| Self::split(runtime, optimised).ok());
        mapped.unwrap_or(self)
    }

    /// A session: a parked one, or a new one.
    pub(crate) fn session(&self, runtime: &'static Runtime) -> Result<Session, RuntimeError> {
        self.session_with(runtime, &self.options)
    }

    /// One that uses the shared pool of threads where others don't, if there can be such.
    pub(crate) fn wide_session(&self, runtime: &'static Runtime) -> Option<Result<Session, RuntimeError>> {
        let made = self.session_with(runtime, self.wide_options.as_ref()?);
        self.stays_narrow.store(made.is_err(), Ordering::Relaxed);
        Some(made)
    }

    /// Whether there can be such, as far as is known.
    pub(crate) fn may_be_wide(&self) -> bool {
        self.wide_options.is_some() && !self.stays_narrow.load(Ordering::Relaxed)
    }

    fn session_with(&self, runtime: &'static Runtime, options: &SessionOptions) -> Result<Session, RuntimeError> {
        let mut parked = self.parked();
        if let Some(index) = parked.iter().position(|session| session.is_wide == options.is_wide()) {
            return Ok(parked.swap_remove(index));
        }
        drop(parked);
        let packed = match &self.source {
            SessionSource::Split(_) if self.packs => Some(self.packed(runtime)?),
            SessionSource::Split(_) | SessionSource::Whole(_) => None,
        };
        Session::from_bytes(runtime, self.source.bytes(), options, packed)
    }

    /// What is packed, or where it will be.
    fn packed(&self, runtime: &'static Runtime) -> Result<Arc<PackedWeights>, RuntimeError> {
        // A panic in between leaves what was there.
        let mut known = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(packed) = known.upgrade() {
            return Ok(packed);
        }
        let packed = Arc::new(PackedWeights::new(runtime)?);
        *known = Arc::downgrade(&packed);
        Ok(packed)
    }

    /// Takes a session back, to be kept or freed.
    pub(crate) fn park(&self, session: Session) {
        let mut parked = self.parked();
        if self.weight_bytes <= MAX_PARKED_BYTES && parked.len() < MAX_PARKED {
            parked.push(session);
        }
    }

    fn parked(&self) -> MutexGuard<'_, Vec<Session>> {
        // A panic in between leaves the list as it was.
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Options for sessions of a split model, told of its weights.
fn split_options(
    runtime: &'static Runtime,
    (pooled, packs): (bool, bool),
    weights: &ExternalWeights,
    values: &[SessionTensor],
) -> Result<SessionOptions, RuntimeError> {
    let options = SessionOptions::with_pool(runtime, pooled)?;
    options.optimise(false)?;
    options.set(c"session.disable_prepacking", if packs { c"0" } else { c"1" })?;
    for (weight, value) in weights.list.iter().zip(values) {
        // SAFETY: values live in the same `OrtModel` as options and sessions, and are dropped after them (sessions in
        // use hold the model).
        unsafe { options.supply(&weight.name, value) }?;
    }
    Ok(options)
}

/// Values over the weights in the block.
fn values(
    runtime: &'static Runtime,
    weights: &ExternalWeights,
    optimised: &Optimised,
) -> Result<Vec<SessionTensor>, RuntimeError> {
    let (places, end) = block::places(weights.list.iter().map(|weight| weight.length));
    if end != optimised.block_bytes {
        return Err(RuntimeError(format!("its weights take {end} bytes, but {} are there", optimised.block_bytes)));
    }
    let mut values = Vec::with_capacity(places.len());
    for (weight, place) in weights.list.iter().zip(places) {
        let data = &optimised.block[place..place + weight.length];
        // SAFETY: the block is never written to again and lives in the same `OrtModel` as values, options and sessions,
        // and is dropped after them (sessions in use hold the model).
        let value = unsafe { SessionTensor::over(runtime, data.as_ptr(), data.len(), &weight.dims, weight.element) };
        values.push(value?);
    }
    Ok(values)
}

/// The names of ports as the runtime takes them.
pub(crate) fn names(ports: &[Port]) -> Vec<*const core::ffi::c_char> {
    ports.iter().map(|port| port.name.as_ptr()).collect()
}
