// Attention for any types and strides: one warp for each row of queries, its scores in shared memory.
//
// Given: Q, K, V, M, O (element types), WIDTH, VALUE_WIDTH, LENGTH, OTHER, WARPS, SCALE, HAS_MASK, and the strides QS0..QS3 and so on.

__device__ __forceinline__ void set(float* p, float x) { *p = x; }
__device__ __forceinline__ void set(half_bits* p, float x) { *p = to_half(x); }

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention(const Q* q, const K* k, const V* v, const M* mask, O* o) {
    extern __shared__ float shared[];
    after_the_kernel_before();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = blockIdx.x * WARPS + warp;
    const int head = blockIdx.y, batch = blockIdx.z;
    if (row >= LENGTH) return;
    float* scores = shared + warp * (OTHER + WIDTH);
    float* query = scores + OTHER;
    q += (i64)batch * QS0 + (i64)head * QS1 + (i64)row * QS2;
    k += (i64)batch * KS0 + (i64)head * KS1;
    v += (i64)batch * VS0 + (i64)head * VS1;
    for (int d = lane; d < WIDTH; d += 32) query[d] = as_float(q[(i64)d * QS3]) * SCALE;
    __syncwarp();
    float most = -INFINITE;
    for (int j = lane; j < OTHER; j += 32) {
        float s = 0.0f;
#pragma unroll 8
        for (int d = 0; d < WIDTH; d++) s += query[d] * as_float(k[(i64)j * KS2 + (i64)d * KS3]);
#if HAS_MASK
        s += as_float(mask[(i64)batch * MS0 + (i64)head * MS1 + (i64)row * MS2 + (i64)j * MS3]);
#endif
        scores[j] = s;
        most = fmaxf(most, s);
    }
    for (int half = 16; half > 0; half /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, half));
    if (most == -INFINITE) most = 0.0f;  // everything is masked: all factors are 0 then, and so is the result
    float sum = 0.0f;
    for (int j = lane; j < OTHER; j += 32) {
        float e = __expf(scores[j] - most);
        scores[j] = e;
        sum += e;
    }
    for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    __syncwarp();
    for (int d = lane; d < VALUE_WIDTH; d += 32) {
        float s = 0.0f;
#pragma unroll 8
        for (int j = 0; j < OTHER; j++) s += scores[j] * as_float(v[(i64)j * VS2 + (i64)d * VS3]);
        set(o + (i64)batch * OS0 + (i64)head * OS1 + (i64)row * OS2 + (i64)d * OS3, s * factor);
    }
}
