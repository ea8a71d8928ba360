// gemm_naive_f32_any_16x16x1, generated: edit gemm_naive.cu.j2
#include "gemm_naive.cuh"

extern "C" __global__ void __launch_bounds__(256) gemm_naive_f32_any_16x16x1(const __grid_constant__ GemmParams params) {
    const GemmParams& p = params;
    gemm_naive<float, float, 16, 16>(p);
}
