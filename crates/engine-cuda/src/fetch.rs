//! How inputs come to the device: a small kernel reads them out of pinned memory over the bus, many pieces with one
//! launch.
//!
//! Not the copy engine: that one finishes what a LOAD gave it before it turns to another stream, and an input would
//! wait for all of the weights.

use crate::driver::{Address, DriverError, call};
use crate::source::{Defines, KernelSource};
use crate::streams::CudaStream;
use crate::toolkit::{CudaError, Kernel, Toolkit};
use std::ffi::c_void;
use std::ptr::null_mut;

const TEXT: &str = include_str!("kernels/fetch.cu");
/// Pieces of one launch: enough for its own price (2 to 3 us) to vanish behind them, few enough for its parameters to
/// be small.
pub const MOST_PIECES: usize = 32;
/// Threads in a block.
const THREADS: usize = 256;
/// Words of 16 bytes that a thread has on their way at a time.
const STEPS: usize = 4;
/// What a block has on its way at a time. It gets no less, unless a piece is shorter.
const SWEEP_BYTES: usize = THREADS * STEPS * 16;
/// Blocks of one launch, and at most one more for each piece: enough bytes on their way to fill the bus.
const MOST_BLOCKS: usize = 64;
/// The same between two places on the device, whose memory is a hundred times as fast.
const MOST_BLOCKS_NEAR: usize = 528;

/// Bytes to be fetched, as the kernel sees them.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Piece {
    /// In host memory.
    from: Address,
    /// On the device.
    to: Address,
    bytes: u64,
    /// Which blocks fetch it.
    first_block: u32,
    blocks: u32,
}

impl Piece {
    /// Both sides may begin anywhere.
    pub fn new(from: *const u8, to: Address, bytes: usize) -> Self {
        Self { from: from.expose_provenance() as Address, to, bytes: bytes as u64, ..Self::default() }
    }

