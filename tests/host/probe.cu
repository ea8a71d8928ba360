// Kernels that use one feature of the host device each.
#include "device.cuh"

struct Probe {
    const void* in;
    void* out;
    int n, what;
};

#define PROBE(name) extern "C" __global__ void name(const __grid_constant__ Probe p)

__device__ __forceinline__ int at() { return blockIdx.x * blockDim.x + threadIdx.x; }

PROBE(f16_to_f32) { if (at() < p.n) store_global((float*)p.out + at(), to_float(load_global<f16>((const f16*)p.in + at()))); }
PROBE(bf16_to_f32) { if (at() < p.n) store_global((float*)p.out + at(), to_float(load_global<bf16>((const bf16*)p.in + at()))); }
PROBE(f32_to_f16) { if (at() < p.n) store_global((f16*)p.out + at(), to_f16(load_global<float>((const float*)p.in + at()))); }
PROBE(f32_to_bf16) { if (at() < p.n) store_global((bf16*)p.out + at(), to_bf16(load_global<float>((const float*)p.in + at()))); }
PROBE(f32_to_tf32) { if (at() < p.n) store_global((unsigned*)p.out + at(), round_operand(tf32{}, load_global<unsigned>((const unsigned*)p.in + at()))); }

// The first n bytes from in + what on, as 16 bytes.
template <int SIZE>
__device__ __forceinline__ void load_part(const Probe& p) {
    const char* from = (const char*)p.in + p.what;
    Words<SIZE> words;
    load_words<SIZE>(words, from, p.n);
    store_global(p.out, shift_words<SIZE>(words, from, p.n));
}
PROBE(load_part_1) { load_part<1>(p); }
PROBE(load_part_2) { load_part<2>(p); }
PROBE(load_part_4) { load_part<4>(p); }

// One warp: A (16 rows of 32 bytes), B (8 rows of 32 bytes), C (16 x 8 words) in, D out, by the layouts of the PTX ISA.
template <class T, class Acc>
__device__ __forceinline__ void one_mma(const Probe& p) {
    const unsigned *a = (const unsigned*)p.in, *b = a + 16 * 8;
    const Acc* c = (const Acc*)(b + 8 * 8);
    int lane = threadIdx.x, g = lane / 4, q = lane % 4;
    unsigned fa[4] = {a[g * 8 + q], a[(g + 8) * 8 + q], a[g * 8 + q + 4], a[(g + 8) * 8 + q + 4]}, fb[2] = {b[g * 8 + q], b[g * 8 + q + 4]};
    Acc d[4];
    for (int i = 0; i < 4; i++) d[i] = c[(g + i / 2 * 8) * 8 + 2 * q + i % 2];
    mma(T{}, d, fa, fb);
    for (int i = 0; i < 4; i++) store_global((Acc*)p.out + (g + i / 2 * 8) * 8 + 2 * q + i % 2, d[i]);
}
PROBE(mma_f16) { one_mma<f16, float>(p); }
PROBE(mma_bf16) { one_mma<bf16, float>(p); }
PROBE(mma_tf32) { one_mma<tf32, float>(p); }
PROBE(mma_s8) { one_mma<s8, int>(p); }

// 32 rows of 16 bytes through ldmatrix: what lane l got of matrix i is out[l * 4 + i]. what: transposed.
PROBE(matrices) {
    char* row = shared_memory() + threadIdx.x * 16;
    store_shared(row, load_global<uint4>((const uint4*)p.in + threadIdx.x));
    __syncwarp();
    unsigned r[4];
    if (p.what) load_matrix_x4_trans(r, row);
    else load_matrix_x4(r, row);
    store_global((uint4*)p.out + threadIdx.x, make_uint4(r[0], r[1], r[2], r[3]));
}

// What each thread's k-th question answered is out[k * n + thread].
PROBE(warp_words) {
    int i = threadIdx.x, lane = i % 32, x = load_global<int>((const int*)p.in + i), answers[8];
    answers[0] = (int)__ballot_sync(0xffffffffu, x & 1);
    answers[1] = __any_sync(0xffffffffu, x > 100) * 2 + __all_sync(0xffffffffu, x >= 0);
    answers[2] = __shfl_sync(0xffffffffu, x, lane + 5, 8);
    answers[3] = __shfl_up_sync(0xffffffffu, x, 3, 16);
    answers[4] = __shfl_down_sync(0xffffffffu, x, 3, 16);
    answers[5] = __shfl_xor_sync(0xffffffffu, x, 4);
    answers[6] = (int)__shfl_xor_sync(0xffffffffu, (double)x, 1);
    answers[7] = lane < 7 ? (int)__ballot_sync(0x7fu, x & 2) : -1;
    for (int k = 0; k < 8; k++) store_global((int*)p.out + k * p.n + i, answers[k]);
}

