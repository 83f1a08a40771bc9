// Convolution and matrix product on tensor cores: out[m][n] = activate(alpha * sum_k a[m][k] * b[n][k] + bias[n] + residual[m][n]).
//
// A convolution is the same product: a row m is a place of the output (image, y, x), k runs over the taps and channels under it. Blocks own a tile of
// BM x BN and walk along k in steps of 128 bytes, through STAGES buffers in shared memory that cp.async fills. Within a step rows are 128 bytes, their eight
// 16-byte chunks permuted by the row's number, so that ldmatrix meets no bank twice.
//
// F16 and TF32 differ in the multiply alone: both take 32 bytes of k at a time in the same registers.
//
// Splits: the blocks of a cluster share a tile, each takes a part of k; at the end each reads a part of the rows from all the others' shared memory and adds them
// up in a fixed order. No memory, no counters, the same sum every time.
//
// Given by whoever compiles: BM, BN, WARPS_M, WARPS_N, STAGES, A_MODE (0: rows of k, 1: taps, 2: gathered one by one), IN_F16 (else f32 as TF32), OUT_F16,
// A_F32 (gathered only: a is f32 although the product is F16), EXACT (f32 only: as exact as f32), ACTIVATION.

struct Job {
    const char* a; const char* b; const char* bias; const char* residual; char* out;
    i64 a_image, a_row, a_column, a_channel;       // strides of a in elements; in mode 0 a_column is the distance of rows
    i64 b_pitch, b_row, b_column, b_channel;       // of b: from one n to the next, from one tap to the next; the last three count in mode 2 alone
    i64 out_image, out_pitch, out_step, residual_image, residual_pitch, residual_step;  // m = image * places + place; the step is from one n to the next
    i64 a_outer, a_inner, b_outer, b_inner, out_outer, out_inner, residual_outer, residual_inner, bias_inner;  // batches of products: z = outer * inner_count + inner
    int inner_count, places;
    int m, n, k;
    int out_height, out_width, height, width, channels, taps_y, taps_x;
    int stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
    int splits, wide, bias_f16, early;  // early: b is of weights, which no kernel before this one writes
    float alpha, low, high;
};

#define THREADS (WARPS_M * WARPS_N * 32)
#define WM (BM / WARPS_M)
#define WN (BN / WARPS_N)
#define MT (WM / 16)
#define NT (WN / 8)
#define ROWS_A_PASS (THREADS / 8)
#define PASSES_A ((BM * 8 + THREADS - 1) / THREADS)
#define PASSES_B ((BN * 8 + THREADS - 1) / THREADS)
#define STAGE_BYTES ((BM + BN) * 128)
#define SHARED_PITCH (BN + 4)
#define TOGETHER (BM * BN / OUT_PACK / THREADS >= 4 ? 4 : BM * BN / OUT_PACK / THREADS >= 2 ? 2 : 1)
#define STAGES_END (STAGES * STAGE_BYTES)
#define STAGED_END (BM * SHARED_PITCH * 4)
#define BIAS_AT (STAGES_END > STAGED_END ? STAGES_END : STAGED_END)
#if IN_F16
#define SIZE 2
typedef F16 In;
#else
#define SIZE 4
typedef float In;
#endif
#define CHUNK (16 / SIZE)
#define STEP (128 / SIZE)
#if OUT_F16
typedef F16 Out;
#define OUT_PACK 8
#else
typedef float Out;
#define OUT_PACK 4
#endif

