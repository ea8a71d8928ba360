// What stands for the wrappers of device.cuh on the host device: the same functions, on the same operands, with the hardware's rounding
// and fragment layouts. Included by device.cuh, after its types.
#pragma once
#include "cuda.h"

// ---- conversions (round to nearest even) ---------------------------------------------------------------------------------------

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline float to_float(f16 x) {
    unsigned magnitude = x.bits & 0x7fffu, sign = (unsigned)(x.bits >> 15) << 31;
    if (magnitude > 0x7c00u) return __uint_as_float(0x7fffffffu);
    if (magnitude == 0x7c00u) return __uint_as_float(sign | 0x7f800000u);
    float y = __uint_as_float(magnitude << 13) * 0x1p112f;  // exact, also for subnormals
    return __uint_as_float(sign | __float_as_uint(y));
}

inline f16 to_f16(float x) {
    unsigned u = __float_as_uint(x), sign = u >> 31 << 15, magnitude = u & 0x7fffffffu, bits;
    if (magnitude > 0x7f800000u) return {0x7fff};
    if (magnitude >= 0x477ff000u) bits = 0x7c00u;  // from halfway between the largest f16 and 65536 on
    else if (magnitude < 0x38800000u) bits = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;  // one ulp of 0.5: 2^-24
    else bits = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    return {(unsigned short)(sign | bits)};
}

