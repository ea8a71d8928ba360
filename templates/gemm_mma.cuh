// gemm_mma: tensor cores through mma.sync, fed by ldmatrix from a multistage pipeline in shared memory. Rows that are 16-byte aligned
// arrive by cp.async; any others through registers, in the same pipeline.
//
// A tile is kept as it lies in memory (K-major or MN-major), in 16-byte chunks whose column is swizzled by the row. One k-step is 32
// bytes of k for every dtype, so fragments of K-major tiles are the same bytes for all of them. MN-major tiles of 16-bit types are
// transposed by ldmatrix; of tf32 and s8, each thread reads 4 neighbouring m (or n) at once and hands them to 4 different fragments: a
// permutation of the rows (or columns) within each 32, undone when the accumulators are stored.
#pragma once
#include "epilogue.cuh"
#include "tile.cuh"

template <class T, int TM, int TN, int TK, int WM, int WN, int S, int ALIGN>
struct MmaConfig {
    static constexpr int TILE_M = TM, TILE_N = TN, TILE_K = TK, WARPS_M = WM, WARPS_N = WN, STAGES = S, ALIGNMENT = ALIGN;
    static constexpr int SIZE = sizeof(T), THREADS = 32 * WM * WN;
    static constexpr int WARP_M = TM / WM, WARP_N = TN / WN, FRAGMENTS_M = WARP_M / 16, FRAGMENTS_N = WARP_N / 8;
    static constexpr int STEPS = TK * SIZE / 32;
};

template <class T> struct MmaTypes { using Acc = float; };
template <> struct MmaTypes<s8> { using Acc = int; };

// One operand's tile in shared memory.
template <class T, bool K_MAJOR, int TILE_MN, int TILE_K>
struct SharedTile {
    static constexpr int ROW = (K_MAJOR ? TILE_K : TILE_MN) * sizeof(T) / 16, BYTES = TILE_MN * TILE_K * sizeof(T);
    static constexpr bool GATHERED = !K_MAJOR && sizeof(T) != 2;  // fragments are read element-wise, rows permuted

    // Spreads the rows that one read touches over the 8 bank groups of 16 bytes: ldmatrix touches 8 rows in a run, a gathered tf32
    // read 4 rows in a run, a gathered s8 read every fourth row of 16.
    static __device__ __forceinline__ int swizzle(int row) {
        int bits = !GATHERED ? row / (ROW < 8 ? 8 / ROW : 1) : sizeof(T) == 4 ? row % 4 * 2 : row / 4 % 4 * 2;
        return bits & (ROW < 8 ? ROW - 1 : 7);
    }
    static __device__ __forceinline__ int offset(int row, int chunk) { return (row * ROW + (chunk ^ swizzle(row))) * 16; }
};

// This thread's reads of fragments: COUNT groups of 8 rows from row mn0 of the tile. The lane's own offset is computed once; what
// depends on the fragment and the k-step is a constant, added where it moves whole rows and xor-ed where it moves swizzled chunks.
template <class T, bool K_MAJOR, bool IS_A, int COUNT, class Tile>
struct FragmentReader {
    static constexpr int PITCH = Tile::ROW * 16;
    int lane_offset;

    __device__ __forceinline__ explicit FragmentReader(int mn0) {
        int lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
        // Of the four matrices of one ldmatrix, `odd` is the second of a pair of 8-row groups and `high` the second half of the k-step.
        int odd = IS_A ? lane / 8 % 2 : lane / 16, high = IS_A ? lane / 16 : lane / 8 % 2;
        if constexpr (Tile::GATHERED && sizeof(T) == 4) lane_offset = Tile::offset(quad, mn0 / 4 + group);
        else if constexpr (Tile::GATHERED) lane_offset = Tile::offset(quad * 4, mn0 / 16 + group / 4) + group % 4 * 4;
        else if constexpr (K_MAJOR) lane_offset = Tile::offset(mn0 + odd * 8 + lane % 8, high);
        else lane_offset = Tile::offset(high * 8 + lane % 8, mn0 / 8 + odd);
    }

