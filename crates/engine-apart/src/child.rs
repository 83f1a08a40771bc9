//! The process's side: it gives up what it may do, opens an engine, and does what the server says.
//!
//! One thread reads messages, so that a batch is broken off while it is computed; one prepares and loads; one computes
//! batches, in the regions that the first is handed.

use crate::messages::{
    BatchAnswer, BatchOrder, Beginning, Failure, FromEngine, InnerOptions, ModelFiles, PlacedTensor, PreparedModel,
    ToEngine, datatype_of, framed, next, number_of,
};
use crate::region::{DATA_AT, MOVED, SharedRegion, aligned};
use crate::rights;
use base::DataType;
use engine::{Breaker, Compute, Engine, EngineError, Input, Inputs, Loaded, ModelSource, Prepared, TensorView};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut, Read, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The engine that a process has.
pub struct OpenedEngine {
    /// It.
    pub engine: Arc<dyn Engine>,
    /// What its runtime says of itself.
    pub about: String,
}

/// The exit code of a process that can't go on.
const CANT_GO_ON: i32 = 70;

/// Serves the engine of this process to the server that has started it, over its standard input, until that ends.
/// `load` is called while all may be done: it brings libraries into memory and starts no thread. `open` is called after
/// everything that an engine doesn't need was given up.
pub fn serve(
    load: impl FnOnce(&InnerOptions) -> Result<(), EngineError>,
    open: impl FnOnce(&InnerOptions) -> Result<OpenedEngine, EngineError>,
) -> ! {
    let log = tracing_subscriber::fmt().without_time().with_target(false).with_ansi(false);
    // The server has logged nothing of it yet: there is no other subscriber in this process.
    let _ = log.with_max_level(tracing::Level::WARN).with_writer(io::stderr).try_init();
    // What panics here may be in any state: the server starts another process.
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        said(panic);
        std::process::abort();
    }));
    if let Err(error) = run(load, open) {
        eprintln!("it can't go on: {error}");
    }
    end(CANT_GO_ON)
}

fn run(
    load: impl FnOnce(&InnerOptions) -> Result<(), EngineError>,
    open: impl FnOnce(&InnerOptions) -> Result<OpenedEngine, EngineError>,
) -> io::Result<()> {
    close_inherited();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let writer = Arc::new(Mutex::new(socket.try_clone()?));
    let mut reader = WithDescriptors { socket, descriptors: VecDeque::new() };
    let Some(ToEngine::Begin(Beginning { options, parent, allowed })) = next(&mut reader)? else {
        return Err(io::Error::other("the first message isn't how to begin"));
    };
    rights::end_with(parent)?;
    let loaded = load(&options);
    let rights = rights::give_up(&allowed);
    let OpenedEngine { engine, about } = match loaded.and_then(|()| open(&options)) {
        Ok(opened) => opened,
        Err(error) => return send(&writer, &FromEngine::Refused(Failure::of(error))),
    };
    let models = Arc::<ModelsHere>::default();
    let (work, orders) = mpsc::channel();
    let (regions, new_regions) = mpsc::channel();
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    let (loader, answers) = (Arc::clone(&models), Arc::clone(&writer));
    thread("load").spawn(move || ended(load_models(&*engine, &loader, &orders, &answers)))?;
    let computes = Arc::clone(&models);
    thread("exec").spawn(move || ended(compute_batches(&computes, &new_regions)))?;
    send(&writer, &FromEngine::Ready { about, rights })?;
    read(&mut reader, &models, &work, &regions)
}

/// Closes what whoever started the server, or the server, left open for programs that it starts.
fn close_inherited() {
    // SAFETY: takes numbers; nothing in this process has opened anything but what is below 3 yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Reads messages until none come any more: then the server has ended, or has no use for this process.
fn read(
    reader: &mut WithDescriptors,
    models: &ModelsHere,
    work: &Sender<ToEngine>,
    regions: &Sender<SharedRegion>,
) -> io::Result<()> {
    while let Some(message) = next(reader)? {
        match message {
            ToEngine::Region => {
                let descriptor = reader.descriptors.pop_front();
                let region = SharedRegion::open(descriptor.ok_or_else(|| io::Error::other("no region came along"))?)?;
                let _ = regions.send(region);
            }
            ToEngine::BreakOff { batch } => models.break_off(batch),
            message => {
                let _ = work.send(message);
            }
        }
    }
    end(0)
}

/// A thread that ends takes the process along.
fn ended(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        eprintln!("it can't go on: {error}");
    }
    end(CANT_GO_ON)
}

