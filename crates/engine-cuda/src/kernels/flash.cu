// Attention on tensor cores, after FlashAttention-2: a warp owns 16 rows of queries, keys and values come in tiles through two buffers, the softmax is carried
// along. Everything is F16, or everything f32, and sums are f32. Rows of WIDTH, a multiple of 16 up to 128.
//
// F16 and f32 differ in the multiply, which takes 32 bytes of a row at a time in the same registers, and in how values are read.
//
// Given: as in attention.cu, with WARPS, TILE (keys at a time), IN_F16, EXACT (f32 only: as exact as f32, else as TF32).

#if IN_F16
typedef half_bits In;
#define SIZE 2
#else
typedef float In;
#define SIZE 4
#endif
#define CHUNK (16 / SIZE)
#define PITCH (WIDTH + CHUNK)  // 16 bytes more than a row, so that no bank is met twice
#define CHUNKS (WIDTH / CHUNK)
#define PARTS (WIDTH * SIZE / 32)

// The factors of a product, as it wants them.
__device__ __forceinline__ void prepare(u32 (&r)[4]) {
#if !IN_F16 && !EXACT
#pragma unroll
    for (int e = 0; e < 4; e++) r[e] = rounded(r[e]);
#endif
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention(const In* q, const In* k, const In* v, const M* mask, In* o) {
    extern __shared__ __align__(128) In shared[];
    In* queries = shared;
    const u32 keys_at = shared_address(shared + 16 * WARPS * PITCH), values_at = keys_at + 2 * TILE * PITCH * SIZE;
    after_the_kernel_before();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, batch = blockIdx.z;
    const int row_block = blockIdx.x * 16 * WARPS, row_warp = row_block + warp * 16;
    q += (i64)batch * QS0 + (i64)head * QS1;
    k += (i64)batch * KS0 + (i64)head * KS1;
    v += (i64)batch * VS0 + (i64)head * VS1;
    o += (i64)batch * OS0 + (i64)head * OS1;

    auto load = [&](int tile, int buffer) {
        for (int i = threadIdx.x; i < TILE * CHUNKS; i += WARPS * 32) {
            int row = i / CHUNKS, chunk = i % CHUNKS, from = tile * TILE + row;
            bool valid = from < OTHER;
            i64 at = valid ? from : 0;
            u32 to = ((buffer * TILE + row) * PITCH + chunk * CHUNK) * SIZE;
            copy_async(keys_at + to, k + at * KS2 + chunk * CHUNK, valid);
            copy_async(values_at + to, v + at * VS2 + chunk * CHUNK, valid);
        }
    };
    for (int i = threadIdx.x; i < 16 * WARPS * CHUNKS; i += WARPS * 32) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool valid = row_block + row < LENGTH;
        copy_async(shared_address(queries + row * PITCH + chunk * CHUNK), q + (valid ? (i64)(row_block + row) * QS2 : 0) + chunk * CHUNK, valid);
    }
    load(0, 0);
    copies_begun();

    u32 fq[PARTS][4];
    float out[WIDTH / 8][4];
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) out[j][e] = 0.0f;
    float most[2] = {-INFINITE, -INFINITE}, sum[2] = {0.0f, 0.0f};
    const int group = lane / 4, pair = (lane % 4) * 2;
    const int tiles = (OTHER + TILE - 1) / TILE;

    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load(tile + 1, (tile + 1) & 1);
        copies_begun();
        copies_done_but<1>();
        __syncthreads();
        if (tile == 0) {
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                load_matrices(fq[p], shared_address(queries + (warp * 16 + (lane & 15)) * PITCH + (p * 2 + (lane >> 4)) * CHUNK));
                prepare(fq[p]);
            }
        }
        const u32 keys = keys_at + (tile & 1) * TILE * PITCH * SIZE;
        float s[TILE / 8][4];
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = 0.0f;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
            for (int j = 0; j < TILE / 16; j++) {
                u32 fk[4];
                int row = j * 16 + (lane & 7) + ((lane >> 4) << 3);
                load_matrices(fk, keys + (row * PITCH + (p * 2 + ((lane >> 3) & 1)) * CHUNK) * SIZE);
                prepare(fk);
                multiply<IN_F16, EXACT>(s[j * 2], fq[p], fk[0], fk[1]);
                multiply<IN_F16, EXACT>(s[j * 2 + 1], fq[p], fk[2], fk[3]);
            }
        float high[2] = {most[0], most[1]};
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int column = tile * TILE + j * 8 + pair + (e & 1), row = row_warp + group + (e >> 1) * 8;
                float x = s[j][e] * SCALE;