    __device__ __forceinline__ void load(unsigned (&r)[COUNT][2], const char* tile, int step) const {
        constexpr int TOGETHER = Tile::GATHERED ? 4 : 2;
#pragma unroll
        for (int f = 0; f < COUNT; f += TOGETHER) {
            if constexpr (!Tile::GATHERED) {
                unsigned x[4];
                if constexpr (K_MAJOR) load_matrix_x4(x, tile + (lane_offset ^ (step * 32)) + f * 8 * PITCH);
                else load_matrix_x4_trans(x, tile + (lane_offset ^ (f * 16)) + step * 16 * PITCH);
                r[f][0] = x[0], r[f][1] = x[IS_A ? 2 : 1], r[f + 1][0] = x[IS_A ? 1 : 2], r[f + 1][1] = x[3];
            } else {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    unsigned x[4];
                    gather(x, tile, f, step, half);
#pragma unroll
                    for (int i = 0; i < 4; i++) r[f + i][half] = x[i];
                }
            }
        }
#pragma unroll
        for (int f = 0; f < COUNT; f++)
#pragma unroll
            for (int half = 0; half < 2; half++) r[f][half] = round_operand(T{}, r[f][half]);
    }

    // Four neighbouring rows (columns of the tile in memory), one for each of the fragments f to f + 3.
    __device__ __forceinline__ void gather(unsigned (&x)[4], const char* tile, int f, int step, int half) const {
        if constexpr (sizeof(T) == 4) {
            uint4 v = load_shared<uint4>(tile + lane_offset + f * 32 + (step * 8 + half * 4) * PITCH);
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = load_shared<unsigned>(tile + (lane_offset ^ (f * 8)) + (step * 32 + half * 16 + i) * PITCH);
            transpose_bytes(x);
        }
    }
};

// The row (or column) within the warp's part that fragment row `in` of 8-row group f stands for.
template <bool GATHERED>
__device__ __forceinline__ int place(int f, int in) { return GATHERED ? f / 4 * 32 + in * 4 + f % 4 : f * 8 + in; }

template <class T, bool A_K_MAJOR, bool B_K_MAJOR, class C>
struct MmaKernel {
    using Acc = typename MmaTypes<T>::Acc;
    using TileA = SharedTile<T, A_K_MAJOR, C::TILE_M, C::TILE_K>;
    using TileB = SharedTile<T, B_K_MAJOR, C::TILE_N, C::TILE_K>;
    using LoadA = TileLoader<T, A_K_MAJOR, C::TILE_M, C::TILE_K, C::THREADS, C::ALIGNMENT>;
    using LoadB = TileLoader<T, B_K_MAJOR, C::TILE_N, C::TILE_K, C::THREADS, C::ALIGNMENT>;
    static constexpr int STAGE = TileA::BYTES + TileB::BYTES;
    static constexpr bool ASYNC = C::ALIGNMENT == 16 || C::SIZE == 4;  // cp.async moves aligned pieces of 4 bytes or more

    using ReadA = FragmentReader<T, A_K_MAJOR, true, C::FRAGMENTS_M * 2, TileA>;
    using ReadB = FragmentReader<T, B_K_MAJOR, false, C::FRAGMENTS_N, TileB>;

    struct Fragments { unsigned a[C::FRAGMENTS_M * 2][2], b[C::FRAGMENTS_N][2]; };

    template <class Tile, class Loader>
    static __device__ __forceinline__ void fetch(char* tile, const Loader& load, typename Loader::Fetched& fetched) {
        if constexpr (!ASYNC) {
            load.fetch(fetched);
        } else {
#pragma unroll
            for (int i = 0; i < Loader::COUNT; i++) {
                char* to = tile + Tile::offset(Loader::row(i), Loader::column());
                if constexpr (C::ALIGNMENT == 16) {
                    copy_async_16(to, load.chunk(i), load.inside(i));
                } else {
#pragma unroll
                    for (int e = 0; e < 4; e++) copy_async_4(to + 4 * e, load.chunk(i) + 4 * e, 4 * e < load.valid(i));
                }
            }
        }
    }

    template <class Tile, class Loader>
    static __device__ __forceinline__ void put(char* tile, Loader& load, const typename Loader::Fetched& fetched) {
        if constexpr (!ASYNC) {
#pragma unroll
            for (int i = 0; i < Loader::COUNT; i++) store_shared(tile + Tile::offset(Loader::row(i), Loader::column()), load.chunk_value(fetched, i));
        }
        load.advance();
    }

    static __device__ __forceinline__ void multiply(Acc (&acc)[C::FRAGMENTS_M][C::FRAGMENTS_N][4], const Fragments& f) {
#pragma unroll
        for (int i = 0; i < C::FRAGMENTS_M; i++)
#pragma unroll
            for (int j = 0; j < C::FRAGMENTS_N; j++) {
                int col = i % 2 ? C::FRAGMENTS_N - 1 - j : j;  // back and forth: neighbouring instructions share an operand
                unsigned a[4] = {f.a[2 * i][0], f.a[2 * i + 1][0], f.a[2 * i][1], f.a[2 * i + 1][1]};
                mma(T{}, acc[i][col], a, f.b[col]);
            }
    }

