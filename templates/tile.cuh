// Which output tile a block computes, and how tiles of A and B come in from global memory.
#pragma once
#include "device.cuh"
#include "gemm_params.h"

struct TileIndex { int m, n; };

// Blocks run in groups of 8 tile rows, column by column, so that blocks that run at the same time share rows and columns in L2.
__device__ __forceinline__ TileIndex tile_index(const GemmParams& p, int tile_m, int tile_n) {
    const int group = 8;
    int tiles_m = (p.m - 1) / tile_m + 1, tiles_n = (p.n - 1) / tile_n + 1;
    int first = blockIdx.x / (group * tiles_n) * group, in_group = blockIdx.x % (group * tiles_n);
    int rows = min(group, tiles_m - first);
    return {first + in_group % rows, in_group / rows};
}

// The part of one operand's tile that this thread moves: COUNT chunks of 16 bytes, in rows that are contiguous in memory.
// K_MAJOR: a row is one m (or n) and runs along k; otherwise a row is one k and runs along m (or n).
// Where rows are 16-byte aligned they are also whole chunks (the requirement `align` says both), and a chunk is inside or outside.
template <class T, bool K_MAJOR, int TILE_MN, int TILE_K, int THREADS, int ALIGNMENT>
struct TileLoader {
    static constexpr bool WHOLE = ALIGNMENT == 16;
    static constexpr int SIZE = sizeof(T), ROW = (K_MAJOR ? TILE_K : TILE_MN) * SIZE / 16;  // chunks of a row
    static constexpr int ROWS = K_MAJOR ? TILE_MN : TILE_K, STEP = THREADS / ROW, COUNT = ROWS / STEP;
    static_assert(THREADS % ROW == 0 && ROWS % STEP == 0, "every thread moves whole chunks of one column");

    const char* next;       // this thread's first chunk in the next k-tile
    long long row_bytes;    // from one row to the next
    int mn_left, k_left;    // elements of the operand from the tile's origin on

    __device__ __forceinline__ TileLoader(const void* base, long long stride, int mn0, int mn, int k) {
        row_bytes = stride * SIZE;
        mn_left = mn - mn0;
        k_left = k;
        long long origin = K_MAJOR ? mn0 * row_bytes : (long long)mn0 * SIZE;
        next = (const char*)base + origin + row(0) * row_bytes + column() * 16;
    }
    static __device__ __forceinline__ int column() { return threadIdx.x % ROW; }
    static __device__ __forceinline__ int row(int i) { return threadIdx.x / ROW + i * STEP; }
    __device__ __forceinline__ const char* chunk(int i) const { return next + i * STEP * row_bytes; }
    // Elements of the operand from this thread's column on, and rows from the tile's first on.
    __device__ __forceinline__ int along() const { return (K_MAJOR ? k_left : mn_left) - column() * (16 / SIZE); }
    __device__ __forceinline__ int across() const { return K_MAJOR ? mn_left : k_left; }
    __device__ __forceinline__ bool inside(int i) const { return row(i) < across() && along() > 0; }
    // Bytes of chunk i that lie inside, where a row may end within a chunk.
    __device__ __forceinline__ int valid(int i) const { return row(i) < across() ? min(16, max(0, along()) * SIZE) : 0; }

    // A tile on its way through registers: `fetch` starts the loads, `chunk_value` waits for them. A tile that lies inside as a whole,
    // as most do, takes a branch without a single bound check.
    struct Fetched { Words<WHOLE ? 4 : SIZE> words[COUNT]; };
    __device__ __forceinline__ bool all_inside() const { return mn_left >= TILE_MN && k_left >= TILE_K; }
    __device__ __forceinline__ void fetch(Fetched& to) const {
        if (all_inside()) fetch_chunks<true>(to);
        else fetch_chunks<false>(to);
    }
    template <bool ALL_INSIDE>
    __device__ __forceinline__ void fetch_chunks(Fetched& to) const {
        const char* at = next;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if constexpr (WHOLE) {
                uint4 v = load_global_16(at, ALL_INSIDE || inside(i));
                to.words[i] = {{v.x, v.y, v.z, v.w}};
            } else {
                load_words<SIZE>(to.words[i], at, ALL_INSIDE ? 16 : valid(i));
            }
            at += STEP * row_bytes;
        }
    }
    __device__ __forceinline__ uint4 chunk_value(const Fetched& from, int i) const {
        return shift_words(from.words[i], chunk(i), valid(i));
    }
    __device__ __forceinline__ void advance() {
        next += K_MAJOR ? TILE_K * SIZE : TILE_K * row_bytes;
        k_left -= TILE_K;
    }
};