/// Ends the process at once: nothing of it is worth tidying up, and the runtime may still compute.
fn end(code: i32) -> ! {
    // SAFETY: it takes a number, and doesn't come back.
    unsafe { libc::_exit(code) }
}

fn send(writer: &Mutex<UnixStream>, message: &FromEngine) -> io::Result<()> {
    writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&framed(message)?)
}

/// What is on the device.
#[derive(Default)]
struct ModelsHere {
    loaded: Mutex<ByHandle>,
    computed: Mutex<Option<ComputedBatch>>,
}

/// ModelsHere by the numbers that the server has given them.
type ByHandle = HashMap<u32, Arc<Mutex<Box<dyn Loaded>>>>;

/// A batch that is computed, and what breaks it off.
struct ComputedBatch {
    number: u64,
    breaker: Option<Arc<dyn Breaker>>,
}

impl ModelsHere {
    fn loaded(&self) -> MutexGuard<'_, ByHandle> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn computed(&self) -> MutexGuard<'_, Option<ComputedBatch>> {
        self.computed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn break_off(&self, batch: u64) {
        if let Some(ComputedBatch { number, breaker: Some(breaker) }) = &*self.computed()
            && *number == batch
        {
            breaker.break_off();
        }
    }
}

/// Prepares, loads and unloads, in the order in which that is wanted.
fn load_models(
    engine: &dyn Engine,
    models: &ModelsHere,
    orders: &Receiver<ToEngine>,
    answers: &Mutex<UnixStream>,
) -> io::Result<()> {
    let mut known = HashMap::<u64, Arc<dyn Prepared>>::new();
    for order in orders {
        let outcome = match order {
            ToEngine::Prepare(files) => engine.prepare(&source(files)),
            ToEngine::Load { handle, prepared, files } => {
                let found = match known.get(&prepared) {
                    Some(found) => Ok(Arc::clone(found)),
                    None => engine.prepare(&source(files)).inspect(|made| drop(known.insert(prepared, made.clone()))),
                };
                found.and_then(|found| {
                    let loaded = Arc::new(Mutex::new(found.load(0)?));
                    models.loaded().insert(handle, loaded);
                    Ok(found)
                })
            }
            ToEngine::Unload { handle } => {
                let loaded = models.loaded().remove(&handle);
                drop(loaded);
                continue;
            }
            ToEngine::Forget { prepared } => {
                known.remove(&prepared);
                continue;
            }
            ToEngine::Begin(_) | ToEngine::Region | ToEngine::BreakOff { .. } => continue,
        };
        let answer = match outcome {
            Ok(prepared) => FromEngine::Prepared(Box::new(PreparedModel::of(&*prepared))),
            Err(error) => FromEngine::Refused(Failure::of(error)),
        };
        send(answers, &answer)?;
    }
    Ok(())
}

fn source(ModelFiles { name, file, cache, max_batch, shapes }: ModelFiles) -> ModelSource {
    ModelSource { name, file, cache, max_batch, shapes, ..ModelSource::default() }
}

/// Outputs that didn't fit into a region.
type KeptOutputs = Vec<(DataType, Vec<i64>, Vec<u8>)>;

/// Computes what is ordered in one region after another.
fn compute_batches(models: &ModelsHere, regions: &Receiver<SharedRegion>) -> io::Result<()> {
    let (mut lingers, mut kept) = (false, KeptOutputs::new());
    for region in regions {
        let mut seen = 0;
        while let Some(number) = region.order().wait(seen, &mut lingers, || false).filter(|number| *number != MOVED) {
            let order = region.order_text().and_then(|text| postcard::from_bytes(&text).ok());
            let answer = match order.ok_or_else(|| io::Error::other("an order can't be read"))? {
                BatchOrder::Compute { batch, handle, inputs, end } => {
                    compute(models, &region, (batch, handle), &inputs, end as usize, &mut kept)
                }
                BatchOrder::HandOut => hand_out(&region, std::mem::take(&mut kept)),
            };
            let text = postcard::to_extend(&answer, Vec::new()).map_err(io::Error::other)?;
            if !region.set_answer(&text) {
                let failure = Failure::Execute("the model has more outputs than the server is told of".into());
                let text = postcard::to_extend(&BatchAnswer::Failed(failure), Vec::new()).map_err(io::Error::other)?;
                let _ = region.set_answer(&text);
            }
            seen = number;
            region.answer().give(number);
        }
    }
    Ok(())
}

fn compute(
    models: &ModelsHere,
    region: &SharedRegion,
    (batch, handle): (u64, u32),
    inputs: &[PlacedTensor],
    end: usize,
    kept: &mut KeptOutputs,
) -> BatchAnswer {
    let Some(model) = models.loaded().get(&handle).cloned() else {
        return BatchAnswer::Failed(Failure::Execute("P6: the weights are not loaded".into()));
    };
    let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
    *models.computed() = Some(ComputedBatch { number: batch, breaker: model.breaker() });
    let mut room = OutputRoom { region, at: end, needs: 0, placed: Vec::new(), kept };
    room.kept.clear();
    let mut inputs = InRegion { region, inputs };
    let outcome = engine::execute(&mut **model, &mut inputs, &mut |_, view| room.take(view));
    *models.computed() = None;
    match outcome {
        Err(error) => BatchAnswer::Failed(Failure::of(error)),
        Ok(_) if room.kept.is_empty() => BatchAnswer::Computed(room.placed),
        Ok(_) => {
            // What did fit is copied once more, this time behind nothing.
            let mut fitting = KeptOutputs::new();
            for PlacedTensor { datatype, shape, at, bytes } in &room.placed {
                let data = region.view(*at, *bytes).unwrap_or_default().to_vec();
                fitting.push((datatype_of(*datatype).unwrap_or(DataType::Uint8), shape.clone(), data));
            }
            let needs = room.needs;
            kept.splice(..0, fitting);
            BatchAnswer::TooSmall(needs as u64)
        }
    }
}

/// Puts outputs into a new region.
fn hand_out(region: &SharedRegion, kept: KeptOutputs) -> BatchAnswer {
    let mut none = KeptOutputs::new();
    let mut room = OutputRoom { region, at: DATA_AT, needs: 0, placed: Vec::new(), kept: &mut none };
    for (datatype, shape, data) in &kept {
        room.take(TensorView { datatype: *datatype, shape, data });
    }
    match room.kept.is_empty() {
        true => BatchAnswer::Computed(room.placed),
        false => BatchAnswer::Failed(Failure::Execute("its outputs don't fit into what was made for them".into())),
    }
}

/// Takes outputs, as long as there is room behind the inputs.
struct OutputRoom<'a> {
    region: &'a SharedRegion,
    at: usize,
    /// What all of them take, with room to begin each where it should.
    needs: usize,
    placed: Vec<PlacedTensor>,
    kept: &'a mut KeptOutputs,
}