#if HAS_MASK
                if (column < OTHER && row < LENGTH) x += as_float(mask[(i64)batch * MS0 + (i64)head * MS1 + (i64)row * MS2 + (i64)column * MS3]);
#endif
                s[j][e] = column < OTHER ? x : -INFINITE;
                high[e >> 1] = fmaxf(high[e >> 1], s[j][e]);
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 1));
            high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 2));
            // Where nothing but masked keys was seen, there is nothing to scale: 0 stands for what isn't there yet.
            float factor = high[h] == -INFINITE ? 0.0f : __expf(most[h] - high[h]);
            most[h] = high[h];
            if (high[h] == -INFINITE) high[h] = 0.0f;
            sum[h] *= factor;
#pragma unroll
            for (int j = 0; j < WIDTH / 8; j++) { out[j][h * 2] *= factor; out[j][h * 2 + 1] *= factor; }
        }
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[j][e] = __expf(s[j][e] - high[e >> 1]);
                sum[e >> 1] += s[j][e];
            }
#if IN_F16
        // The scores are in the registers where the next product wants its left factor.
        const u32 values = values_at + (tile & 1) * TILE * PITCH * SIZE;
#pragma unroll
        for (int j = 0; j < TILE / 16; j++) {
            u32 fs[4] = {two_halves(s[j * 2][0], s[j * 2][1]), two_halves(s[j * 2][2], s[j * 2][3]), two_halves(s[j * 2 + 1][0], s[j * 2 + 1][1]),
                         two_halves(s[j * 2 + 1][2], s[j * 2 + 1][3])};
#pragma unroll
            for (int d = 0; d < WIDTH / 16; d++) {
                u32 fv[4];
                matrices_turned(fv, values + ((j * 16 + (lane & 15)) * PITCH + (d * 2 + (lane >> 4)) * CHUNK) * SIZE);
                multiply<IN_F16, EXACT>(out[d * 2], fs, fv[0], fv[1]);
                multiply<IN_F16, EXACT>(out[d * 2 + 1], fs, fv[2], fv[3]);
            }
        }
#else
        // A thread has the scores of two neighbouring keys, the product wants keys that are four apart. It sums over keys, so their order is free: both factors take
        // the even ones first.
#pragma unroll
        for (int j = 0; j < TILE / 8; j++) {
            u32 fs[4] = {__float_as_uint(s[j][0]), __float_as_uint(s[j][2]), __float_as_uint(s[j][1]), __float_as_uint(s[j][3])};
            prepare(fs);
            const In* two = shared + (16 * WARPS + (2 + (tile & 1)) * TILE + j * 8 + pair) * PITCH + group;
#pragma unroll
            for (int d = 0; d < WIDTH / 16; d++) {
                u32 fv[4] = {__float_as_uint(two[d * 16]), __float_as_uint(two[PITCH + d * 16]), __float_as_uint(two[d * 16 + 8]), __float_as_uint(two[PITCH + d * 16 + 8])};
                prepare(fv);
                multiply<IN_F16, EXACT>(out[d * 2], fs, fv[0], fv[1]);
                multiply<IN_F16, EXACT>(out[d * 2 + 1], fs, fv[2], fv[3]);
            }
        }
#endif
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
        int row = row_warp + group + h * 8;
        if (row >= LENGTH) continue;
        float factor = sum[h] > 0.0f ? 1.0f / sum[h] : 0.0f;  // 0 where everything is masked
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++) {
            In* to = o + (i64)row * OS2 + j * 8 + pair;
            float low = out[j][h * 2] * factor, high = out[j][h * 2 + 1] * factor;
#if IN_F16
            *(u32*)to = two_halves(low, high);
#else
            *(float2*)to = make_float2(low, high);
#endif
        }
    }
}
