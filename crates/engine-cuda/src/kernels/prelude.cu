// What every kernel of ours begins with. No headers: NVRTC's own folder of them may not be there.
typedef unsigned short half_bits;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned char u8;

#define INFINITE __int_as_float(0x7f800000)

__device__ __forceinline__ float from_half(half_bits x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ __forceinline__ half_bits to_half(float x) {
    half_bits y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ u32 two_halves(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
// To the nearest, halves to even: just under half of the last place that stays is added, and one more where that place is odd.
__device__ __forceinline__ unsigned short bf16_bits(float x) {
    u32 bits = __float_as_uint(x);
    return x != x ? 0x7fff : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// One element type for each dtype of a plan: how it lies in memory, and the value that is computed with.
struct F16 { half_bits bits; };
__device__ __forceinline__ float value(float x) { return x; }
__device__ __forceinline__ float value(F16 x) { return from_half(x.bits); }
__device__ __forceinline__ i64 value(i64 x) { return x; }
__device__ __forceinline__ i64 value(int x) { return x; }
__device__ __forceinline__ bool value(u8 x) { return x != 0; }
__device__ __forceinline__ void put(float* p, float x) { *p = x; }
__device__ __forceinline__ void put(F16* p, float x) { p->bits = to_half(x); }
__device__ __forceinline__ void put(i64* p, i64 x) { *p = x; }
__device__ __forceinline__ void put(int* p, i64 x) { *p = (int)x; }
__device__ __forceinline__ void put(u8* p, bool x) { *p = x ? 1 : 0; }

// Of element types by their names in C, where F16 is its bits.
template <class T> __device__ __forceinline__ float as_float(T x) { return (float)x; }
template <> __device__ __forceinline__ float as_float<half_bits>(half_bits x) { return from_half(x); }

// As many elements as one access takes.
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };

// The kernel before this one in the stream may still run until here; nothing that it writes is read, and nothing that it reads is written, above this line.
// The next kernel may already be set up if it is one of ours: it waits in the same way. Not all kernels of libraries do, so that graphs keep those back (streams.rs).
__device__ __forceinline__ void after_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Tensor cores: 16 bytes on their way into shared memory (zeros where they aren't valid), four 8x8 matrices out of it, and one product of F16 with sums in f32.
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy_async(u32 to, const void* from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void copies_but_the_last_done() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void multiply_halves(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of TF32, of which the tensor cores look at the upper bits of an f32 alone.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// To the nearest of what TF32 can hold; the tensor cores would cut off instead.
__device__ __forceinline__ u32 rounded(u32 x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
    return y;
}
// The part of an f32 that TF32 keeps, and the rest.
__device__ __forceinline__ void halve(u32 x, u32& high, u32& low) {
    high = x & 0xffffe000u;
    low = __float_as_uint(__uint_as_float(x) - __uint_as_float(high));
}
// As exact as f32: three products of halves of the factors. Tensor cores cut off what doesn't fit into a sum, always in the same direction: over thousands of terms that is seen.
// So they sum eight terms, and the sum of these is rounded.
__device__ __forceinline__ void multiply_exactly(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 high[4], low[4], b0_high, b0_low, b1_high, b1_low;
#pragma unroll
    for (int e = 0; e < 4; e++) halve(a[e], high[e], low[e]);
    halve(b0, b0_high, b0_low);
    halve(b1, b1_high, b1_low);
    float eight[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    multiply_tf32(eight, low, b0_high, b1_high);
    multiply_tf32(eight, high, b0_low, b1_low);
    multiply_tf32(eight, high, b0_high, b1_high);
#pragma unroll
    for (int e = 0; e < 4; e++) c[e] += eight[e];
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
__device__ __forceinline__ float gelu_tanh(float x) { return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x))); }

// The numbers are those of `activation_code` in program/expression.rs.
__device__ __forceinline__ float activate(float x, int kind, float low, float high) {
    switch (kind) {
    case 1: return fmaxf(x, 0.0f);
    case 2: return fminf(fmaxf(x, low), high);
    case 3: return sigmoid(x);
    case 4: return x * sigmoid(x);
    case 5: return x * fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
    case 6: return gelu(x);
    case 7: return gelu_tanh(x);
    case 8: return tanhf(x);
    case 9: return fminf(fmaxf(x * low + high, 0.0f), 1.0f);
    case 10: return x < 0.0f ? x * low : x;
    case 11: return x * tanhf(x > 20.0f ? x : log1pf(expf(x)));
    default: return x;
    }
}
