// Layer normalisation over rows: behind rows.cu, with floats that are added.
//
// Given: IN, OUT (element types), LOAD and STORE; IN_AT, OUT_AT (places); EPSILON; ROOT_MEAN_SQUARE, whether the mean
// stays; perhaps HAS_SCALE with SCALE, LOAD_SCALE and SCALE_AT, and HAS_SHIFT with SHIFT, LOAD_SHIFT and SHIFT_AT.
#if HAS_SCALE
#define SCALED LOAD_SCALE(scale[SCALE_AT])
#else
#define SCALED 1.0f
#endif
#if HAS_SHIFT
#define SHIFTED LOAD_SHIFT(shift[SHIFT_AT])
#else
#define SHIFTED 0.0f
#endif
extern "C" __global__ void __launch_bounds__(THREADS) step(IN* __restrict__ in, OUT* __restrict__ out
#if HAS_SCALE
    , SCALE* __restrict__ scale
#endif
#if HAS_SHIFT
    , SHIFT* __restrict__ shift
#endif
    , const u32 count) {
    after_the_kernel_before();
    FIND_ROW
#if ROOT_MEAN_SQUARE
    const float mean = 0.0f;
#else
    float s = 0.0f;
    EACH(i) {
        COORDINATES
        s += LOAD(in[IN_AT]);
    }
    const float mean = together(s, lane) / (float)LENGTH;
#endif
    float q = 0.0f;
    EACH(i) {
        COORDINATES
        const float v = LOAD(in[IN_AT]) - mean;
        q += v * v;
    }
    const float factor = rsqrtf(together(q, lane) / (float)LENGTH + EPSILON);
    EACH(i) {
        COORDINATES
        const float v = (LOAD(in[IN_AT]) - mean) * factor * SCALED + SHIFTED;
        out[OUT_AT] = STORE(v);
    }
}
