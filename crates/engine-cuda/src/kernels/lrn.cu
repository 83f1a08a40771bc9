// Normalisation across neighbouring channels. A thread has one element.
//
// Given: THREADS of a block; IN, OUT (element types), LOAD and STORE; CHANNELS; IN_CHANNEL and
// OUT_CHANNEL, from one channel to the next; BELOW and ABOVE, how many neighbours count; SHIFT, FACTOR and BETA.
// Generated from the step: PLACES takes coordinates off `left` and adds their places to `a` and `b`.

extern "C" __global__ void __launch_bounds__(THREADS) step(const IN* __restrict__ in, OUT* __restrict__ out, const u32 count) {
    after_the_kernel_before();
    const u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= count) return;
    u32 left = t / CHANNELS;
    const int c = t % CHANNELS;
    i64 a = 0, b = 0;
    PLACES
    float s = 0.0f;
    for (int k = c - BELOW; k <= c + ABOVE; k++) {
        if (k < 0 || k >= CHANNELS) continue;
        const float v = LOAD(in[a + (i64)k * IN_CHANNEL]);
        s += v * v;
    }
    const float v = LOAD(in[a + (i64)c * IN_CHANNEL]) / powf(SHIFT + FACTOR * s, BETA);
    out[b + (i64)c * OUT_CHANNEL] = STORE(v);
}
