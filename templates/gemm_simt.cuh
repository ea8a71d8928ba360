// gemm_simt: register-tiled multiply-adds on the CUDA cores, f32 accumulation. Tiles go global -> registers -> shared memory (as f32,
// [k][m] and [k][n]) -> registers; the next tile is loaded while this one is computed.
#pragma once
#include "epilogue.cuh"
#include "tile.cuh"

template <int TM, int TN, int TK, int THREAD_M, int THREAD_N, int ALIGN>
struct SimtConfig {
    static constexpr int TILE_M = TM, TILE_N = TN, TILE_K = TK, ALIGNMENT = ALIGN;
    static constexpr int THREADS_M = TM / THREAD_M, THREADS_N = TN / THREAD_N, THREADS = THREADS_M * THREADS_N;
    static constexpr int CHUNKS_M = THREAD_M / 4, CHUNKS_N = THREAD_N / 4;  // a thread owns 4-wide pieces, spread over the tile
};

// Element e of a 16-byte chunk as f32.
template <class T>
__device__ __forceinline__ float element(const uint4& v, int e) {
    int word = e * (int)sizeof(T) / 4;
    unsigned w = word == 0 ? v.x : word == 1 ? v.y : word == 2 ? v.z : v.w;
    if constexpr (sizeof(T) == 4) {
        return __uint_as_float(w);
    } else {
        T x;
        x.bits = (unsigned short)(w >> (e % 2 * 16));
        return to_float(x);
    }
}

// One operand's tile in shared memory, [k][mn]. A K-major chunk is scattered down the k rows: the column is swizzled by the chunk, so
// that the lanes of a warp, which hold ROW chunks of 32 / ROW rows, write to 32 different banks.
template <class T, bool K_MAJOR, int TILE_MN, class Loader>
struct SimtTile {
    static constexpr int E = 16 / sizeof(T);
    static __device__ __forceinline__ int swizzle(int k) { return K_MAJOR ? k / E % Loader::ROW * (32 / Loader::ROW) : 0; }

    static __device__ __forceinline__ void store(float* tile, const Loader& load, const typename Loader::Fetched& fetched) {
#pragma unroll
        for (int i = 0; i < Loader::COUNT; i++) {
            uint4 chunk = load.chunk_value(fetched, i);
            int row = Loader::row(i), along = Loader::column() * E;
            if constexpr (K_MAJOR) {
#pragma unroll
                for (int e = 0; e < E; e++) store_shared(tile + (along + e) * TILE_MN + (row ^ swizzle(along)), element<T>(chunk, e));
            } else {
#pragma unroll
                for (int e = 0; e < E; e += 4)
                    store_shared(tile + row * TILE_MN + along + e, make_float4(element<T>(chunk, e), element<T>(chunk, e + 1),
                                                                              element<T>(chunk, e + 2), element<T>(chunk, e + 3)));
            }
        }
    }

    // This thread's 4-wide pieces of row k.
    template <int CHUNKS, int SPREAD>
    static __device__ __forceinline__ void load(float (&f)[CHUNKS * 4], const float* tile, int k, int thread) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            float4 v = load_shared<float4>(tile + k * TILE_MN + c * SPREAD + ((thread * 4) ^ swizzle(k)));
            f[4 * c] = v.x, f[4 * c + 1] = v.y, f[4 * c + 2] = v.z, f[4 * c + 3] = v.w;
        }
    }
};

