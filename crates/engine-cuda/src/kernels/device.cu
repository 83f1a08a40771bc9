// What only a device can do, in its own instructions. All else is C++: on_cpu.h says the same for a CPU, where kernels are tested.
// No headers: NVRTC's own folder of them may not be there.
typedef unsigned short half_bits;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned char u8;

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
// A group of copies ends here; and all groups but the last few have arrived.
__device__ __forceinline__ void copies_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int FEW> __device__ __forceinline__ void copies_done_but() { asm volatile("cp.async.wait_group %0;" ::"n"(FEW) : "memory"); }
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
// The same of matrices that are turned.
__device__ __forceinline__ void matrices_turned(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
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

// Four bytes of each, multiplied and added; either may have signs.
template <bool A_SIGNED, bool B_SIGNED> __device__ __forceinline__ int four_products(u32 a, u32 b, int c) {
    int d;
    if constexpr (A_SIGNED && B_SIGNED) asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else if constexpr (A_SIGNED) asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else if constexpr (B_SIGNED) asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// On tensor cores: 16 x 32 bytes and 32 x 8 bytes, with sums in 32 bits.
#define MULTIPLY_BYTES(A, B) \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." A "." B ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <bool A_SIGNED, bool B_SIGNED> __device__ __forceinline__ void multiply_bytes(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (A_SIGNED && B_SIGNED) MULTIPLY_BYTES("s8", "s8");
    else if constexpr (A_SIGNED) MULTIPLY_BYTES("s8", "u8");
    else if constexpr (B_SIGNED) MULTIPLY_BYTES("u8", "s8");
    else MULTIPLY_BYTES("u8", "u8");
}

// Blocks of a cluster: what lies at this address in another one's shared memory, and a barrier for all of them.
__device__ __forceinline__ float4 from_peer(u32 address, u32 rank) {
    float4 x;
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(there) : "memory");
    return x;
}
__device__ __forceinline__ void meet_peers() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