inline bf16 to_bf16(float x) {
    unsigned u = __float_as_uint(x);
    return {(unsigned short)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// cvt.rna: ties away from zero.
inline unsigned round_operand(tf32, unsigned bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
    return (bits & 0x7fffffffu) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

// ---- memory --------------------------------------------------------------------------------------------------------------------

inline char* shared_memory() { return host::current->block->shared; }

namespace host {

template <class T>
__forceinline__ T read(const void* p) {
    T value;
    memcpy(&value, p, sizeof(T));
    return value;
}

}  // namespace host

template <class T>
__forceinline__ T load_shared(const void* p, TILERY_WHERE) {
    host::check_shared(p, sizeof(T), host::Access::READ, where);
    return host::read<T>(p);
}
template <class T>
__forceinline__ void store_shared(void* p, T value, TILERY_WHERE) {
    host::check_shared(p, sizeof(T), host::Access::WRITE, where);
    memcpy(p, &value, sizeof(T));
}
template <class T>
__forceinline__ T load_global(const void* p, TILERY_WHERE) {
    host::check_global(p, sizeof(T), host::Access::READ, where);
    return host::read<T>(p);
}
template <class T>
__forceinline__ void store_global(void* p, T value, TILERY_WHERE) {
    host::check_global(p, sizeof(T), host::Access::WRITE, where);
    memcpy(p, &value, sizeof(T));
}

// Bytes that are not wanted are not read: they may lie outside the operand. They are poison, so that whoever uses them is found out.
inline unsigned load_global_word(const char* word, const char* from, const char* to, TILERY_WHERE) {
    const char *first = word < from ? from : word, *last = word + 4 < to ? word + 4 : to;
    for (const char* byte = first; byte < last; byte++) host::check_global(byte, 1, host::Access::READ, where);
    unsigned value = 0xffcbffcbu;
    memcpy((char*)&value + (first - word), first, last - first);
    return value;
}

inline void copy_async_16(void* shared, const void* global, bool inside, TILERY_WHERE) {
    host::copy_async(shared, global, 16, inside, where);
}
inline void copy_async_4(void* shared, const void* global, bool inside, TILERY_WHERE) {
    host::copy_async(shared, global, 4, inside, where);
}
inline void copy_async_commit() { host::copy_async_commit(); }
template <int PENDING>
void copy_async_wait() { host::copy_async_wait(PENDING); }

// ---- tensor cores --------------------------------------------------------------------------------------------------------------

namespace host {

inline void need_whole_warp(void* const* lanes) {
    if (!lanes[31]) fail("a tensor-core instruction in a warp of fewer than 32 threads");
}

struct MatrixLoad {
    unsigned* r;
    const char* row;
};

inline void load_matrices(void* const* lanes) {
    need_whole_warp(lanes);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            ((MatrixLoad*)lanes[lane])->r[i] = read<unsigned>(((MatrixLoad*)lanes[i * 8 + lane / 4])->row + lane % 4 * 4);
}

inline void load_matrices_trans(void* const* lanes) {
    need_whole_warp(lanes);
    auto element = [&](int matrix, int row, int column) {
        return (unsigned)read<unsigned short>(((MatrixLoad*)lanes[matrix * 8 + row])->row + column * 2);
    };
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            int row = lane % 4 * 2, column = lane / 4;
            ((MatrixLoad*)lanes[lane])->r[i] = element(i, row, column) | element(i, row + 1, column) << 16;
        }
}

inline void load_matrix(const char* op, unsigned* r, const void* row, void (*execute)(void* const*), Where where) {
    check_shared(row, 16, Access::READ, where);
    MatrixLoad mine = {r, (const char*)row};
    meet(op, 0xffffffffu, &mine, execute, where);
}

template <class Acc>
struct Mma {
    Acc* d;
    const unsigned *a, *b;
};

// Element k of a row of 32 bytes, as the unit multiplies it.
inline float operand(f16, const unsigned* row, int k) { return to_float(f16{(unsigned short)(row[k / 2] >> (k % 2 * 16))}); }
inline float operand(bf16, const unsigned* row, int k) { return to_float(bf16{(unsigned short)(row[k / 2] >> (k % 2 * 16))}); }
inline float operand(tf32, const unsigned* row, int k) { return __uint_as_float(row[k] & ~0x1fffu); }
inline unsigned operand(s8, const unsigned* row, int k) { return (unsigned)(int)(s8)(row[k / 4] >> (k % 4 * 8)); }  // sums wrap

// Products are exact in f32 and are added to d one after the other, in order of k. The hardware adds them in groups whose inner order
// and rounding NVIDIA does not tell: f16, bf16 and tf32 agree with it within rounding, s8 in every bit.
template <class T, class Acc>
void multiply(void* const* lanes) {
    need_whole_warp(lanes);
    constexpr int K = 32 / sizeof(T);
    using Sum = decltype(operand(T{}, nullptr, 0));
    unsigned a[16][8], b[8][8];
    for (int lane = 0; lane < 32; lane++) {
        const Mma<Acc>& from = *(Mma<Acc>*)lanes[lane];
        int group = lane / 4, quad = lane % 4;
        a[group][quad] = from.a[0], a[group + 8][quad] = from.a[1];
        a[group][quad + 4] = from.a[2], a[group + 8][quad + 4] = from.a[3];
        b[group][quad] = from.b[0], b[group][quad + 4] = from.b[1];
    }
    Sum right[K][8];
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < K; k++) right[k][j] = operand(T{}, b[j], k);
    for (int i = 0; i < 16; i++) {
        Sum sum[8];
        auto output = [&](int j) -> Acc& { return ((Mma<Acc>*)lanes[i % 8 * 4 + j / 2])->d[i / 8 * 2 + j % 2]; };
        for (int j = 0; j < 8; j++) sum[j] = (Sum)output(j);
        for (int k = 0; k < K; k++) {
            Sum left = operand(T{}, a[i], k);
            for (int j = 0; j < 8; j++) sum[j] += left * right[k][j];
        }
        for (int j = 0; j < 8; j++) output(j) = (Acc)sum[j];
    }
}

}  // namespace host

inline void load_matrix_x4(unsigned (&r)[4], const void* row, TILERY_WHERE) {
    host::load_matrix("ldmatrix.x4", r, row, host::load_matrices, where);
}
inline void load_matrix_x4_trans(unsigned (&r)[4], const void* row, TILERY_WHERE) {
    host::load_matrix("ldmatrix.x4.trans", r, row, host::load_matrices_trans, where);
}

template <class T, class Acc>
void mma(T, Acc (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], TILERY_WHERE) {
    host::Mma<Acc> mine = {d, a, b};
    host::meet("mma.sync", 0xffffffffu, &mine, host::multiply<T, Acc>, where);
}
