// plain_f32_any_16x16x1, generated: edit plain.cu.j2
#include "plain.cuh"

extern "C" __global__ void plain_f32_any_16x16x1(const __grid_constant__ Params p) {
    plain<16, 16>(p, p.k);
}