PROBE(count) {
    __shared__ int seen[256];
    seen[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    int* out = (int*)p.out;
    atomicAdd(out, seen[255 - threadIdx.x]);
    atomicMax(out + 1, seen[255 - threadIdx.x]);
    atomicAdd((float*)p.out + 2, 0.5f);
    atomicCAS(out + 3, 0, 7);
    store_global(out + 4, (int)gridDim.x);
}

PROBE(same_element) { store_global((int*)p.out, (int)threadIdx.x); }

PROBE(bits) {
    unsigned* out = (unsigned*)p.out;
    store_global(out, __byte_perm(0x33221100u, 0x77665584u, 0xc471u));
    store_global(out + 1, __funnelshift_r(0x11223344u, 0x55667788u, 8));
    store_global(out + 2, __funnelshift_r(0x11223344u, 0x55667788u, 0));
    store_global(out + 3, __funnelshift_l(0x11223344u, 0x55667788u, 8));
    store_global(out + 4, (unsigned)(__clz(1) * 10000 + __popc(0xffu) * 100 + __ffs(8)));
    unsigned w[4] = {0x03020100u, 0x13121110u, 0x23222120u, 0x33323130u};
    transpose_bytes(w);
    for (int i = 0; i < 4; i++) store_global(out + 5 + i, w[i]);
}

// ---- faults: what names the kind ------------------------------------------------------------------------------------------------

PROBE(faulty) {
    int i = threadIdx.x;
    char* shared = shared_memory();
    unsigned r[4];
    if (p.what == 0 && i < 40) __syncthreads();
    if (p.what == 1) {
        if (i < 32) __syncthreads();
        else __syncthreads();
    }
    if (p.what == 2 && i % 32 < 16) __syncwarp();
    if (p.what == 3) {
        store_shared(shared + i * 16, make_uint4(0, 0, 0, 0));
        shared = shared + i * 16;
        if (i % 32 == 5) load_matrix_x4(r, shared);
        else load_matrix_x4_trans(r, shared);
    }
    if (p.what == 4) __syncwarp(0xfffffff0u);
    if (p.what == 5) __shfl_sync(1u << i % 32, i, 31);
    if (p.what == 6) copy_async_16(shared + i * 16 + 8, p.in, true);
    if (p.what == 7) store_shared(shared + i * 4, i), load_shared<int>(shared + (i ^ 1) * 4);
    if (p.what == 8) load_shared<int>(shared + i * 4);
    if (p.what == 9) store_shared(shared + p.n - 4 + i * 4, i);
    if (p.what == 10) load_shared<uint4>(shared + 8);
    if (p.what == 11) store_global((int*)p.out + i, load_global<int>((const int*)p.in + 64 + i));
    if (p.what == 12) store_global((int*)p.in + i, i);
    if (p.what == 13) load_global<float>((const char*)p.in + 2);
    if (p.what == 14) {
        store_shared(shared + i * 4, i);
        __syncthreads();
        load_shared<int>(shared + (i ^ 1) * 4);
        store_shared(shared + i * 4, i);
    }
    if (p.what == 15) {
        copy_async_16(shared + i * 16, p.in, true);
        copy_async_commit();
        if (i == 3) load_shared<int>(shared + i * 16);
    }
    if (p.what == 16) {  // right: a warp's own exchange
        store_shared(shared + i * 4, i);
        __syncwarp();
        load_shared<int>(shared + (i ^ 1) * 4);
        __syncwarp();
        store_shared(shared + i * 4, i);
        __syncthreads();
        load_shared<int>(shared + (i ^ 33) * 4);
    }
    if (p.what == 17) {
        store_shared(shared + i * 4, i);
        __syncwarp();
        load_shared<int>(shared + (i ^ 33) * 4);
    }
}
