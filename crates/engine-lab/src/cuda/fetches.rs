//! How inputs are fetched out of the pool: whether they arrive, and how fast.

use super::served::pooled;
use crate::Attempt;
use crate::figures::{micros, repeat};
use cudarc::driver::sys;
use engine::HostBuffer;
use engine_cuda::tools::{
    CudaStream, DeviceMemory, Fetcher, Gpu, MOST_PIECES, Partition, Piece, Pinned, Pool, Region, Toolkit, Turn,
    WaitingPieces, check,
};
use serde_json::{Value, json};
use std::time::Instant;
use workload::Random;

/// Whether what is fetched from the pool arrives, from and to all misalignments, with neighbours that must stay as they
/// are; and how fast.
pub(crate) fn run() -> Attempt<Value> {
    let gpu = &Gpu::open(0)?;
    let memory = &DeviceMemory::take(gpu, 4096)?;
    const ROOM: usize = 16 << 20;
    const IMAGE: usize = 602_112;
    let stream = CudaStream::new(&Partition::whole(gpu), Turn::Second)?;
    let folder = tempfile::tempdir()?;
    let fetcher = Fetcher::new(&Toolkit::open(folder.path())?)?;
    let pool = Pool::new(Pinned::new(gpu, 64 << 20)?);
    let mut region = Region::new(memory, ROOM)?;
    region.grow(ROOM)?;
    let arrived = Pinned::new(gpu, ROOM)?;
    let mut random = Random::new(1, 0);
    let mut below = |bound: usize| random.below(bound as u32) as usize;
    let content: Vec<u8> = (0..1 << 20).map(|_| below(256) as u8).collect();
    let mut pieces = 0;
    for round in 0..256 {
        let mut expected = vec![0xa5; ROOM];
        let (mut waiting, mut held, mut to) = (WaitingPieces::default(), Vec::new(), round / 16);
        for number in 0..1 + round % MOST_PIECES {
            // The first of each round has the alignments that are due, short and long ones come behind it.
            let skipped = if number == 0 { round % 16 } else { below(16) };
            let bytes = match number % 3 {
                0 => below(IMAGE),
                1 => below(64),
                _ => below(40_000),
            };
            let data = &content[below(content.len() - bytes)..][..bytes];
            // What is too short for the pool lies in the middle of something longer.
            let longer = [data, &vec![0xdd; (16usize << 10).saturating_sub(bytes)]].concat();
            let buffer = pooled(&pool, skipped, &longer)?;
            waiting.push(Piece::new(buffer.as_ref()[skipped..].as_ptr(), region.address() + to as u64, bytes));
            expected[to..to + bytes].copy_from_slice(data);
            held.push(buffer);
            to += bytes + below(3) * below(40);
            pieces += 1;
        }
        // SAFETY: all buffers are in the pool and held, and the region is larger than where the last piece ends;
        // everything is waited for.
        unsafe {
            check("cuMemsetD8Async", sys::cuMemsetD8Async(region.address(), 0xa5, ROOM, stream.raw()))?;
            fetcher.launch(&stream, &mut waiting)?;
            stream.copy_out(&arrived, 0, region.address(), ROOM)?;
        }
        stream.wait()?;
        if let Some(position) = (0..ROOM).find(|&position| arrived[position] != expected[position]) {
            return Err(format!("fetches, round {round}: byte {position} is wrong").into());
        }
    }
    println!("fetches: {pieces} pieces at all misalignments arrived, and nothing next to them was touched");
    let mut rates = Vec::new();
    for (count, skipped) in [(1, 0), (1, 5), (1, 148), (16, 0), (16, 5)] {
        let buffers =
            (0..count).map(|_| pooled(&pool, skipped, &content[..IMAGE])).collect::<Attempt<Vec<HostBuffer>>>()?;
        let mut waiting = WaitingPieces::default();
        let times = repeat(1000, || {
            let start = Instant::now();
            for (number, buffer) in buffers.iter().enumerate() {
                let to = region.address() + (number * IMAGE) as u64;
                waiting.push(Piece::new(buffer.as_ref()[skipped..].as_ptr(), to, IMAGE));
            }
            // SAFETY: as above.
            unsafe { fetcher.launch(&stream, &mut waiting)? };
            stream.wait()?;
            Ok(micros(start))
        })?;
        let rate = (count * IMAGE) as f64 / times.at(0.5) / 1e3;
        println!("fetching {count} x {IMAGE} bytes, {skipped} bytes into their buffers: {times} = {rate:.1} GB/s");
        rates.push(
            json!({ "count": count, "bytes": IMAGE, "skipped": skipped, "times": times.json(), "gb_per_s": rate }),
        );
    }
    Ok(json!({ "pieces": pieces, "rates": rates }))
}
