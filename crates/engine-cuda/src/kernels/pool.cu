// Pools: the largest or the mean of what lies under a window. A thread has a pack of channels at one place of the
// output.
//
// Given: THREADS of a block, PACK channels of a pack; IN, OUT (element types), LOAD and STORE; IMAGE,
// CHANNEL, ROW and COLUMN of a thread's number; IN_AT and OUT_AT (places); KERNEL_Y, KERNEL_X, STRIDE_Y and so on;
// HEIGHT and WIDTH of the input, END_Y and END_X with the padding behind it; MAX_POOL, or COUNT_PADDING: whether a mean
// counts what is padding. What is behind the padding, where a pool rounds up, is never counted.

#if MAX_POOL
#define FIRST -INFINITE
#define FOLD(s, a) s = fmaxf(s, a)
#define RESULT(s) s
#else
#define FIRST 0.0f
#define FOLD(s, a) s += a
#if COUNT_PADDING
#define RESULT(s) s / (float)counted
#else
#define RESULT(s) s / (float)inside
#endif
#endif

extern "C" __global__ void __launch_bounds__(THREADS) step(const IN* __restrict__ in, OUT* __restrict__ out, const u32 count) {
    after_the_kernel_before();
    const u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= count) return;
    const u32 c = CHANNEL(t), x = COLUMN(t), y = ROW(t), n = IMAGE(t);
    float s[PACK];
#pragma unroll
    for (int v = 0; v < PACK; v++) s[v] = FIRST;
    int inside = 0, counted = 0;
#pragma unroll
    for (int i = 0; i < KERNEL_Y; i++)
#pragma unroll
    for (int j = 0; j < KERNEL_X; j++) {
        const int a_y = (int)y * STRIDE_Y - PAD_Y + i * DILATION_Y, a_x = (int)x * STRIDE_X - PAD_X + j * DILATION_X;
        if (a_y < END_Y && a_x < END_X) counted++;
        if ((u32)a_y >= HEIGHT || (u32)a_x >= WIDTH) continue;
        inside++;
        const Pack<IN, PACK> q = *(const Pack<IN, PACK>*)(in + IN_AT(n, c, a_y, a_x));
#pragma unroll
        for (int v = 0; v < PACK; v++) { const float a = LOAD(q.at[v]); FOLD(s[v], a); }
    }
    Pack<OUT, PACK> q;
#pragma unroll
    for (int v = 0; v < PACK; v++) q.at[v] = STORE(RESULT(s[v]));
    *(Pack<OUT, PACK>*)(out + OUT_AT(n, c, y, x)) = q;
}
