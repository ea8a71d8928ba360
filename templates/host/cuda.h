// The host device: the words of CUDA C++ for a kernel source that a C++17 compiler reads (-x c++ -DTILERY_HOST). Each block runs on one
// CPU thread, its threads as fibers that switch at barriers and at what a warp does together. run.cpp has the scheduler, wrappers.h the
// counterparts of the wrappers in device.cuh.
//
// TILERY_HOST_CHECK also watches every access that the wrappers make: races, reads of what nobody wrote, bounds, alignment.
#pragma once
#include <math.h>
#include <string.h>

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static thread_local  // one block at a time runs on a CPU thread; neither poisoned nor watched

struct uint2 { alignas(8) unsigned x; unsigned y; };
struct uint3 { unsigned x, y, z; };
struct uint4 { alignas(16) unsigned x; unsigned y, z, w; };
struct int2 { alignas(8) int x; int y; };
struct int4 { alignas(16) int x; int y, z, w; };
struct float2 { alignas(8) float x; float y; };
struct float4 { alignas(16) float x; float y, z, w; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

namespace host {

// The line of a template that made an access: the last parameter of every wrapper, filled in by the compiler.
struct Where {
    const char* file;
    int line;
};
#define TILERY_WHERE host::Where where = {__builtin_FILE(), __builtin_LINE()}

enum class Access { READ, WRITE, UPDATE };  // UPDATE: an atomic one, which many threads may make

struct Block {
    uint3 index;
    dim3 threads, grid;
    char* shared;  // dynamic shared memory
};

struct Thread {
    uint3 index;
    int lane;
    Block* block;
};

extern __thread Thread* current;  // the one that runs on this CPU thread

// __syncthreads.
void synchronize(Where where);
// Where the lanes of `mask` meet. The last to arrive calls execute(lanes): lane to its arguments, null for one that takes no part.
void meet(const char* op, unsigned mask, void* arguments, void (*execute)(void* const* lanes), Where where);

void copy_async(void* shared, const void* global, int bytes, bool inside, Where where);
void copy_async_commit();
void copy_async_wait(int pending);

// Ends the launch with an error that names kernel, block and thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

#ifdef TILERY_HOST_CHECK
void check_shared(const void* p, int bytes, Access access, Where where);
void check_global(const void* p, int bytes, Access access, Where where);
#else
inline void check_shared(const void*, int, Access, Where) {}
inline void check_global(const void*, int, Access, Where) {}
#endif

}  // namespace host

#define threadIdx (host::current->index)
#define blockIdx (host::current->block->index)
#define blockDim (host::current->block->threads)
#define gridDim (host::current->block->grid)

// ---- vectors, bits, minima -----------------------------------------------------------------------------------------------------

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (shift & 31u));
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) << (shift & 31u) >> 32);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned s = selector >> (4 * i), byte = (unsigned)(bytes >> (8 * (s & 7u))) & 0xffu;
        r |= (s & 8u ? (byte & 0x80u ? 0xffu : 0u) : byte) << (8 * i);
    }
    return r;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

// ---- barriers, votes, shuffles -------------------------------------------------------------------------------------------------

inline void __syncthreads(TILERY_WHERE) { host::synchronize(where); }
inline void __syncwarp(unsigned mask = 0xffffffffu, TILERY_WHERE) { host::meet("__syncwarp", mask, nullptr, nullptr, where); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}

namespace host {

struct Vote {
    bool yes;
    unsigned ballot;
};

inline void count_votes(void* const* lanes) {
    unsigned ballot = 0;
    for (int i = 0; i < 32; i++)
        if (lanes[i] && ((Vote*)lanes[i])->yes) ballot |= 1u << i;
    for (int i = 0; i < 32; i++)
        if (lanes[i]) ((Vote*)lanes[i])->ballot = ballot;
}

inline unsigned vote(const char* op, unsigned mask, bool yes, Where where) {
    Vote mine = {yes, 0};
    meet(op, mask, &mine, count_votes, where);
    return mine.ballot;
}

struct Shuffle {
    unsigned long long value, result;
    int source;
    Where where;
};

inline void exchange(void* const* lanes) {
    for (int i = 0; i < 32; i++) {
        if (!lanes[i]) continue;
        Shuffle& to = *(Shuffle*)lanes[i];
        if (!lanes[to.source]) fail("lane %d shuffles from lane %d, which takes no part (line %d)", i, to.source, to.where.line);
        to.result = ((Shuffle*)lanes[to.source])->value;
    }
}

template <class T>
T shuffle(const char* op, unsigned mask, T value, int source, Where where) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    Shuffle mine = {0, 0, source, where};
    memcpy(&mine.value, &value, sizeof(T));
    meet(op, mask, &mine, exchange, where);
    memcpy(&value, &mine.result, sizeof(T));
    return value;
}

}  // namespace host

inline unsigned __ballot_sync(unsigned mask, int yes, TILERY_WHERE) { return host::vote("__ballot_sync", mask, yes, where); }
inline int __any_sync(unsigned mask, int yes, TILERY_WHERE) { return host::vote("__any_sync", mask, yes, where) != 0; }
inline int __all_sync(unsigned mask, int yes, TILERY_WHERE) { return host::vote("__all_sync", mask, !yes, where) == 0; }

// A lane beyond its segment of `width` lanes gives the caller its own value back.
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, TILERY_WHERE) {
    int lane = host::current->lane;
    return host::shuffle("__shfl_sync", mask, value, (lane & -width) + (from & (width - 1)), where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, TILERY_WHERE) {
    int lane = host::current->lane, from = lane - (int)delta;
    return host::shuffle("__shfl_up_sync", mask, value, from < (lane & -width) ? lane : from, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, TILERY_WHERE) {
    int lane = host::current->lane, from = lane + (int)delta;
    return host::shuffle("__shfl_down_sync", mask, value, from > (lane | (width - 1)) ? lane : from, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, TILERY_WHERE) {
    int lane = host::current->lane, from = lane ^ bits;
    return host::shuffle("__shfl_xor_sync", mask, value, from > (lane | (width - 1)) ? lane : from, where);
}

// ---- atomics on global memory (blocks run in parallel) -------------------------------------------------------------------------

namespace host {

template <class T, class Change>
T update(T* p, Change change, Where where) {
    check_global(p, sizeof(T), Access::UPDATE, where);
    T before, after;
    __atomic_load(p, &before, __ATOMIC_RELAXED);
    do after = change(before);
    while (!__atomic_compare_exchange(p, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}

template <class T>
struct Same { using Type = T; };

}  // namespace host

#define TILERY_ATOMIC(name, expression)                                                                  \
    template <class T>                                                                                   \
    T name(T* p, typename host::Same<T>::Type value, TILERY_WHERE) {                                     \
        return host::update(p, [value](T before) -> T { return expression; }, where);                    \
    }
TILERY_ATOMIC(atomicAdd, before + value)
TILERY_ATOMIC(atomicMin, value < before ? value : before)
TILERY_ATOMIC(atomicMax, value > before ? value : before)
TILERY_ATOMIC(atomicAnd, before & value)
TILERY_ATOMIC(atomicOr, before | value)
TILERY_ATOMIC(atomicExch, (before, value))
#undef TILERY_ATOMIC
template <class T>
T atomicCAS(T* p, typename host::Same<T>::Type expected, typename host::Same<T>::Type value, TILERY_WHERE) {
    return host::update(p, [=](T before) { return before == expected ? value : before; }, where);
}
