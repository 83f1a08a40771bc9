// Kernels that measure the runtime under them: they run in whichever context their stream has.

// Waits so many cycles, and says which multiprocessors it was on.
extern "C" __global__ void spin(unsigned long long cycles, unsigned int* seen) {
    long long start = clock64();
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) seen[sm] = 1u;
    while (clock64() - start < (long long)cycles) {}
}

// A model of one weight for each element.
extern "C" __global__ void scale(const float* weights, const float* in, float* out, unsigned int count) {
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        out[i] = in[i] * weights[i];
}
