// gemm_naive: one thread per output, any size, stride, dtype and layout. The fallback: slow, simple, correct.
#pragma once
#include "epilogue.cuh"
#include "tile.cuh"

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ float multiply_add(f16 a, f16 b, float c) { return fmaf(to_float(a), to_float(b), c); }
__device__ __forceinline__ float multiply_add(bf16 a, bf16 b, float c) { return fmaf(to_float(a), to_float(b), c); }
__device__ __forceinline__ int multiply_add(s8 a, s8 b, int c) { return a * b + c; }

template <class T, class Acc, int TILE_M, int TILE_N>
__device__ __forceinline__ void gemm_naive(const GemmParams& p) {
    TileIndex tile = tile_index(p, TILE_M, TILE_N);
    int i = tile.m * TILE_M + threadIdx.x / TILE_N, j = tile.n * TILE_N + threadIdx.x % TILE_N;
    if (i >= p.m || j >= p.n) return;
    for (int batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
        const T* a = (const T*)p.a + batch * p.a_batch + i * p.a_row;
        const T* b = (const T*)p.b + batch * p.b_batch + j * p.b_col;
        Acc acc[1] = {0};
        for (int q = 0; q < p.k; q++) acc[0] = multiply_add(load_global<T>(a + q * p.a_col), load_global<T>(b + q * p.b_row), acc[0]);
        finish(RowChunk(p, batch, i, j), acc, 1, false);
    }
}
