// gemm_mma_bf16_nn_256x128x32_w4x2_s4_a16, generated: edit gemm_mma.cu.j2
#include "gemm_mma.cuh"

extern "C" __global__ void __launch_bounds__(256) gemm_mma_bf16_nn_256x128x32_w4x2_s4_a16(const __grid_constant__ GemmParams params) {
    const GemmParams& p = params;
    using Config = MmaConfig<bf16, 256, 128, 32, 4, 2, 4, 16>;
    MmaKernel<bf16, true, false, Config>::run(p);
}
