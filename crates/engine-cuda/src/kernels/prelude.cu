// What every kernel of ours begins with, behind device.cu.
#define INFINITE __int_as_float(0x7f800000)

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

// 32 bytes of rows of either type at a time: halves, or f32 as TF32 or exactly.
template <bool HALVES, bool EXACTLY> __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (HALVES) multiply_halves(c, a, b0, b1);
    else if constexpr (EXACTLY) multiply_exactly(c, a, b0, b1);
    else multiply_tf32(c, a, b0, b1);
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