    static __device__ __forceinline__ void compute(Acc (&acc)[C::FRAGMENTS_M][C::FRAGMENTS_N][4], char* shared, LoadA& a, LoadB& b, int steps) {
        typename LoadA::Fetched fetched_a;
        typename LoadB::Fetched fetched_b;
        auto fetch_both = [&](char* to) {
            fetch<TileA>(to, a, fetched_a);
            fetch<TileB>(to + TileA::BYTES, b, fetched_b);
        };
        auto put_both = [&](char* to) {
            put<TileA>(to, a, fetched_a);
            put<TileB>(to + TileA::BYTES, b, fetched_b);
        };
        int warp = threadIdx.x / 32;
        ReadA read_a(warp % C::WARPS_M * C::WARP_M);
        ReadB read_b(warp / C::WARPS_M * C::WARP_N);
        Fragments f[2];
        auto load_fragments = [&](Fragments& to, const char* from, int step) {
            read_a.load(to.a, from, step);
            read_b.load(to.b, from + TileA::BYTES, step);
        };
        auto after = [&](char* stage) { return stage == shared + (C::STAGES - 1) * STAGE ? shared : stage + STAGE; };

#pragma unroll 1
        for (int tile = 0; tile < C::STAGES - 1; tile++) {
            fetch_both(shared + tile * STAGE);  // beyond k every chunk is outside and becomes zeros
            put_both(shared + tile * STAGE);
            if constexpr (ASYNC) copy_async_commit();
        }
        if constexpr (ASYNC) copy_async_wait<C::STAGES - 2>();
        __syncthreads();

        char *reading = shared, *filling = shared + (C::STAGES - 1) * STAGE;
        load_fragments(f[0], reading, 0);
#pragma unroll 1
        for (int tile = 0; tile < steps; tile++) {
#pragma unroll
            for (int step = 0; step < C::STEPS; step++) {
                bool last = step == C::STEPS - 1;
                if (last) {
                    // The next tile has arrived for all, and all are done reading this one.
                    put_both(filling);
                    filling = after(filling);
                    reading = after(reading);
                    if constexpr (ASYNC) copy_async_wait<C::STAGES - 2>();
                    __syncthreads();
                }
                load_fragments(f[(step + 1) % 2], reading, last ? 0 : step + 1);
                if (step == 0) {
                    fetch_both(filling);
                    if constexpr (ASYNC) copy_async_commit();
                }
                multiply(acc, f[step % 2]);
            }
        }
        if constexpr (ASYNC) copy_async_wait<0>();
        __syncthreads();
    }

    // 32 rows of each warp row at a time (16 where a warp has no more).
    static __device__ __forceinline__ void store(const GemmParams& p, Acc (&acc)[C::FRAGMENTS_M][C::FRAGMENTS_N][4], Acc* staged, int batch, int m0, int n0) {
        constexpr int GROUP = C::WARP_M < 32 ? 16 : 32, PITCH = C::TILE_N + 8;
        int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
        Acc* corner = staged + warp % C::WARPS_M * GROUP * PITCH + warp / C::WARPS_M * C::WARP_N;
#pragma unroll 1
        for (int pass = 0; pass < C::WARP_M / GROUP; pass++) {
#pragma unroll
            for (int i = 0; i < GROUP / 16; i++)
#pragma unroll
                for (int j = 0; j < C::FRAGMENTS_N; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const Acc* x = acc[i][j] + 2 * half;
                        Acc* row = corner + place<TileA::GATHERED>(2 * i + half, group) * PITCH;
                        if constexpr (TileB::GATHERED) {
                            store_shared(row + place<true>(j, 2 * quad), x[0]);
                            store_shared(row + place<true>(j, 2 * quad + 1), x[1]);
                        } else {
                            store_shared(row + place<false>(j, 2 * quad), make_uint2(__builtin_bit_cast(unsigned, x[0]), __builtin_bit_cast(unsigned, x[1])));
                        }
                    }
            __syncthreads();
            store_staged<C::WARPS_M * GROUP, C::TILE_N, C::THREADS, GROUP, C::WARP_M>(p, staged, batch, m0, n0, pass * GROUP);
#pragma unroll
            for (int i = 0; i + GROUP / 16 < C::FRAGMENTS_M; i++)
#pragma unroll
                for (int j = 0; j < C::FRAGMENTS_N; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) acc[i][j][e] = acc[i + GROUP / 16][j][e];
            __syncthreads();
        }
    }

    static __device__ __forceinline__ void run(const GemmParams& p) {
        char* shared = shared_memory();
        TileIndex tile = tile_index(p, C::TILE_M, C::TILE_N);
        int m0 = tile.m * C::TILE_M, n0 = tile.n * C::TILE_N, steps = (p.k + C::TILE_K - 1) / C::TILE_K;
        for (int batch = blockIdx.z; batch < p.batch; batch += gridDim.z) {
            LoadA a((const T*)p.a + batch * p.a_batch, A_K_MAJOR ? p.a_row : p.a_col, m0, p.m, p.k);
            LoadB b((const T*)p.b + batch * p.b_batch, B_K_MAJOR ? p.b_col : p.b_row, n0, p.n, p.k);
            Acc acc[C::FRAGMENTS_M][C::FRAGMENTS_N][4] = {};
            compute(acc, shared, a, b, steps);
            store(p, acc, (Acc*)shared, batch, m0, n0);
        }
    }
};
