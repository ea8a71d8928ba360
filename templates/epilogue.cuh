// From accumulators to D: alpha, beta * C, bias, activation, rounding to the output dtype, for every stride of C and D.
#pragma once
#include "device.cuh"
#include "gemm_params.h"

__device__ __forceinline__ float load_as_float(const void* p, long long i, int dtype) {
    if (dtype == F16) return to_float(load_global<f16>((const f16*)p + i));
    if (dtype == BF16) return to_float(load_global<bf16>((const bf16*)p + i));
    return load_global<float>((const float*)p + i);
}

__device__ __forceinline__ void store_from_float(void* p, long long i, int dtype, float value) {
    if (dtype == F16) store_global((f16*)p + i, to_f16(value));
    else if (dtype == BF16) store_global((bf16*)p + i, to_bf16(value));
    else store_global((float*)p + i, value);
}

// relu keeps NaN, as the frameworks do.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

template <int N>
__device__ __forceinline__ void activate(float (&x)[N], int activation) {
    if (activation == NO_ACTIVATION) return;
#pragma unroll
    for (int e = 0; e < N; e++) x[e] = activation == RELU ? relu(x[e]) : x[e];
    if (activation == RELU) return;
    constexpr int H = N > 2 ? 2 : N;
#pragma unroll 1
    for (int t = 0; t < N / H; t++) {
        float y[H];
#pragma unroll
        for (int e = 0; e < H; e++) y[e] = activation == GELU ? gelu(x[e]) : silu(x[e]);
#pragma unroll
        for (int e = 0; e < N - H; e++) x[e] = x[e + H];
#pragma unroll
        for (int e = 0; e < H; e++) x[N - H + e] = y[e];
    }
}

// Where row i, columns j to j + N - 1 of this batch entry begin. Offsets are 64-bit: D may hold more than 2^31 elements.
struct RowChunk {
    const GemmParams& p;
    long long c, d, bias;
    __device__ __forceinline__ RowChunk(const GemmParams& params, int batch, int i, int j) : p(params) {
        c = batch * p.c_batch + i * p.c_row + j * p.c_col;
        d = batch * p.d_batch + i * p.d_row + j * p.d_col;
        bias = batch * p.bias_batch + j * p.bias_stride;
    }
};

// One output vector of 8 columns that is stored whole: D's row is contiguous and 16-byte aligned here.
__device__ __forceinline__ void store_vector(void* d, long long at, int dtype, const float (&x)[8]) {
    if (dtype == F32) {
        store_global((float*)d + at, make_float4(x[0], x[1], x[2], x[3]));
        store_global((float*)d + at + 4, make_float4(x[4], x[5], x[6], x[7]));
        return;
    }
    unsigned w[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        unsigned lo = dtype == F16 ? to_f16(x[2 * e]).bits : to_bf16(x[2 * e]).bits;
        unsigned hi = dtype == F16 ? to_f16(x[2 * e + 1]).bits : to_bf16(x[2 * e + 1]).bits;
        w[e] = lo | hi << 16;
    }
    store_global((unsigned short*)d + at, make_uint4(w[0], w[1], w[2], w[3]));
}

// The 8 columns (of which `count` are inside D) from accumulators; `vector` as in store_vector.
template <int N>
__device__ __forceinline__ void finish(const RowChunk& at, const float (&acc)[N], int count, bool vector) {
    const GemmParams& p = at.p;
    float x[N];
#pragma unroll
    for (int e = 0; e < N; e++) x[e] = fmaf(p.alpha, acc[e], 0.0f);
    if (p.c) {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (e < count) x[e] = fmaf(p.beta, load_as_float(p.c, at.c + e * p.c_col, p.out_dtype), x[e]);
    }
    if (p.bias) {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (e < count) x[e] += load_as_float(p.bias, at.bias + e * p.bias_stride, p.bias_dtype);
    }
    activate(x, p.activation);
    if constexpr (N == 8) {
        if (vector && count == 8) return store_vector(p.d, at.d, p.out_dtype, x);
    }
#pragma unroll 1
    for (int e = 0; e < count; e++) {
        store_from_float(p.d, at.d + e * p.d_col, p.out_dtype, x[0]);
#pragma unroll
        for (int i = 0; i + 1 < N; i++) x[i] = x[i + 1];
    }
}

// Integer accumulators: exact int32 arithmetic (it wraps) for s32 output, else the f32 epilogue on the converted sum.
template <int N>
__device__ __forceinline__ void finish(const RowChunk& at, const int (&acc)[N], int count, bool vector) {
    const GemmParams& p = at.p;
    if (p.out_dtype != S32) {
        float x[N];
#pragma unroll
        for (int e = 0; e < N; e++) x[e] = (float)acc[e];
        return finish(at, x, count, vector);
    }
    unsigned alpha = (unsigned)(int)p.alpha, beta = (unsigned)(int)p.beta;
    unsigned x[N];
#pragma unroll
    for (int e = 0; e < N; e++) {
        x[e] = alpha * (unsigned)acc[e];
        if (e >= count) continue;
        if (p.c) x[e] += beta * load_global<unsigned>((const unsigned*)p.c + at.c + e * p.c_col);
        if (p.bias) x[e] += load_global<unsigned>((const unsigned*)p.bias + at.bias + e * p.bias_stride);
        if (p.activation == RELU && (int)x[e] < 0) x[e] = 0;
    }
    unsigned* d = (unsigned*)p.d + at.d;
    if constexpr (N == 8) {
        if (vector && count == 8) {
            store_global(d, make_uint4(x[0], x[1], x[2], x[3]));
            return store_global(d + 4, make_uint4(x[4], x[5], x[6], x[7]));
        }
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        if (e < count) store_global(d + e * p.d_col, x[e]);
}

__device__ __forceinline__ bool stores_vectors(const GemmParams& p) {
    long long size = p.out_dtype == F32 || p.out_dtype == S32 ? 4 : 2;
    long long bits = (long long)p.d | p.d_row * size | p.d_batch * size;
    return p.d_col == 1 && bits % 16 == 0;
}

// The accumulators of a tile pass through shared memory, some rows at a time, so that whole rows reach D. Staged row r is tile row
// (r / GROUP) * STRIDE + first + r % GROUP. Row pitch N + 8: fragments are written without bank conflicts.
template <int ROWS, int N, int THREADS, int GROUP, int STRIDE, class Acc>
__device__ __forceinline__ void store_staged(const GemmParams& p, const Acc* staged, int batch, int m0, int n0, int first) {
    bool vector = stores_vectors(p);
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < ROWS * N / 8; chunk += THREADS) {
        int r = chunk / (N / 8), j = chunk % (N / 8) * 8;
        int i = m0 + r / GROUP * STRIDE + first + r % GROUP;
        if (i >= p.m || n0 + j >= p.n) continue;
        Acc acc[8];
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            uint4 four = load_shared<uint4>(staged + r * (N + 8) + j + e);
            acc[e] = __builtin_bit_cast(Acc, four.x);
            acc[e + 1] = __builtin_bit_cast(Acc, four.y);
            acc[e + 2] = __builtin_bit_cast(Acc, four.z);
            acc[e + 3] = __builtin_bit_cast(Acc, four.w);
        }
        finish(RowChunk(p, batch, i, n0 + j), acc, min(8, p.n - n0 - j), vector);
    }
}
