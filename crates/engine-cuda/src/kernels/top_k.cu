// The K best elements of a row, the best first: behind best.cu and rows.cu. Each round finds the best of those that are
// worse than the last one found.
//
// Given: K; IN, VALUE_OUT, INDEX_OUT (element types), LOAD, STORE_VALUE and STORE_INDEX; IN_AT, VALUES_AT, INDICES_AT
// (places) and from one of the K to the next VALUES_STRIDE, INDICES_STRIDE.
extern "C" __global__ void __launch_bounds__(THREADS) step(IN* __restrict__ in, VALUE_OUT* __restrict__ values, INDEX_OUT* __restrict__ indices, const u32 count) {
    after_the_kernel_before();
    FIND_ROW
    Best last;
    last.x = 0; last.at = -1;
    for (u32 k = 0; k < K; k++) {
        Best best;
        best.x = 0; best.at = -1;
        EACH(i) {
            COORDINATES
            const VALUE v = LOAD(in[IN_AT]);
            const bool left = k == 0 || BETTER(last.x, v) || (v == last.x && (i64)i > last.at);
            if (left && (best.at < 0 || BETTER(v, best.x))) { best.x = v; best.at = i; }
        }
        last = together(best, lane);
        if (alive && lane == 0) {
            values[VALUES_AT + (i64)k * VALUES_STRIDE] = STORE_VALUE(last.x);
            indices[INDICES_AT + (i64)k * INDICES_STRIDE] = STORE_INDEX(last.at);
        }
    }
}
