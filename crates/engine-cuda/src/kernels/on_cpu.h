// What CUDA and device.cu give to kernels, on a CPU: for tests of the sources as they are.
//
// Every thread of a block is a fiber of its own, and so are those of the other blocks of a cluster. One runs until it ends or comes to a barrier. What a warp does
// together (matrices, products, exchanges) begins and ends with a barrier of the warp. Copies into shared memory arrive at once.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

typedef unsigned short half_bits;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned char u8;
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define __CUDA_ARCH__ 900
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(threads)
#define __align__(bytes)
// One block runs at a time, but in clusters, whose kernels have no such arrays.
#define __shared__ static

struct Place { u32 x, y, z; };
enum Wait { RUNS, BLOCK, WARP, CLUSTER };
struct Warp { u32 a[32][4], b0[32], b1[32], from[32]; float number[32]; };
struct Block { Place place; char* shared; std::vector<Warp> warps; };
struct Fiber { ucontext_t context; Place place; Block* block; Wait wait; bool ended; };

static Fiber* here;
static ucontext_t scheduler;
static std::vector<Block> cluster;
static size_t shared_bytes;
#define threadIdx (here->place)
#define blockIdx (here->block->place)
#define on_cpu_shared (here->block->shared)

static void fail(const char* why) {
    fprintf(stderr, "a kernel on the CPU: %s\n", why);
    abort();
}
static void wait_for(Wait wait) {
    here->wait = wait;
    Fiber* own = here;
    swapcontext(&own->context, &scheduler);
}
static void __syncthreads() { wait_for(BLOCK); }
static void __syncwarp() { wait_for(WARP); }
static void meet_peers() { wait_for(CLUSTER); }
static int lane() { return (int)(threadIdx.x % 32); }
static Warp& warp() { return here->block->warps[threadIdx.x / 32]; }

// ---- numbers ----

static inline u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static inline float __uint_as_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }
static inline float __int_as_float(int x) { return __uint_as_float((u32)x); }
static inline float from_half(half_bits x) { _Float16 y; memcpy(&y, &x, 2); return (float)y; }
static inline half_bits to_half(float x) { _Float16 y = (_Float16)x; half_bits bits; memcpy(&bits, &y, 2); return bits; }
static inline u32 two_halves(float low, float high) { return to_half(low) | ((u32)to_half(high) << 16); }
static inline u32 rounded(u32 x) { return (x + 0x1000) & 0xffffe000u; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <bool A_SIGNED, bool B_SIGNED> static inline int four_products(u32 a, u32 b, int c) {
    for (int i = 0; i < 32; i += 8) {
        const int x = A_SIGNED ? (int)(signed char)(a >> i) : (int)(u8)(a >> i), y = B_SIGNED ? (int)(signed char)(b >> i) : (int)(u8)(b >> i);
        c = (int)((u32)c + (u32)(x * y));
    }
    return c;
}
// A function of the C library has the name.
#define __expf expf
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

// ---- memory and what a warp does together ----

static void after_the_kernel_before() {}
static u32 shared_address(const void* p) { return (u32)((const char*)p - on_cpu_shared); }
static char* in_shared(u32 address, u32 bytes) {
    if (address % bytes || address + bytes > shared_bytes) fail("an address that isn't in shared memory, or isn't aligned");
    return on_cpu_shared + address;
}
static void copy_async(u32 to, const void* from, bool valid) {
    if (valid && (uintptr_t)from % 16) fail("16 bytes are copied from where they aren't aligned");
    if (valid) memcpy(in_shared(to, 16), from, 16);
    else memset(in_shared(to, 16), 0, 16);
}
static void copies_begun() {}
template <int FEW> static void copies_done_but() {}
static float4 from_peer(u32 address, u32 rank) {
    float4 x;
    in_shared(address, 16);
    memcpy(&x, cluster[rank].shared + address, 16);
    return x;
}
static float __shfl_xor_sync(u32, float x, int mask) {
    warp().number[lane()] = x;
    __syncwarp();
    float y = warp().number[lane() ^ mask];
    __syncwarp();
    return y;
}
static void load_matrices(u32 (&r)[4], u32 from) {
    warp().from[lane()] = from;
    __syncwarp();
    for (int i = 0; i < 4; i++) memcpy(&r[i], in_shared(warp().from[i * 8 + lane() / 4], 16) + lane() % 4 * 4, 4);
    __syncwarp();
}
static void matrices_turned(u32 (&r)[4], u32 from) {
    warp().from[lane()] = from;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        half_bits two[2];
        for (int e = 0; e < 2; e++) memcpy(&two[e], in_shared(warp().from[i * 8 + lane() % 4 * 2 + e], 16) + lane() / 4 * 2, 2);
        r[i] = two[0] | ((u32)two[1] << 16);
    }
    __syncwarp();
}
// A product of 16 x DEPTH and DEPTH x 8, whose elements are where PTX's tables of fragments say.
template <int DEPTH, class A, class B> static void multiply_together(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, A left, B right) {
    memcpy(warp().a[lane()], a, 16);
    warp().b0[lane()] = b0;
    warp().b1[lane()] = b1;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
        for (int k = 0; k < DEPTH; k++) c[i] += left(row, k) * right(k, column);
    }
    __syncwarp();
}
static void multiply_halves(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Warp& w = warp();
    auto half = [](u32 two, int which) { return from_half((half_bits)(two >> (16 * which))); };
    auto left = [&](int row, int k) { return half(w.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2); };
    auto right = [&](int k, int column) { return half((k / 8 ? w.b1 : w.b0)[column * 4 + k % 8 / 2], k % 2); };
    multiply_together<16>(c, a, b0, b1, left, right);
}
static void multiply_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Warp& w = warp();
    auto cut = [](u32 x) { return __uint_as_float(x & 0xffffe000u); };
    auto left = [&](int row, int k) { return cut(w.a[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]); };
    auto right = [&](int k, int column) { return cut((k / 4 ? w.b1 : w.b0)[column * 4 + k % 4]); };
    multiply_together<8>(c, a, b0, b1, left, right);
}

