// Picks elements by position. A thread has one element of the output. A position outside is brought to the nearest end:
// nothing is read beyond the data.
//
// Given: THREADS of a block; DATA, INDEX, OUT (element types), CONVERT from one of the data to one
// of the output; LIMIT, how many positions there are, LAST one less, and STRIDE from one to the next. Generated from
// the step: COORDINATES makes x0, x1, ... of `t`; DATA_AT, INDEX_AT and OUT_AT are places there.

extern "C" __global__ void __launch_bounds__(THREADS) step(const DATA* __restrict__ data, const INDEX* __restrict__ indices, OUT* __restrict__ out, const u32 count) {
    after_the_kernel_before();
    const u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= count) return;
    COORDINATES
    i64 at = (i64)indices[INDEX_AT];
    at = at < 0 ? at + LIMIT : at;
    at = at < 0 ? 0 : at >= LIMIT ? LAST : at;
    out[OUT_AT] = CONVERT(data[DATA_AT + at * STRIDE]);
}
