// Rows: what kernels have in common that go over many elements for each result. Several threads share a row, and each
// block has several rows. A thread of a row that isn't there waits with the others, but reads and writes nothing.
//
// Given: THREADS of a block, LANES of a row (a power of two), SLOTS, the rows of a block, ALONG, whether the threads of
// a row are neighbours; LENGTH of a row; COMBINED and JOINED: what the threads of a row put together, and how.
// Generated from the step: ROW_COORDINATES makes y0, y1, ... of `row`, COORDINATES makes x0, x1, ... of `i`. Kernels are
// told the `count` of rows.
#if ALONG
#define PITCH 1
#define FIND_ROW const u32 lane = threadIdx.x % LANES, row = blockIdx.x * SLOTS + threadIdx.x / LANES; const bool alive = row < count; ROW_COORDINATES
#else
#define PITCH SLOTS
#define FIND_ROW const u32 lane = threadIdx.x / SLOTS, row = blockIdx.x * SLOTS + threadIdx.x % SLOTS; const bool alive = row < count; ROW_COORDINATES
#endif
// A loop over the elements of this thread's part of the row.
#define EACH(i) if (alive) for (u32 i = lane; i < LENGTH; i += LANES)

// Combines what the threads of a row have; every one of them gets the result.
__device__ __forceinline__ COMBINED together(COMBINED a, u32 lane) {
    __shared__ COMBINED all[THREADS];
    __syncthreads();
    all[threadIdx.x] = a;
#pragma unroll
    for (u32 half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            const COMBINED a = all[threadIdx.x], b = all[threadIdx.x + half * PITCH];
            all[threadIdx.x] = JOINED(a, b);
        }
    }
    __syncthreads();
    return all[threadIdx.x - lane * PITCH];
}