template <bool A_SIGNED, bool B_SIGNED> static void multiply_bytes(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    memcpy(warp().a[lane()], a, 16);
    warp().b0[lane()] = b0;
    warp().b1[lane()] = b1;
    __syncwarp();
    Warp& w = warp();
    for (int i = 0; i < 4; i++) {
        int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
        // Four of the 32 terms are in a word.
        for (int k = 0; k < 8; k++) c[i] = four_products<A_SIGNED, B_SIGNED>(w.a[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2], (k / 4 ? w.b1 : w.b0)[column * 4 + k % 4], c[i]);
    }
    __syncwarp();
}

// ---- launching ----

template <class... A, size_t... I> static void apply(void (*kernel)(A...), void** parameters, std::index_sequence<I...>) {
    kernel(*(std::remove_reference_t<A>*)parameters[I]...);
}
template <class... A> static void call(void (*kernel)(A...), void** parameters) { apply(kernel, parameters, std::index_sequence_for<A...>()); }

static void (*kernel_now)(void**);
static void** parameters_now;
static void begin_fiber() {
    kernel_now(parameters_now);
    here->ended = true;
    swapcontext(&here->context, &scheduler);
}
// Whether all of some fibers that still run wait for the same; then they go on.
static bool release(Fiber* from, Fiber* to, Wait wait) {
    bool any = false;
    for (Fiber* fiber = from; fiber != to; fiber++) {
        if (!fiber->ended && fiber->wait != wait) return false;
        any |= !fiber->ended;
    }
    for (Fiber* fiber = from; fiber != to; fiber++) fiber->wait = RUNS;
    return any;
}

extern "C" void launch(void (*kernel)(void**), const u32* grid, u32 block, u32 blocks_in_cluster, size_t bytes, void** parameters) {
    const size_t STACK = 256 << 10;
    static std::vector<std::unique_ptr<char[]>> stacks;
    kernel_now = kernel;
    parameters_now = parameters;
    shared_bytes = bytes;
    std::vector<char*> shared(blocks_in_cluster);
    for (char*& part : shared) part = (char*)aligned_alloc(1024, (bytes + 1023) / 1024 * 1024 + 1024);
    std::vector<Fiber> fibers(block * blocks_in_cluster);
    while (stacks.size() < fibers.size()) stacks.emplace_back(new char[STACK]);
    for (u32 z = 0; z < grid[2]; z += blocks_in_cluster)
        for (u32 y = 0; y < grid[1]; y++)
            for (u32 x = 0; x < grid[0]; x++) {
                cluster.assign(blocks_in_cluster, Block());
                for (u32 peer = 0; peer < blocks_in_cluster; peer++) {
                    memset(shared[peer], 0xff, bytes);
                    cluster[peer].place = {x, y, z + peer};
                    cluster[peer].shared = shared[peer];
                    cluster[peer].warps.resize((block + 31) / 32);
                }
                for (size_t i = 0; i < fibers.size(); i++) {
                    Fiber& fiber = fibers[i];
                    fiber.place = {(u32)i % block, 0, 0};
                    fiber.block = &cluster[i / block];
                    fiber.wait = RUNS;
                    fiber.ended = false;
                    getcontext(&fiber.context);
                    fiber.context.uc_stack.ss_sp = stacks[i].get();
                    fiber.context.uc_stack.ss_size = STACK;
                    fiber.context.uc_link = nullptr;
                    makecontext(&fiber.context, begin_fiber, 0);
                }
                for (;;) {
                    bool ran = false;
                    for (Fiber& fiber : fibers) {
                        if (fiber.ended || fiber.wait != RUNS) continue;
                        ran = true;
                        here = &fiber;
                        swapcontext(&scheduler, &fiber.context);
                    }
                    Fiber* all = fibers.data();
                    for (u32 i = 0; i < fibers.size(); i += 32) {
                        u32 end = std::min<u32>(i + 32, (i / block + 1) * block);
                        ran |= release(all + i, all + end, WARP);
                    }
                    for (u32 i = 0; i < fibers.size(); i += block) ran |= release(all + i, all + i + block, BLOCK);
                    ran |= release(all, all + fibers.size(), CLUSTER);
                    if (std::all_of(fibers.begin(), fibers.end(), [](const Fiber& fiber) { return fiber.ended; })) break;
                    if (!ran) fail("threads wait for one another for ever");
                }
            }
    for (char* part : shared) free(part);
}
