// Fetches pieces of host memory, each byte over the bus once, wherever they begin: the twin of this in fetch.rs is tested without a GPU.
// On the device a piece is written in whole words of 16 bytes, and byte by byte at its two ends, so that its neighbours stay as they are. From the host it is
// read in whole words, too, up to 15 bytes before and behind it. Read past the caches, since the host writes there again and again; what comes from the
// device's own memory (NEAR) isn't.
#if NEAR
#define READ(place) (*(place))
#else
#define READ(place) __ldcv(place)
#endif

struct Piece {
    const u8* from;
    u8* to;
    u64 bytes;
    u32 first_block, blocks;
};
struct Pieces {
    Piece at[PIECES];
};

// The 16 bytes that begin `shift` bytes (0 to 15) behind the beginning of the first of two words.
__device__ __forceinline__ uint4 joined(uint4 low, uint4 high, u32 shift) {
    u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (shift & 8) {
#pragma unroll
        for (int i = 0; i < 6; i++) w[i] = w[i + 2];
    }
    if (shift & 4) {
#pragma unroll
        for (int i = 0; i < 5; i++) w[i] = w[i + 1];
    }
    u32 bits = (shift & 3) * 8;
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits), __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
}

__device__ __forceinline__ uint4 of_lane(uint4 x, u32 lane) {
    return make_uint4(__shfl_sync(0xffffffffu, x.x, lane), __shfl_sync(0xffffffffu, x.y, lane), __shfl_sync(0xffffffffu, x.z, lane), __shfl_sync(0xffffffffu, x.w, lane));
}

extern "C" __global__ void fetch(const Pieces pieces, u32 count) {
    u32 which = 0;
    while (which + 1 < count && pieces.at[which + 1].first_block <= blockIdx.x) which++;
    const u8* from = pieces.at[which].from;
    u8* to = pieces.at[which].to;
    u64 bytes = pieces.at[which].bytes;
    u32 blocks = pieces.at[which].blocks, block = blockIdx.x - pieces.at[which].first_block;

    // Before the first whole word on the device, and behind the last.
    u64 head = (16 - ((u64)to & 15)) & 15;
    if (head > bytes) head = bytes;
    u64 words = (bytes - head) / 16;
    if (block == 0) {
        u64 behind = head + words * 16 + threadIdx.x;
        if (threadIdx.x < head) to[threadIdx.x] = READ(from + threadIdx.x);
        if (behind < bytes) to[behind] = READ(from + behind);
    }

    // Between them a warp takes tiles of 32 words, STEPS at a time. Where the source is shifted, a word on the device is made of two: the second is the next lane's,
    // and the last lane's is what the first lane reads in the next step.
    u32 shift = (u32)((u64)(from + head) & 15), lane = threadIdx.x & 31, next = (lane + 1) & 31;
    const uint4* source = (const uint4*)(from + head - shift);
    uint4* target = (uint4*)(to + head);
    u64 readable = words + (shift != 0 ? 1 : 0);
    u64 step = (u64)blocks * (blockDim.x / 32) * (32 * STEPS);
    u64 tile = ((u64)block * (blockDim.x / 32) + threadIdx.x / 32) * (32 * STEPS);
    for (; tile < words; tile += step) {
        uint4 own[STEPS + 1];
#pragma unroll
        for (int i = 0; i <= STEPS; i++) {
            u64 at = tile + 32 * i + lane;
            own[i] = make_uint4(0, 0, 0, 0);
            if (at < readable && (i < STEPS || (lane == 0 && shift != 0))) own[i] = READ(source + at);
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            u64 at = tile + 32 * i + lane;
            uint4 high = of_lane(lane == 0 ? own[i + 1] : own[i], next);
            if (at < words) target[at] = joined(own[i], high, shift);
        }
    }
}
