// gemm_simt_f32_nn_64x128x16_t8x8_b3_a16, generated: edit gemm_simt.cu.j2
#include "gemm_simt.cuh"

extern "C" __global__ void __launch_bounds__(128, 3) gemm_simt_f32_nn_64x128x16_t8x8_b3_a16(const __grid_constant__ GemmParams params) {
    const GemmParams& p = params;
    using Config = SimtConfig<64, 128, 16, 8, 8, 16>;
    gemm_simt<float, true, false, Config>(p);
}
