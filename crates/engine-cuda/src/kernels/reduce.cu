// Sums, products, the largest and the smallest of rows: behind rows.cu.
//
// Given: IN, OUT (element types), LOAD and STORE; COMBINED, what is computed with; FIRST, FOLD and RESULT; IN_AT,
// OUT_AT (places).
extern "C" __global__ void __launch_bounds__(THREADS) step(IN* __restrict__ in, OUT* __restrict__ out, const u32 count) {
    after_the_kernel_before();
    FIND_ROW
    COMBINED s = FIRST;
    EACH(i) {
        COORDINATES
        const COMBINED v = LOAD(in[IN_AT]);
        FOLD(s, v);
    }
    s = together(s, lane);
    if (alive && lane == 0) out[OUT_AT] = STORE(RESULT(s));
}
