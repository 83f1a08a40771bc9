// Convolutions and products of integers, with sums in 32 bits. A block has 64 places of the output and 64 output channels
// of one group; a thread has four of each, 16 apart. Sixteen words of terms at a time are brought into shared memory: of
// bytes, a word has four terms, which are multiplied at once.
//
// Given: THREADS of a block (256); PLACES of the output in all, OUT_HEIGHT and OUT_WIDTH of an image; GROUP_OUT and
// GROUP_IN, channels of a group, ACROSS blocks for them; IN and WEIGHT (element types), HAS_ZERO; TERMS_OF_A_WORD (4 or
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

extern "C" __global__ void __launch_bounds__(THREADS) step(PARAMETERS) {
    __shared__ u32 a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    after_the_kernel_before();
    const int zero = ZERO;
    const u32 group = blockIdx.y / ACROSS, first_place = blockIdx.x * TILE, first_channel = blockIdx.y % ACROSS * TILE;
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
        for (int j = 0; j < 4; j++) {
            const u32 place = first_place + line + i * 16, channel = first_channel + depth + j * 16;
            if (place >= PLACES || channel >= GROUP_OUT) continue;
            const u32 x = place % OUT_WIDTH, y = place / OUT_WIDTH % OUT_HEIGHT, n = place / (OUT_WIDTH * OUT_HEIGHT);
            // Of bytes the zero point isn't subtracted from each term, but here from all of them.
            out[OUT_AT(n, group * GROUP_OUT + channel, y, x)] = (int)((u32)sum[i][j] - (u32)zero * (u32)weights[j]);
        }
}
