// Where the largest or the smallest element of a row is: behind best.cu and rows.cu.
//
// Given: IN, OUT (element types), LOAD and STORE; IN_AT, OUT_AT (places).
extern "C" __global__ void __launch_bounds__(THREADS) step(IN* __restrict__ in, OUT* __restrict__ out, const u32 count) {
    after_the_kernel_before();
    FIND_ROW
    Best best;
    best.x = 0; best.at = -1;
    EACH(i) {
        COORDINATES
        const VALUE v = LOAD(in[IN_AT]);
        if (best.at < 0 || BETTER(v, best.x) || (v == best.x && EARLIER((i64)i, best.at))) { best.x = v; best.at = i; }
    }
    best = together(best, lane);
    if (alive && lane == 0) out[OUT_AT] = STORE(best.at);
}
