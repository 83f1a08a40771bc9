// Element-wise expressions, copies and fills: a thread computes one pack of neighbouring elements.
//
// Given: THREADS of a block, PACK elements of a pack; PARAMETERS (i0, i1, ... for the inputs, o for the output, of
// elements OUT; `count`, how many packs there are). Generated from the step: COORDINATES makes x0, x1, ... of `first`;
// READS makes p0, p1, ... (a pack or one element of each input); ELEMENTS makes e0, e1, ... (those at `v`);
// INSTRUCTIONS makes r0, r1, ... of them; RESULT is the element that is written; OUT_AT is its place.

extern "C" __global__ void __launch_bounds__(THREADS) step(PARAMETERS) {
    after_the_kernel_before();
    const u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= count) return;
    const u32 first = t * PACK;
    COORDINATES
    READS
    Pack<OUT, PACK> q;
#pragma unroll
    for (int v = 0; v < PACK; v++) {
        ELEMENTS
        INSTRUCTIONS
        q.at[v] = RESULT;
    }
    *(Pack<OUT, PACK>*)(o + OUT_AT) = q;
}
