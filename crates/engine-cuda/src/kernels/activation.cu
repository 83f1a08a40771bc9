// An activation where a library has left what it applies to. One pointer, not two to the same place, so that the
// compiler knows that what is read is written.
//
// Given: THREADS of a block, PACK elements of a pack; ELEMENT, LOAD and STORE; COORDINATES, which makes
// x0, x1, ... of `first`, and AT, the place there; ACTIVATION, LOW and HIGH, as `activate` has them.

extern "C" __global__ void __launch_bounds__(THREADS) step(ELEMENT* __restrict__ o, const u32 count) {
    after_the_kernel_before();
    const u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= count) return;
    const u32 first = t * PACK;
    COORDINATES
    Pack<ELEMENT, PACK> q = *(const Pack<ELEMENT, PACK>*)(o + AT);
#pragma unroll
    for (int v = 0; v < PACK; v++) q.at[v] = STORE(activate(LOAD(q.at[v]), ACTIVATION, LOW, HIGH));
    *(Pack<ELEMENT, PACK>*)(o + AT) = q;
}
