// Every access to the hardware that the templates make: types, conversions, memory, barriers and tensor-core instructions.
// A kernel template contains no PTX of its own. NVRTC compiles this file without any CUDA header.
#pragma once

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
struct tf32 { float value; };
typedef signed char s8;

#ifdef TILERY_HOST
#include <host/wrappers.h>  // in <>, as it is no part of what a GPU's image is made from
#else

// ---- conversions (round to nearest even) ---------------------------------------------------------------------------------------

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

__device__ __forceinline__ f16 to_f16(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

__device__ __forceinline__ bf16 to_bf16(float x) {
    bf16 y;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    unsigned u = __float_as_uint(x);
    y.bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
#endif
    return y;
}

// ---- memory --------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ char* shared_memory() {
    extern __shared__ __align__(128) char shared_bytes[];
    return shared_bytes;
}

template <class T>
__device__ __forceinline__ T load_shared(const void* p) { return *(const T*)p; }
template <class T>
__device__ __forceinline__ void store_shared(void* p, T value) { *(T*)p = value; }
template <class T>
__device__ __forceinline__ T load_global(const void* p) { return *(const T*)p; }
template <class T>
__device__ __forceinline__ void store_global(void* p, T value) { *(T*)p = value; }

// The aligned word at p, of which the bytes from `from` to `to` are wanted.
__device__ __forceinline__ unsigned load_global_word(const char* p, const char* from, const char* to) { return load_global<unsigned>(p); }

// cp.async (PTX ISA, "Data Movement: cp.async"): 16 bytes, or zeros, to shared memory. They are there only after the group's wait and a
// barrier.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool inside) {
    asm volatile("{.reg .pred outside; setp.eq.u32 outside, %2, 0; cp.async.cg.shared.global.L2::128B [%0], [%1], 16, outside;}\n"
                 ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global), "r"((unsigned)inside) : "memory");
}
__device__ __forceinline__ void copy_async_4(void* shared, const void* global, bool inside) {
    asm volatile("{.reg .pred outside; setp.eq.u32 outside, %2, 0; cp.async.ca.shared.global [%0], [%1], 4, outside;}\n"
                 ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global), "r"((unsigned)inside) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory"); }

// ---- tensor cores --------------------------------------------------------------------------------------------------------------

// Four 8 x 16-byte matrices; lane l gives the address of row l % 8 of matrix l / 8 (PTX ISA, "ldmatrix").
__device__ __forceinline__ void load_matrix_x4(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}
__device__ __forceinline__ void load_matrix_x4_trans(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}

// d += a @ b on fragments of 16 x 32 bytes by 8 x 32 bytes (PTX ISA, "mma.sync.aligned", m16n8k16, k8 for tf32, k32 for s8).
__device__ __forceinline__ void mma(f16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(bf16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(tf32, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(s8, int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// An f32 operand as the tensor core wants it: the unit truncates, so round to nearest first (ties away, as cvt.rna does).
__device__ __forceinline__ unsigned round_operand(tf32, unsigned bits) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(__uint_as_float(bits)));
    return r;
}

#endif  // TILERY_HOST

template <class T>
__device__ __forceinline__ unsigned round_operand(T, unsigned bits) { return bits; }

// ---- on top of these -----------------------------------------------------------------------------------------------------------

// 16 bytes at a 16-byte aligned p, or zeros.
__device__ __forceinline__ uint4 load_global_16(const void* p, bool inside) {
    return inside ? load_global<uint4>(p) : make_uint4(0, 0, 0, 0);
}

// The first `bytes` (0 to 16) of the 16 bytes at any p that is aligned to an element of SIZE bytes, in two parts, so that the wait for
// memory falls between them. `load_words` reads the aligned words that hold at least one wanted byte: it never leaves the 4-byte granule
// of a valid element. `shift_words` moves the bytes into place and puts zeros behind them.
template <int SIZE>
struct Words { unsigned w[SIZE == 4 ? 4 : 5]; };

template <int SIZE>
__device__ __forceinline__ int word_offset(const void* p) { return SIZE == 4 ? 0 : (int)((unsigned long long)p & 3u); }

template <int SIZE>
__device__ __forceinline__ void load_words(Words<SIZE>& words, const void* p, int bytes) {
    int offset = word_offset<SIZE>(p), end = bytes > 0 ? offset + bytes : 0;
    const char *from = (const char*)p, *base = from - offset;
#pragma unroll
    for (int i = 0; i < (SIZE == 4 ? 4 : 5); i++) words.w[i] = 4 * i < end ? load_global_word(base + 4 * i, from, base + end) : 0u;
}

template <int SIZE>
__device__ __forceinline__ uint4 shift_words(const Words<SIZE>& words, const void* p, int bytes) {
    if constexpr (SIZE == 4) {
        return make_uint4(words.w[0], words.w[1], words.w[2], words.w[3]);
    } else {
        unsigned v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = __funnelshift_r(words.w[i], words.w[i + 1], 8 * word_offset<SIZE>(p));
        if (bytes < 16) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int valid = bytes - 4 * i;
                if (valid < 4) v[i] &= valid > 0 ? (1u << (8 * valid)) - 1u : 0u;
            }
        }
        return make_uint4(v[0], v[1], v[2], v[3]);
    }
}

// Four words that hold 4 x 4 bytes, transposed.
__device__ __forceinline__ void transpose_bytes(unsigned (&w)[4]) {
    unsigned lo01 = __byte_perm(w[0], w[1], 0x5140), hi01 = __byte_perm(w[0], w[1], 0x7362);
    unsigned lo23 = __byte_perm(w[2], w[3], 0x5140), hi23 = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(lo01, lo23, 0x5410);
    w[1] = __byte_perm(lo01, lo23, 0x7632);
    w[2] = __byte_perm(hi01, hi23, 0x5410);
    w[3] = __byte_perm(hi01, hi23, 0x7632);
}