impl OutputRoom<'_> {
    fn take(&mut self, view: TensorView<'_>) {
        self.needs = aligned(self.needs).unwrap_or(usize::MAX).saturating_add(view.data.len());
        let at = aligned(self.at).filter(|_| self.kept.is_empty());
        match at.filter(|&at| self.region.write(at, view.data)) {
            Some(at) => {
                self.at = at + view.data.len();
                let (datatype, shape) = (number_of(view.datatype), view.shape.to_vec());
                self.placed.push(PlacedTensor { datatype, shape, at: at as u64, bytes: view.data.len() as u64 });
            }
            None => self.kept.push((view.datatype, view.shape.to_vec(), view.data.to_vec())),
        }
    }
}

/// The inputs of a batch, where the server has put them.
struct InRegion<'a> {
    region: &'a SharedRegion,
    inputs: &'a [PlacedTensor],
}

impl Inputs for InRegion<'_> {
    fn in_one_piece(&mut self, compute: &mut Compute<'_>) -> Result<(), EngineError> {
        let views = self.inputs.iter().map(|PlacedTensor { datatype, shape, at, bytes }| {
            let data = self.region.view(*at, *bytes);
            let view = datatype_of(*datatype).zip(data).map(|(datatype, data)| TensorView { datatype, shape, data });
            view.ok_or_else(|| EngineError::Execute("an input isn't in the region".into()))
        });
        compute(&views.collect::<Result<Vec<_>, _>>()?)
    }

    fn in_pieces(&mut self) -> Result<Vec<Input>, EngineError> {
        let mut copied = Vec::new();
        self.in_one_piece(&mut |views| {
            let input = |view: &TensorView<'_>| Input {
                datatype: view.datatype,
                shape: view.shape.to_vec(),
                pieces: vec![view.to_tensor().data],
            };
            copied = views.iter().map(input).collect();
            Ok(())
        })?;
        Ok(copied)
    }
}

/// Reads the socket, and keeps the descriptors that come along.
struct WithDescriptors {
    socket: UnixStream,
    descriptors: VecDeque<OwnedFd>,
}

impl Read for WithDescriptors {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got =
            recvmsg(self.socket.as_fd(), &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        Ok(got)
    }
}
