// Images in another size. A thread has one element of the output.
//
// Given: THREADS of a block; IN, OUT (element types), LOAD and STORE; IMAGE, CHANNEL, ROW and COLUMN
// of a thread's number; IN_AT and OUT_AT (places); HEIGHT and WIDTH of the input, LAST_Y and LAST_X one less; SOURCE_Y
// and SOURCE_X, where a row and a column of the output lie in the input; METHOD (0: the nearest element, by ROUNDED, 1:
// linear, 2: cubic, with COEFFICIENT and EXCLUDE_OUTSIDE).

__device__ __forceinline__ float cubic(float x, float a) {
    return x <= 1.0f ? ((a + 2.0f) * x - (a + 3.0f)) * x * x + 1.0f : x < 2.0f ? a * (((x - 5.0f) * x + 8.0f) * x - 4.0f) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS) step(const IN* __restrict__ in, OUT* __restrict__ out, const u32 count) {
    after_the_kernel_before();
    const u32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= count) return;
    const u32 c = CHANNEL(t), x = COLUMN(t), y = ROW(t), n = IMAGE(t);
    const float f_y = SOURCE_Y(y), f_x = SOURCE_X(x);
#if METHOD == 0
    const int a_y = min(max((int)ROUNDED(f_y), 0), LAST_Y), a_x = min(max((int)ROUNDED(f_x), 0), LAST_X);
    const float s = LOAD(in[IN_AT(n, c, a_y, a_x)]);
#elif METHOD == 1
    const float g_y = fminf(fmaxf(f_y, 0.0f), (float)LAST_Y), g_x = fminf(fmaxf(f_x, 0.0f), (float)LAST_X);
    const int y0 = (int)g_y, x0 = (int)g_x, y1 = min(y0 + 1, LAST_Y), x1 = min(x0 + 1, LAST_X);
    const float b = g_y - y0, a = g_x - x0;
    const float s = (1.0f - b) * ((1.0f - a) * LOAD(in[IN_AT(n, c, y0, x0)]) + a * LOAD(in[IN_AT(n, c, y0, x1)]))
                  + b * ((1.0f - a) * LOAD(in[IN_AT(n, c, y1, x0)]) + a * LOAD(in[IN_AT(n, c, y1, x1)]));
#else
#if EXCLUDE_OUTSIDE
#define LEAVE_OUT(at, size) if (at < 0 || at >= size) k = 0.0f;
#else
#define LEAVE_OUT(at, size)
#endif
    const int y0 = (int)floorf(f_y), x0 = (int)floorf(f_x);
    float w_y[4], w_x[4], sum_y = 0.0f, sum_x = 0.0f;
    for (int i = 0; i < 4; i++) { float k = cubic(fabsf(f_y - (y0 - 1 + i)), COEFFICIENT); const int at = y0 - 1 + i; LEAVE_OUT(at, HEIGHT) w_y[i] = k; sum_y += k; }
    for (int i = 0; i < 4; i++) { float k = cubic(fabsf(f_x - (x0 - 1 + i)), COEFFICIENT); const int at = x0 - 1 + i; LEAVE_OUT(at, WIDTH) w_x[i] = k; sum_x += k; }
    float s = 0.0f;
    for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) {
        const int a_y = min(max(y0 - 1 + i, 0), LAST_Y), a_x = min(max(x0 - 1 + j, 0), LAST_X);
        s += w_y[i] * w_x[j] * LOAD(in[IN_AT(n, c, a_y, a_x)]);
    }
    s /= sum_y * sum_x;
#endif
    out[OUT_AT(n, c, y, x)] = STORE(s);
}