template <class T, bool A_K_MAJOR, bool B_K_MAJOR, class C>
__device__ __forceinline__ void gemm_simt(const GemmParams& p) {
    using LoadA = TileLoader<T, A_K_MAJOR, C::TILE_M, C::TILE_K, C::THREADS, C::ALIGNMENT>;
    using LoadB = TileLoader<T, B_K_MAJOR, C::TILE_N, C::TILE_K, C::THREADS, C::ALIGNMENT>;
    using TileA = SimtTile<T, A_K_MAJOR, C::TILE_M, LoadA>;
    using TileB = SimtTile<T, B_K_MAJOR, C::TILE_N, LoadB>;
    constexpr int A_FLOATS = C::TILE_K * C::TILE_M, STAGE = A_FLOATS + C::TILE_K * C::TILE_N;
    float* shared = (float*)shared_memory();

    // A warp is 8 x 4 threads, each quarter of it 4 x 2: the 8 lanes that one pass over shared memory serves read 4 + 2 pieces.
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int ty = warp % (C::THREADS_M / 8) * 8 + lane / 16 * 4 + lane % 8 / 2;
    int tx = warp / (C::THREADS_M / 8) * 4 + lane / 8 % 2 * 2 + lane % 2;
    TileIndex tile = tile_index(p, C::TILE_M, C::TILE_N);
    int m0 = tile.m * C::TILE_M, n0 = tile.n * C::TILE_N;

    for (int batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
        LoadA a((const T*)p.a + batch * p.a_batch, A_K_MAJOR ? p.a_row : p.a_col, m0, p.m, p.k);
        LoadB b((const T*)p.b + batch * p.b_batch, B_K_MAJOR ? p.b_col : p.b_row, n0, p.n, p.k);
        typename LoadA::Fetched next_a;
        typename LoadB::Fetched next_b;
        // Whole chunks: one branch for both operands. With one for each, zeroing B's registers waits for A's loads: 1.5 times as slow.
        auto fetch_both = [&]() {
            if (!LoadA::WHOLE) {
                a.fetch(next_a);
                b.fetch(next_b);
            } else if (a.all_inside() && b.all_inside()) {
                a.template fetch_chunks<true>(next_a);
                b.template fetch_chunks<true>(next_b);
            } else {
                a.template fetch_chunks<false>(next_a);
                b.template fetch_chunks<false>(next_b);
            }
        };
        auto store_both = [&](float* to) {
            TileA::store(to, a, next_a);
            TileB::store(to + A_FLOATS, b, next_b);
            a.advance();
            b.advance();
        };
        float fa[2][C::CHUNKS_M * 4], fb[2][C::CHUNKS_N * 4];
        auto load_fragments = [&](const float* from, int k) {
            TileA::template load<C::CHUNKS_M, C::THREADS_M * 4>(fa[k % 2], from, k, ty);
            TileB::template load<C::CHUNKS_N, C::THREADS_N * 4>(fb[k % 2], from + A_FLOATS, k, tx);
        };

        float acc[C::CHUNKS_M * 4][C::CHUNKS_N * 4] = {};
        int steps = (p.k + C::TILE_K - 1) / C::TILE_K;
        if (steps > 0) {
            fetch_both();
            store_both(shared);
        }
        __syncthreads();
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const float* tile_now = shared + step % 2 * STAGE;
            if (step + 1 < steps) fetch_both();
            load_fragments(tile_now, 0);
#pragma unroll
            for (int q = 0; q < C::TILE_K; q++) {
                if (q + 1 < C::TILE_K) load_fragments(tile_now, q + 1);
#pragma unroll
                for (int j = 0; j < C::CHUNKS_N * 4; j++)
#pragma unroll
                    for (int i = 0; i < C::CHUNKS_M * 4; i++) {
                        int row = j % 2 ? C::CHUNKS_M * 4 - 1 - i : i;  // back and forth: 8 % faster through operand reuse
                        acc[row][j] = fmaf(fa[q % 2][row], fb[q % 2][j], acc[row][j]);
                    }
            }
            if (step + 1 < steps) store_both(shared + (step + 1) % 2 * STAGE);
            __syncthreads();
        }

        constexpr int ROWS = C::THREADS_M * 4;
#pragma unroll
        for (int c = 0; c < C::CHUNKS_M; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < C::CHUNKS_N * 4; j += 4) {
                    const float* x = &acc[c * 4 + i][j];
                    store_shared(shared + (ty * 4 + i) * (C::TILE_N + 8) + j / 4 * C::THREADS_N * 4 + tx * 4, make_float4(x[0], x[1], x[2], x[3]));
                }
            __syncthreads();
            store_staged<ROWS, C::TILE_N, C::THREADS, ROWS, 0>(p, shared, batch, m0, n0, c * ROWS);
            __syncthreads();
        }
    }
}
