// Convolutions and products of integers, with sums in 32 bits. A block has 64 places of the output and 64 output channels
// of one group. Sixteen words of terms at a time are brought into shared memory: of bytes, a word has four terms, which
// are multiplied at once, by a thread that has four places and four channels, 16 apart, or on tensor cores by a warp that
// has 16 places and 32 channels.
//
// Given: THREADS of a block (256); PLACES of the output in all, OUT_HEIGHT and OUT_WIDTH of an image; GROUP_OUT and
// GROUP_IN, channels of a group, ACROSS blocks for them, DOWN blocks for all places; TENSOR_CORES; IN and WEIGHT (element types), HAS_ZERO; TERMS_OF_A_WORD (4 or
// 1), IN_SIGNED and WEIGHT_SIGNED; IN_WORDS and WEIGHT_WORDS, whether the four lie in a word of memory; KERNEL_Y,
// KERNEL_X, STRIDE_Y and so on; HEIGHT and WIDTH of the input; IN_AT, OUT_AT and WEIGHT_AT (places).

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

// Which channel and which element of the window a term is.
#define FIND_TERM(term) const u32 c = (term) % GROUP_IN, tap = (term) / GROUP_IN, k_x = tap % KERNEL_X, k_y = tap / KERNEL_X;

// The terms of a word that lie at one place of the input; outside of it, the number that stands for 0. What is behind
// the last term is anything: its weight is 0.
__device__ __forceinline__ u32 terms_of_input(const IN* __restrict__ in, u32 first, u32 place, u32 group, int zero) {
    const u32 n = place / (OUT_WIDTH * OUT_HEIGHT), top = place / OUT_WIDTH % OUT_HEIGHT * STRIDE_Y, left = place % OUT_WIDTH * STRIDE_X;
    u32 word = 0;
#pragma unroll
    for (u32 p = 0; p < (IN_WORDS ? 1 : TERMS_OF_A_WORD); p++) {
        FIND_TERM(first + p)
        const int y = (int)(top + k_y * DILATION_Y) - PAD_Y, x = (int)(left + k_x * DILATION_X) - PAD_X;
        const bool inside = first + p < TERMS && place < PLACES && (u32)y < HEIGHT && (u32)x < WIDTH;
#if TERMS_OF_A_WORD == 1
        word = inside ? (u32)((int)in[IN_AT(n, group * GROUP_IN + c, y, x)] - zero) : 0;
#elif IN_WORDS
        word = inside ? *(const u32*)(in + IN_AT(n, group * GROUP_IN + c, y, x)) : (u32)(u8)zero * 0x01010101u;
#else
        word |= (u32)(inside ? (u8)in[IN_AT(n, group * GROUP_IN + c, y, x)] : (u8)zero) << 8 * p;
#endif
    }
    return word;
}

__device__ __forceinline__ u32 terms_of_weight(const WEIGHT* __restrict__ weight, u32 first, u32 channel, u32 group) {
    u32 word = 0;
#pragma unroll
    for (u32 p = 0; p < (WEIGHT_WORDS ? 1 : TERMS_OF_A_WORD); p++) {
        FIND_TERM(first + p)
        if (first + p >= TERMS || channel >= GROUP_OUT) continue;
#if TERMS_OF_A_WORD == 1
        word = (u32)(int)weight[WEIGHT_AT(group * GROUP_OUT + channel, c, k_y, k_x)];
#elif WEIGHT_WORDS
        word = *(const u32*)(weight + WEIGHT_AT(group * GROUP_OUT + channel, c, k_y, k_x));
#else
        word |= (u32)(u8)weight[WEIGHT_AT(group * GROUP_OUT + channel, c, k_y, k_x)] << 8 * p;
#endif
    }
    return word;
}

// Which places and channels a block has.
#define FIND_TILE const u32 group = blockIdx.x / (DOWN * ACROSS), first_place = blockIdx.x % DOWN * TILE, first_channel = blockIdx.x / DOWN % ACROSS * TILE;

