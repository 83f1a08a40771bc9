// Softmax over rows: behind exponentials.cu and rows.cu.
//
// Given: IN, OUT (element types), LOAD and STORE; IN_AT, OUT_AT (places); LOGARITHM, whether its logarithm is wanted.
#if LOGARITHM
#define RESULT(v, s) v - s.most - logf(s.sum)
#else
#define RESULT(v, s) __expf(v - s.most) / s.sum
#endif
extern "C" __global__ void __launch_bounds__(THREADS) step(IN* __restrict__ in, OUT* __restrict__ out, const u32 count) {
    after_the_kernel_before();
    FIND_ROW
    Sum s;
    s.most = -INFINITE; s.sum = 0.0f;
    EACH(i) {
        COORDINATES
        Sum one;
        one.most = LOAD(in[IN_AT]); one.sum = 1.0f;
        s = joined(s, one);
    }
    s = together(s, lane);
    EACH(i) {
        COORDINATES
        const float v = LOAD(in[IN_AT]);
        out[OUT_AT] = STORE(RESULT(v, s));
    }
}
