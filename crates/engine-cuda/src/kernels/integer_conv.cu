// Convolutions and products of integers, with sums in 32 bits. A block has 64 places of the output and 64 output channels
// of one group; a thread has four of each, 16 apart. Sixteen terms at a time are brought into shared memory.
//
// Given: THREADS of a block (256); PLACES of the output in all, OUT_HEIGHT and OUT_WIDTH of an image; GROUP_OUT and
// GROUP_IN, channels of a group, ACROSS blocks for them; IN and WEIGHT (element types), HAS_ZERO; KERNEL_Y, KERNEL_X,
// STRIDE_Y and so on; HEIGHT and WIDTH of the input; IN_AT, OUT_AT and WEIGHT_AT (places).

#define TILE 64
#define DEPTH 16
#define TERMS (GROUP_IN * KERNEL_Y * KERNEL_X)
#if HAS_ZERO
#define PARAMETERS const IN* __restrict__ in, const WEIGHT* __restrict__ weight, int* __restrict__ out, const IN* __restrict__ zero_at
#define ZERO (int)zero_at[0]
#else
#define PARAMETERS const IN* __restrict__ in, const WEIGHT* __restrict__ weight, int* __restrict__ out
#define ZERO 0
#endif

extern "C" __global__ void __launch_bounds__(THREADS) step(PARAMETERS) {
    __shared__ int a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    after_the_kernel_before();
    const int zero = ZERO;
    const u32 group = blockIdx.y / ACROSS, first_place = blockIdx.x * TILE, first_channel = blockIdx.y % ACROSS * TILE;
    const u32 depth = threadIdx.x % DEPTH, line = threadIdx.x / DEPTH;
    u32 sum[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = 0;
    for (u32 begin = 0; begin < TERMS; begin += DEPTH) {
        const u32 term = begin + depth, c = term % GROUP_IN, tap = term / GROUP_IN, k_x = tap % KERNEL_X, k_y = tap / KERNEL_X;
#pragma unroll
        for (u32 i = 0; i < TILE; i += 16) {
            const u32 place = first_place + line + i, channel = first_channel + line + i;
            const int y = (int)(place / OUT_WIDTH % OUT_HEIGHT * STRIDE_Y + k_y * DILATION_Y) - PAD_Y;
            const int x = (int)(place % OUT_WIDTH * STRIDE_X + k_x * DILATION_X) - PAD_X;
            const u32 n = place / (OUT_WIDTH * OUT_HEIGHT);
            const bool inside = term < TERMS && place < PLACES && (u32)y < HEIGHT && (u32)x < WIDTH;
            a[depth][line + i] = inside ? (int)in[IN_AT(n, group * GROUP_IN + c, y, x)] - zero : 0;
            const bool there = term < TERMS && channel < GROUP_OUT;
            b[depth][line + i] = there ? (int)weight[WEIGHT_AT(group * GROUP_OUT + channel, c, k_y, k_x)] : 0;
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < DEPTH; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += (u32)a[k][line + i * 16] * (u32)b[k][depth + j * 16];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 place = first_place + line + i * 16, channel = first_channel + depth + j * 16;
            if (place >= PLACES || channel >= GROUP_OUT) continue;
            const u32 x = place % OUT_WIDTH, y = place / OUT_WIDTH % OUT_HEIGHT, n = place / (OUT_WIDTH * OUT_HEIGHT);
            out[OUT_AT(n, group * GROUP_OUT + channel, y, x)] = (int)sum[i][j];
        }
}