// Writes a sum. Of bytes the zero point isn't subtracted from each term, but here from all of them.
__device__ __forceinline__ void put_sum(int* __restrict__ out, u32 place, u32 channel, u32 group, int sum, int zero, int weights) {
    if (place >= PLACES || channel >= GROUP_OUT) return;
    const u32 x = place % OUT_WIDTH, y = place / OUT_WIDTH % OUT_HEIGHT, n = place / (OUT_WIDTH * OUT_HEIGHT);
    out[OUT_AT(n, group * GROUP_OUT + channel, y, x)] = (int)((u32)sum - (u32)zero * (u32)weights);
}

#if TENSOR_CORES
// Words of a row are four banks further than those of the row before: eight rows are read at once.
#define WIDE (DEPTH + 4)

extern "C" __global__ void __launch_bounds__(THREADS) step(PARAMETERS) {
    __shared__ u32 a[TILE][WIDE], b[TILE][WIDE];
    __shared__ int weights[4][TILE];
    after_the_kernel_before();
    const int zero = ZERO;
    FIND_TILE
    const u32 depth = threadIdx.x % DEPTH, line = threadIdx.x / DEPTH;
    const u32 in_warp = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + in_warp / 4, column = threadIdx.x / 128 * 32;
    int sum[4][4], weights_here = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[j][e] = 0;
    for (u32 begin = 0; begin < TERMS; begin += DEPTH * TERMS_OF_A_WORD) {
        const u32 first = begin + depth * TERMS_OF_A_WORD;
#pragma unroll
        for (u32 i = 0; i < TILE; i += 16) {
            a[line + i][depth] = terms_of_input(in, first, first_place + line + i, group, zero);
            b[line + i][depth] = terms_of_weight(weight, first, first_channel + line + i, group);
        }
        __syncthreads();
#pragma unroll
        for (u32 eight = 0; eight < DEPTH; eight += 8) {
            const u32 k = eight + in_warp % 4;
            const u32 left[4] = {a[row][k], a[row + 8][k], a[row][k + 4], a[row + 8][k + 4]};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32* right = b[column + j * 8 + in_warp / 4];
                multiply_bytes<IN_SIGNED, WEIGHT_SIGNED>(sum[j], left, right[k], right[k + 4]);
            }
        }
#if HAS_ZERO
#pragma unroll
        for (u32 k = threadIdx.x / TILE * 4, end = k + 4; k < end; k++) weights_here = four_products<false, WEIGHT_SIGNED>(0x01010101u, b[threadIdx.x % TILE][k], weights_here);
#endif
        __syncthreads();
    }
    weights[threadIdx.x / TILE][threadIdx.x % TILE] = weights_here;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const u32 at = column + j * 8 + in_warp % 4 * 2 + e % 2;
            put_sum(out, first_place + row + e / 2 * 8, first_channel + at, group, sum[j][e], zero, weights[0][at] + weights[1][at] + weights[2][at] + weights[3][at]);
        }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) step(PARAMETERS) {
    __shared__ u32 a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    after_the_kernel_before();
    const int zero = ZERO;
    FIND_TILE
    const u32 depth = threadIdx.x % DEPTH, line = threadIdx.x / DEPTH;
    int sum[4][4], weights[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        weights[j] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i][j] = 0;
    }
    for (u32 begin = 0; begin < TERMS; begin += DEPTH * TERMS_OF_A_WORD) {
        const u32 first = begin + depth * TERMS_OF_A_WORD;
#pragma unroll
        for (u32 i = 0; i < TILE; i += 16) {
            a[depth][line + i] = terms_of_input(in, first, first_place + line + i, group, zero);
            b[depth][line + i] = terms_of_weight(weight, first, first_channel + line + i, group);
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < DEPTH; k++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 w = b[k][depth + j * 16];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const u32 x = a[k][line + i * 16];
#if TERMS_OF_A_WORD == 4
                    sum[i][j] = four_products<IN_SIGNED, WEIGHT_SIGNED>(x, w, sum[i][j]);
#else
                    sum[i][j] = (int)((u32)sum[i][j] + x * w);
#endif
                }
#if TERMS_OF_A_WORD == 4 && HAS_ZERO
                weights[j] = four_products<false, WEIGHT_SIGNED>(0x01010101u, w, weights[j]);
#endif
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            put_sum(out, first_place + line + i * 16, first_channel + depth + j * 16, group, sum[i][j], zero, weights[j]);
}
#endif