extern "C" __global__ void __launch_bounds__(THREADS) tile(const __grid_constant__ Job job) {
    extern __shared__ __align__(1024) char shared[];
    const u32 shared_base = shared_address(shared);
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int split = blockIdx.z % job.splits;
    const int z = blockIdx.z / job.splits;
    const i64 outer = z / job.inner_count, inner = z % job.inner_count;
    const char* a = job.a + (outer * job.a_outer + inner * job.a_inner) * (i64)(A_MODE == 2 && A_F32 ? 4 : SIZE);
    const char* b = job.b + (outer * job.b_outer + inner * job.b_inner) * SIZE;
    const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;

    const int steps_all = (job.k + STEP - 1) / STEP;
    const int first = (int)((i64)steps_all * split / job.splits);
    const int steps = (int)((i64)steps_all * (split + 1) / job.splits) - first;

    // Every thread fills the same chunk of each row, so that all its loads of a step are under the same tap.
    const int chunk = thread % 8, row0 = thread / 8;
    int k_now = first * STEP + chunk * CHUNK;
#if A_MODE == 1
    int channel = k_now % job.channels;
    int tap_x = (k_now / job.channels) % job.taps_x;
    int tap_y = (k_now / job.channels) / job.taps_x;
#endif
#if A_MODE != 2
    const char* a_at[PASSES_A];
#if A_MODE == 1
    int y0[PASSES_A], x0[PASSES_A];
#else
    bool a_valid[PASSES_A];
#endif
#pragma unroll
    for (int i = 0; i < PASSES_A; i++) {
        int m = m0 + row0 + i * ROWS_A_PASS;
#if A_MODE == 1
        int image = m / (job.out_height * job.out_width), place = m % (job.out_height * job.out_width);
        y0[i] = (place / job.out_width) * job.stride_y - job.pad_y;
        x0[i] = (place % job.out_width) * job.stride_x - job.pad_x;
        a_at[i] = a + ((i64)image * job.a_image + (i64)y0[i] * job.a_row + (i64)x0[i] * job.a_column) * SIZE;
        if (m >= job.m) y0[i] = -1000000;
#else
        a_valid[i] = m < job.m;
        a_at[i] = a + ((i64)m * job.a_column + k_now) * SIZE;
#endif
    }
#endif
#if A_MODE != 2
    const char* b_at[PASSES_B];
    bool b_valid[PASSES_B];
#pragma unroll
    for (int i = 0; i < PASSES_B; i++) {
        int n = n0 + row0 + i * ROWS_A_PASS;
        b_valid[i] = n < job.n;
        b_at[i] = b + ((i64)n * job.b_pitch + k_now) * SIZE;
    }
#endif
    const u32 put_at = row0 * 128 + ((chunk ^ (row0 & 7)) * 16);  // rows of a pass are multiples of 8 apart, so that the permutation is the same

#if A_MODE != 2
    int b_k = k_now;
    auto load_b = [&](int stage) {
        u32 to = shared_base + stage * STAGE_BYTES + BM * 128 + put_at;
#pragma unroll
        for (int i = 0; i < PASSES_B; i++) {
            if (BN * 8 % THREADS == 0 || row0 + i * ROWS_A_PASS < BN) {
                bool valid = b_valid[i] && b_k < job.k;
                copy_async(to + i * ROWS_A_PASS * 128, valid ? b_at[i] : b, valid);
            }
            b_at[i] += 128;
        }
        b_k += STEP;
    };
    auto load_a = [&](int stage) {
        u32 to = shared_base + stage * STAGE_BYTES + put_at;
#if A_MODE == 1
        const int dy = tap_y * job.dilation_y, dx = tap_x * job.dilation_x;
        const i64 offset = ((i64)dy * job.a_row + (i64)dx * job.a_column + channel) * SIZE;
#pragma unroll
        for (int i = 0; i < PASSES_A; i++) {
            if (BM * 8 % THREADS == 0 || row0 + i * ROWS_A_PASS < BM) {
                bool valid = k_now < job.k && (u32)(y0[i] + dy) < (u32)job.height && (u32)(x0[i] + dx) < (u32)job.width;
                copy_async(to + i * ROWS_A_PASS * 128, valid ? a_at[i] + offset : a, valid);
            }
        }
        channel += STEP;
        while (channel >= job.channels) {
            channel -= job.channels;
            if (++tap_x == job.taps_x) { tap_x = 0; tap_y++; }
        }
#else
#pragma unroll
        for (int i = 0; i < PASSES_A; i++) {
            if (BM * 8 % THREADS == 0 || row0 + i * ROWS_A_PASS < BM) {
                bool valid = a_valid[i] && k_now < job.k;
                copy_async(to + i * ROWS_A_PASS * 128, valid ? a_at[i] : a, valid);
            }
            a_at[i] += 128;
        }
#endif
        k_now += STEP;
    };
#else
    auto load_b = [&](int stage) {};
    // One element at a time: any strides, any number of channels, and f32 that is wanted as F16. For the first convolution of a network.
    auto load_a = [&](int stage) {
        char* to = shared + stage * STAGE_BYTES + put_at;
        for (int i = 0; i < PASSES_A; i++) {
            int row = row0 + i * ROWS_A_PASS, m = m0 + row;
            if (row >= BM) break;
            int image = m / (job.out_height * job.out_width), place = m % (job.out_height * job.out_width);
            int y_from = (place / job.out_width) * job.stride_y - job.pad_y, x_from = (place % job.out_width) * job.stride_x - job.pad_x;
            int k = k_now;
            int channel = k % job.channels, tap_x = (k / job.channels) % job.taps_x, tap_y = (k / job.channels) / job.taps_x;
            Pack<In, CHUNK> pack;
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                int y = y_from + tap_y * job.dilation_y, x = x_from + tap_x * job.dilation_x;
                bool valid = m < job.m && k < job.k && (u32)y < (u32)job.height && (u32)x < (u32)job.width;
                i64 at = (i64)image * job.a_image + (i64)y * job.a_row + (i64)x * job.a_column + (i64)channel * job.a_channel;
#if A_F32
                float v = valid ? ((const float*)a)[at] : 0.0f;
#else
                float v = valid ? value(((const In*)a)[at]) : 0.0f;
#endif
                put(&pack.at[j], v);
                k++;
                if (++channel == job.channels) { channel = 0; if (++tap_x == job.taps_x) { tap_x = 0; tap_y++; } }
            }
            *(Pack<In, CHUNK>*)(to + i * ROWS_A_PASS * 128) = pack;
        }
        to += BM * 128;
        for (int i = 0; i < PASSES_B; i++) {
            int row = row0 + i * ROWS_A_PASS;
            if (row >= BN) break;
            int k = k_now;
            int channel = k % job.channels, tap_x = (k / job.channels) % job.taps_x, tap_y = (k / job.channels) / job.taps_x;
            const In* from = (const In*)b + (i64)(n0 + row) * job.b_pitch;
            Pack<In, CHUNK> pack;
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                bool valid = n0 + row < job.n && k < job.k;
                put(&pack.at[j], valid ? value(from[tap_y * job.b_row + tap_x * job.b_column + channel * job.b_channel]) : 0.0f);
                k++;
                if (++channel == job.channels) { channel = 0; if (++tap_x == job.taps_x) { tap_x = 0; tap_y++; } }
            }
            *(Pack<In, CHUNK>*)(to + i * ROWS_A_PASS * 128) = pack;
        }
        k_now += STEP;
    };
