// A tensor with others written over some of its elements. A thread has one element of the output, and looks through all
// updates along the axis in their order: nothing is written twice, and equal inputs give equal outputs.
//
// Given: THREADS of a block; DATA, INDEX, UPDATE, OUT (element types), VALUE, what is computed with,
// LOAD, LOAD_UPDATE and STORE; LIMIT, how many positions there are along the axis, UPDATES along it; FOLD, what an
// update does to a value. Generated from the step: COORDINATES makes x0, x1, ... of `t`; AT is the one along the axis;
// REACHED says whether there are updates across the others; DATA_AT, OUT_AT, INDEX_AT and UPDATE_AT are places, the
// last two without the axis, along which INDEX_STRIDE and UPDATE_STRIDE lead on.

extern "C" __global__ void __launch_bounds__(THREADS) step(const DATA* __restrict__ data, const INDEX* __restrict__ indices, const UPDATE* __restrict__ updates, OUT* __restrict__ out, const u32 count) {
    after_the_kernel_before();
    const u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= count) return;
    COORDINATES
    VALUE s = LOAD(data[DATA_AT]);
    if (REACHED)
        for (u32 u = 0; u < UPDATES; u++) {
            const i64 index = (i64)indices[INDEX_AT + (i64)u * INDEX_STRIDE];
            if ((index < 0 ? index + LIMIT : index) != AT) continue;
            const VALUE v = LOAD_UPDATE(updates[UPDATE_AT + (i64)u * UPDATE_STRIDE]);
            FOLD(s, v);
        }
    out[OUT_AT] = STORE(s);
}
