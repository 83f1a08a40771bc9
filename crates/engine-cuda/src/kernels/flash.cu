// Attention on tensor cores, after FlashAttention-2: a warp owns 16 rows of queries, keys and values come in tiles of 64 through two buffers, the softmax is
// carried along. All F16 with sums in f32; rows of WIDTH, a multiple of 16 up to 128.
//
// Given: as in attention.cu, with WARPS.

#define TILE 64
#define PITCH (WIDTH + 8)  // 16 bytes more than a row, so that ldmatrix meets no bank twice
#define CHUNKS (WIDTH / 8)
#define PARTS (WIDTH / 16)

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy_async(u32 to, const half_bits* from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void matrices_turned(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <class T> __device__ __forceinline__ float as_float(T x) { return (float)x; }
template <> __device__ __forceinline__ float as_float<half_bits>(half_bits x) { return from_half(x); }

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention(const half_bits* q, const half_bits* k, const half_bits* v, const M* mask, half_bits* o) {
    extern __shared__ __align__(128) half_bits shared[];
    half_bits* queries = shared;
    const u32 keys_at = shared_address(shared + 16 * WARPS * PITCH), values_at = keys_at + 2 * TILE * PITCH * 2;
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
            u32 to = (buffer * TILE * PITCH + row * PITCH + chunk * 8) * 2;
            copy_async(keys_at + to, k + at * KS2 + chunk * 8, valid);
            copy_async(values_at + to, v + at * VS2 + chunk * 8, valid);
        }
    };
    for (int i = threadIdx.x; i < 16 * WARPS * CHUNKS; i += WARPS * 32) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool valid = row_block + row < LENGTH;
        copy_async(shared_address(queries + row * PITCH + chunk * 8), q + (valid ? (i64)(row_block + row) * QS2 : 0) + chunk * 8, valid);
    }
    load(0, 0);
    asm volatile("cp.async.commit_group;" ::: "memory");

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
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        if (tile == 0) {
#pragma unroll
            for (int p = 0; p < PARTS; p++) matrices(fq[p], shared_address(queries + (warp * 16 + (lane & 15)) * PITCH + p * 16 + (lane >> 4) * 8));
        }
        const u32 keys = keys_at + (tile & 1) * TILE * PITCH * 2, values = values_at + (tile & 1) * TILE * PITCH * 2;
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
                matrices(fk, keys + (row * PITCH + p * 16 + ((lane >> 3) & 1) * 8) * 2);
                multiply(s[j * 2], fq[p], fk[0], fk[1]);
                multiply(s[j * 2 + 1], fq[p], fk[2], fk[3]);
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
            if (high[h] == -INFINITE) high[h] = 0.0f;
            float factor = __expf(most[h] - high[h]);
            most[h] = high[h];
            sum[h] *= factor;
#pragma unroll
            for (int j = 0; j < WIDTH / 8; j++) { out[j][h * 2] *= factor; out[j][h * 2 + 1] *= factor; }
        }
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[j][e] = __expf(s[j][e] - most[e >> 1]);
                sum[e >> 1] += s[j][e];
            }
        // The scores are in the registers where the next product wants its left factor.
#pragma unroll
        for (int j = 0; j < TILE / 16; j++) {
            u32 fs[4] = {two_halves(s[j * 2][0], s[j * 2][1]), two_halves(s[j * 2][2], s[j * 2][3]), two_halves(s[j * 2 + 1][0], s[j * 2 + 1][1]),
                         two_halves(s[j * 2 + 1][2], s[j * 2 + 1][3])};
#pragma unroll
            for (int d = 0; d < WIDTH / 16; d++) {
                u32 fv[4];
                int row = j * 16 + (lane & 15);
                matrices_turned(fv, values + (row * PITCH + d * 16 + (lane >> 4) * 8) * 2);
                multiply(out[d * 2], fs, fv[0], fv[1]);
                multiply(out[d * 2 + 1], fs, fv[2], fv[3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
        int row = row_warp + group + h * 8;
        if (row >= LENGTH) continue;
        float factor = 1.0f / sum[h];
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
            *(u32*)(o + (i64)row * OS2 + j * 8 + pair) = two_halves(out[j][h * 2] * factor, out[j][h * 2 + 1] * factor);
    }
}
