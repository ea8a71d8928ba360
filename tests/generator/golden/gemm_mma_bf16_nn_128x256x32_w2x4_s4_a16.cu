// gemm_mma_bf16_nn_128x256x32_w2x4_s4_a16, generated: edit gemm_mma.cu.j2
#include "gemm_mma.cuh"

extern "C" __global__ void __launch_bounds__(256) gemm_mma_bf16_nn_128x256x32_w2x4_s4_a16(const __grid_constant__ GemmParams params) {
    const GemmParams& p = params;
    using Config = MmaConfig<bf16, 128, 256, 32, 2, 4, 4, 16>;
    MmaKernel<bf16, true, false, Config>::run(p);
}