    /// Where it is.
    pub fn from(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.from as usize)
    }

    /// Where it goes.
    pub fn to(&self) -> Address {
        self.to
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

/// Pieces that wait to be fetched with one launch.
#[derive(Default, Debug)]
pub struct WaitingPieces {
    pieces: Vec<Piece>,
    bytes: usize,
}

impl WaitingPieces {
    /// No other piece fits.
    pub fn is_full(&self) -> bool {
        self.pieces.len() == MOST_PIECES
    }

    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a piece. One that continues the last on both sides becomes one with it.
    pub fn push(&mut self, piece: Piece) {
        if piece.bytes == 0 {
            return;
        }
        self.bytes += piece.bytes as usize;
        match self.pieces.last_mut() {
            Some(last) if (last.from + last.bytes, last.to + last.bytes) == (piece.from, piece.to) => {
                last.bytes += piece.bytes;
            }
            _ => self.pieces.push(piece),
        }
    }

    /// Takes out what waits.
    pub fn drain(&mut self) -> impl Iterator<Item = Piece> {
        self.bytes = 0;
        self.pieces.drain(..)
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
    }

    /// Gives each piece its blocks, by its length, and says how many there are in all.
    fn spread(&mut self, most: usize) -> u32 {
        let each = self.bytes.div_ceil(most).max(SWEEP_BYTES) as u64;
        let mut next = 0;
        for piece in &mut self.pieces {
            piece.first_block = next;
            piece.blocks = piece.bytes.div_ceil(each) as u32;
            next += piece.blocks;
        }
        next
    }
}

/// The kernel.
pub struct Fetcher {
    far: Kernel,
    near: Kernel,
}

impl Fetcher {
    /// Compiles it, or finds it compiled.
    pub fn new(toolkit: &Toolkit) -> Result<Self, CudaError> {
        let compile = |near: bool| {
            let mut defines = Defines::default();
            defines.add("PIECES", MOST_PIECES).add("STEPS", STEPS).add("NEAR", i32::from(near));
            toolkit.kernel(&KernelSource { text: TEXT, defines, entry: "fetch" })
        };
        Ok(Self { far: compile(false)?, near: compile(true)? })
    }

    /// Lets the device fetch what waits, some time after this returns. Nothing waits then.
    ///
    /// # Safety
    /// Each piece is in pinned memory, with whole words of 16 bytes at both of its ends, and its place on the device is
    /// there. Both stay as they are, the first unwritten and the second untouched, until the stream has come past this.
    pub unsafe fn launch(&self, stream: &CudaStream, waiting: &mut WaitingPieces) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.run(self.far, (MOST_BLOCKS, THREADS), stream, waiting) }
    }

    /// The same for pieces that are on the device already, elsewhere.
    ///
    /// # Safety
    /// As for `launch`, with memory of the device.
    pub unsafe fn launch_near(&self, stream: &CudaStream, waiting: &mut WaitingPieces) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.run(self.near, (MOST_BLOCKS_NEAR, THREADS), stream, waiting) }
    }

    /// # Safety
    /// As for `launch`.
    unsafe fn run(
        &self,
        kernel: Kernel,
        (most_blocks, threads): (usize, usize),
        stream: &CudaStream,
        waiting: &mut WaitingPieces,
    ) -> Result<(), DriverError> {
        let blocks = waiting.spread(most_blocks);
        let mut count = waiting.pieces.len() as u32;
        let mut pieces = [Piece::default(); MOST_PIECES];
        pieces[..waiting.pieces.len()].copy_from_slice(&waiting.pieces);
        waiting.clear();
        if count == 0 {
            return Ok(());
        }
        let mut parameters = [(&raw mut pieces).cast::<c_void>(), (&raw mut count).cast()];
        // SAFETY: the parameters are the kernel's, which the driver copies; pinned memory has one address for both
        // sides; the rest is the caller's promise.
        unsafe {
            call!(cuLaunchKernel(
                kernel.0.cast(),
                blocks,
                1,
                1,
                threads as u32,
                1,
                1,
                0,
                stream.raw(),
                parameters.as_mut_ptr(),
                null_mut(),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WARPS: usize = THREADS / 32;
    const TILE: usize = 32 * STEPS;

    /// The kernel's `joined`.
    fn joined(low: [u32; 4], high: [u32; 4], shift: usize) -> [u32; 4] {
        let mut w = [low, high].concat();
        if shift & 8 != 0 {
            w.copy_within(2..8, 0);
        }
        if shift & 4 != 0 {
            w.copy_within(1..6, 0);
        }
        let bits = (shift & 3) * 8;
        std::array::from_fn(|i| ((u64::from(w[i + 1]) << 32 | u64::from(w[i])) >> bits) as u32)
    }

    /// The kernel, line by line, over memory whose addresses are positions. Fails where it would read or write outside.
    fn kernel(block_index: u32, pieces: &[Piece], host: &[u8], device: &mut [u8], reads: &mut [u8]) {
        let mut which = 0;
        while which + 1 < pieces.len() && pieces[which + 1].first_block <= block_index {
            which += 1;
        }
        let Piece { from, to, bytes, first_block, blocks } = pieces[which];
        let [from, to, bytes] = [from, to, bytes].map(|value| value as usize);
        let (block, blocks) = ((block_index - first_block) as usize, blocks as usize);
        let head = ((16 - (to & 15)) & 15).min(bytes);
        let words = (bytes - head) / 16;
        if block == 0 {
            for thread in 0..THREADS {
                let behind = head + words * 16 + thread;
                if thread < head {
                    device[to + thread] = host[from + thread];
                }
                if behind < bytes {
                    device[to + behind] = host[from + behind];
                }
            }
        }
        let shift = (from + head) & 15;
        let (source, target) = (from + head - shift, to + head);
        let readable = words + usize::from(shift != 0);
        for warp in 0..WARPS {
            for tile in ((block * WARPS + warp) * TILE..words).step_by(blocks * WARPS * TILE) {
                let mut own = [[[0u32; 4]; STEPS + 1]; 32];
                for (lane, own) in own.iter_mut().enumerate() {
                    for (i, own) in own.iter_mut().enumerate() {
                        let at = tile + 32 * i + lane;
                        if at < readable && (i < STEPS || (lane == 0 && shift != 0)) {
                            let word = source + 16 * at;
                            assert_eq!(word % 16, 0, "words are aligned");
                            reads[word] += 1;
                            *own = std::array::from_fn(|j| {
                                u32::from_le_bytes(host[word + 4 * j..word + 4 * j + 4].try_into().unwrap())
                            });
                        }
                    }
                }
                for i in 0..STEPS {
                    let sent = |lane: usize| if lane == 0 { own[lane][i + 1] } else { own[lane][i] };
                    for (lane, low) in own.iter().enumerate() {
                        let at = tile + 32 * i + lane;
                        if at < words {
                            let word = target + 16 * at;
                            assert_eq!(word % 16, 0, "words are aligned");
                            let made = joined(low[i], sent((lane + 1) & 31), shift);
                            let bytes: Vec<u8> = made.iter().flat_map(|part| part.to_le_bytes()).collect();
                            device[word..word + 16].copy_from_slice(&bytes);
                        }
                    }
                }
            }
        }
    }

    /// Fetches pieces `(skipped in the host's memory, skipped on the device, bytes)` that lie behind one another, and
    /// compares everything.
    fn check(layout: &[(usize, usize, usize)]) {
        let (mut from, mut to) = (0, 0);
        let mut waiting = WaitingPieces::default();
        let mut expected_moves = Vec::new();
        for &(skipped, room, bytes) in layout {
            (from, to) = (from + skipped, to + room);
            waiting.push(Piece { from: from as u64, to: to as u64, bytes: bytes as u64, ..Piece::default() });
            expected_moves.push((from, to, bytes));
            (from, to) = (from + bytes, to + bytes);
        }
        let host: Vec<u8> = (0..from.next_multiple_of(16)).map(|index| (index * 131 % 251) as u8).collect();
        let mut expected = vec![255; to + 64];
        for (from, to, bytes) in expected_moves {
            expected[to..to + bytes].copy_from_slice(&host[from..from + bytes]);
        }
        let (mut device, mut reads) = (vec![255; to + 64], vec![0; host.len()]);
        let blocks = waiting.spread(MOST_BLOCKS);
        assert!(blocks as usize <= MOST_BLOCKS + waiting.pieces.len());
        (0..blocks).for_each(|block| kernel(block, &waiting.pieces, &host, &mut device, &mut reads));
        assert!(device == expected, "{layout:?}");
        // Where two tiles meet, the word between them is read for both.
        let (words, twice) =
            (reads.iter().filter(|count| **count > 0).count(), reads.iter().filter(|count| **count > 1).count());
        assert!(twice <= words / TILE + 2 * layout.len(), "{twice} of {words} words are read twice: {layout:?}");
    }

    #[test]
    fn every_byte_arrives_from_everywhere_to_everywhere() {
        for from in 0..16 {
            for to in 0..16 {
                for bytes in [0, 1, 15, 16, 17, 31, 47, 48, 2048, 2063, 16_384 + 5] {
                    check(&[(from, to, bytes)]);
                }
            }
        }
        // More than all blocks have on their way at a time.
        check(&[(5, 3, MOST_BLOCKS * SWEEP_BYTES + 4321)]);
    }

    #[test]
    fn what_continues_the_last_piece_becomes_one_with_it() {
        let piece = |from: usize, to: u64, bytes| Piece::new(std::ptr::without_provenance(from), to, bytes);
        let mut waiting = WaitingPieces::default();
        for (from, to, bytes) in [(100, 1000, 10), (110, 1010, 5), (0, 0, 0), (115, 1020, 4), (119, 1024, 1)] {
            waiting.push(piece(from, to, bytes));
        }
        assert_eq!(waiting.pieces, [piece(100, 1000, 15), piece(115, 1020, 5)]);
        assert_eq!((waiting.bytes(), waiting.is_full()), (20, false));
        (0..30).for_each(|index| waiting.push(piece(index * 100, 0, 1)));
        assert!(waiting.is_full());
        waiting.clear();
        assert_eq!((waiting.bytes(), waiting.spread(MOST_BLOCKS)), (0, 0));
    }

    #[test]
    fn blocks_go_where_the_bytes_are() {
        let mut waiting = WaitingPieces::default();
        let lengths = [1, 16 << 20, 100, SWEEP_BYTES + 1];
        lengths.iter().enumerate().for_each(|(index, &bytes)| {
            waiting.push(Piece { to: index as u64 * 1000, bytes: bytes as u64, ..Piece::default() });
        });
        let blocks = waiting.spread(MOST_BLOCKS);
        let given: Vec<u32> = waiting.pieces.iter().map(|piece| piece.blocks).collect();
        assert_eq!((given, blocks), (vec![1, 64, 1, 1], 67));
        let mut one = WaitingPieces::default();
        // One image of 224 by 224: each of its blocks has one sweep.
        one.push(Piece { bytes: 602_112, ..Piece::default() });
        assert_eq!(one.spread(MOST_BLOCKS), 37);
    }

    proptest! {
        #[test]
        fn pieces_of_all_lengths_arrive(layout in proptest::collection::vec((0usize..40, 0usize..40, 0usize..5000), 1..12)) {
            check(&layout);
        }

        #[test]
        fn long_pieces_arrive(layout in proptest::collection::vec((0usize..40, 0usize..40, 0usize..300_000), 1..5)) {
            check(&layout);
        }
    }
}
