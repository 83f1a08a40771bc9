// A convolution in which every channel has its own kernel. A thread takes a pack of channels and COLUMNS neighbouring
// places, and reads each element of the image that lies under several of them once.
//
// Given: THREADS of a block, PACK channels of a pack; IN, WEIGHT, OUT (element types), LOAD, LOAD_WEIGHT
// and STORE; IMAGE, CHANNEL, ROW and COLUMN of a thread's number (columns in packs); IN_AT and OUT_AT (places);
// WEIGHT_AT, and WEIGHT_CHANNEL from one channel to the next, or WEIGHTS_IN_PACKS; KERNEL_Y, KERNEL_X, STRIDE_Y and so
// on; HEIGHT and WIDTH of the input, OUT_WIDTH; REACH of COLUMNS windows; ACTIVATION, LOW and HIGH; perhaps HAS_BIAS
// with BIAS, LOAD_BIAS and BIAS_STRIDE, and HAS_RESIDUAL with RESIDUAL, LOAD_RESIDUAL and RESIDUAL_AT.

extern "C" __global__ void __launch_bounds__(THREADS) step(const IN* __restrict__ in, const WEIGHT* __restrict__ weight, OUT* __restrict__ out
#if HAS_BIAS
    , const BIAS* __restrict__ bias
#endif
#if HAS_RESIDUAL
    , const RESIDUAL* __restrict__ residual
#endif
    , const u32 count) {
    after_the_kernel_before();
    const u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= count) return;
    const u32 c = CHANNEL(t), x_pack = COLUMN(t), y = ROW(t), n = IMAGE(t);
    const u32 x = x_pack * COLUMNS;
    float s[COLUMNS][PACK];
#pragma unroll
    for (int o = 0; o < COLUMNS; o++)
#pragma unroll
#if HAS_BIAS
        for (int v = 0; v < PACK; v++) s[o][v] = LOAD_BIAS(bias[(i64)(c + v) * BIAS_STRIDE]);
#else
        for (int v = 0; v < PACK; v++) s[o][v] = 0.0f;
#endif
    const int x_from = (int)x * STRIDE_X - PAD_X;
#pragma unroll
    for (int i = 0; i < KERNEL_Y; i++) {
        const int a_y = (int)y * STRIDE_Y - PAD_Y + i * DILATION_Y;
        if ((u32)a_y >= HEIGHT) continue;
        float a[REACH][PACK];
#pragma unroll
        for (int k = 0; k < REACH; k++) {
            const bool valid = (u32)(x_from + k) < WIDTH;
            Pack<IN, PACK> q;
            if (valid) q = *(const Pack<IN, PACK>*)(in + IN_AT(n, c, a_y, x_from + k));
#pragma unroll
            for (int v = 0; v < PACK; v++) a[k][v] = valid ? LOAD(q.at[v]) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < KERNEL_X; j++) {
#if WEIGHTS_IN_PACKS
            const Pack<WEIGHT, PACK> w = *(const Pack<WEIGHT, PACK>*)(weight + WEIGHT_AT(c, i, j));
#else
            Pack<WEIGHT, PACK> w;
#pragma unroll
            for (int v = 0; v < PACK; v++) w.at[v] = weight[WEIGHT_AT(c, i, j) + (i64)v * WEIGHT_CHANNEL];
#endif
#pragma unroll
            for (int o = 0; o < COLUMNS; o++)
#pragma unroll
                for (int v = 0; v < PACK; v++) s[o][v] += a[o * STRIDE_X + j * DILATION_X][v] * LOAD_WEIGHT(w.at[v]);
        }
    }
#pragma unroll
    for (int o = 0; o < COLUMNS; o++) {
        if (x + o >= OUT_WIDTH) break;
#if HAS_RESIDUAL
        const Pack<RESIDUAL, PACK> r = *(const Pack<RESIDUAL, PACK>*)(residual + RESIDUAL_AT(n, c, y, x + o));
#pragma unroll
        for (int v = 0; v < PACK; v++) s[o][v] += LOAD_RESIDUAL(r.at[v]);
#endif
        Pack<OUT, PACK> q;
#pragma unroll
        for (int v = 0; v < PACK; v++) q.at[v] = STORE(activate(s[o][v], ACTIVATION, LOW, HIGH));
        *(Pack<OUT, PACK>*)(out + OUT_AT(n, c, y, x + o)) = q;
    }
}