#endif

    float sum[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] = 0.0f;

    // Weights are there already; what the kernel before writes is waited for.
    if (job.early) {
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++)
            if (s < steps) load_b(s);
    }
    after_the_kernel_before();
    if (!job.early) {
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++)
            if (s < steps) load_b(s);
    }
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load_a(s);
        copies_begun();
    }
    // Behind the buffers: the bias of these columns.
    float* bias = (float*)(shared + BIAS_AT);
    for (int i = thread; i < BN; i += THREADS) {
        i64 at = inner * job.bias_inner + n0 + i;
        float x = 0.0f;
        if (job.bias && n0 + i < job.n) x = job.bias_f16 ? value(((const F16*)job.bias)[at]) : ((const float*)job.bias)[at];
        bias[i] = x;
    }

    const int warp_m = (warp / WARPS_N) * WM, warp_n = (warp % WARPS_N) * WN;
    const int a_row = warp_m + (lane & 15), a_half = lane >> 4;                        // rows 0..15, then the other chunk
    const int b_row = warp_n + (lane & 7) + ((lane >> 4) << 3), b_half = (lane >> 3) & 1;  // eight columns with both chunks, then the next eight

    int stage = 0, stage_next = STAGES - 1;
    for (int step = 0; step < steps; step++) {
        copies_done_but<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) {
            load_b(stage_next);
            load_a(stage_next);
        }
        copies_begun();
        const u32 from_a = shared_base + stage * STAGE_BYTES, from_b = from_a + BM * 128;
#pragma unroll
        for (int part = 0; part < 4; part++) {
            u32 fa[MT][4], fb[NT / 2][4];
#pragma unroll
            for (int i = 0; i < MT; i++) {
                int row = a_row + i * 16;
                load_matrices(fa[i], from_a + row * 128 + (((part * 2 + a_half) ^ (row & 7)) * 16));
            }
#pragma unroll
            for (int j = 0; j < NT / 2; j++) {
                int row = b_row + j * 16;
                load_matrices(fb[j], from_b + row * 128 + (((part * 2 + b_half) ^ (row & 7)) * 16));
            }
#if !IN_F16 && !EXACT
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) fa[i][e] = rounded(fa[i][e]);
#pragma unroll
            for (int j = 0; j < NT / 2; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) fb[j][e] = rounded(fb[j][e]);
#endif
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++) multiply<IN_F16, EXACT>(sum[i][j], fa[i], fb[j / 2][(j & 1) * 2], fb[j / 2][(j & 1) * 2 + 1]);
        }
        if (++stage == STAGES) stage = 0;
        if (++stage_next == STAGES) stage_next = 0;
    }
    copies_done_but<0>();
    __syncthreads();

    // Through shared memory, so that stores are wide and peers can read.
    float* staged = (float*)shared;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int row = warp_m + i * 16 + lane / 4, column = warp_n + j * 8 + (lane % 4) * 2;
            *(float2*)(staged + row * SHARED_PITCH + column) = make_float2(sum[i][j][0], sum[i][j][1]);
            *(float2*)(staged + (row + 8) * SHARED_PITCH + column) = make_float2(sum[i][j][2], sum[i][j][3]);
        }
    int row_from = 0, row_to = BM;
#if __CUDA_ARCH__ >= 900
    if (job.splits > 1) {
        meet_peers();
        row_from = BM * split / job.splits;
        row_to = BM * (split + 1) / job.splits;
    } else
#endif
        __syncthreads();

    Out* out = (Out*)job.out + outer * job.out_outer + inner * job.out_inner;
    const Out* residual = job.residual ? (const Out*)job.residual + outer * job.residual_outer + inner * job.residual_inner : nullptr;
    // Where rows of the result are at equal distances, `places` is 0 and nothing has to be divided.
    auto offset = [&](int m, i64 image, i64 pitch) { return job.places ? (m / job.places) * image + (m % job.places) * pitch : m * pitch; };
    const int columns = BN / OUT_PACK;
    const int last = row_to * columns;
    // A few packs at a time, so that their loads wait together.
    for (int base = row_from * columns + thread; base < last; base += THREADS * TOGETHER) {
        Pack<Out, OUT_PACK> added[TOGETHER];
        if (residual) {
#pragma unroll
            for (int u = 0; u < TOGETHER; u++) {
                const int item = base + u * THREADS, m = m0 + item / columns, n = n0 + (item % columns) * OUT_PACK;
                if (item >= last || m >= job.m || n >= job.n) continue;
                const Out* p = residual + offset(m, job.residual_image, job.residual_pitch) + n * job.residual_step;
                if (job.wide) {
                    added[u] = *(const Pack<Out, OUT_PACK>*)p;
                } else {
#pragma unroll
                    for (int e = 0; e < OUT_PACK; e++)
                        if (n + e < job.n) added[u].at[e] = p[e * job.residual_step];
                }
            }
        }
#pragma unroll
        for (int u = 0; u < TOGETHER; u++) {
            const int item = base + u * THREADS, row = item / columns, column = (item % columns) * OUT_PACK;
            const int m = m0 + row, n = n0 + column;
            if (item >= last || m >= job.m || n >= job.n) continue;
            float x[OUT_PACK];
#pragma unroll
            for (int e = 0; e < OUT_PACK; e += 4) {
                float4 v;
#if __CUDA_ARCH__ >= 900
                if (job.splits > 1) {
                    const u32 at = shared_base + (row * SHARED_PITCH + column + e) * 4;
                    v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
                    for (int peer = 0; peer < job.splits; peer++) {
                        float4 w = from_peer(at, peer);
                        v.x += w.x; v.y += w.y; v.z += w.z; v.w += w.w;
                    }
                } else
#endif
                    v = *(const float4*)(staged + row * SHARED_PITCH + column + e);
                x[e] = v.x; x[e + 1] = v.y; x[e + 2] = v.z; x[e + 3] = v.w;
            }
            Pack<Out, OUT_PACK> pack;
#pragma unroll
            for (int e = 0; e < OUT_PACK; e++) {
                float v = x[e] * job.alpha + bias[column + e];
                if (residual) v += value(added[u].at[e]);
                put(&pack.at[e], activate(v, ACTIVATION, job.low, job.high));
            }
            Out* p = out + offset(m, job.out_image, job.out_pitch) + n * job.out_step;
            if (job.wide) {
                *(Pack<Out, OUT_PACK>*)p = pack;
            } else {
#pragma unroll
                for (int e = 0; e < OUT_PACK; e++)
                    if (n + e < job.n) p[e * job.out_step] = pack.at[e];
            }
        }
    }
#if __CUDA_ARCH__ >= 900
    // Nobody leaves while a peer may still read its shared memory.
    if (job.splits > 1) meet_peers();
#endif
}
