// fast_bf16_nt_128x128x32_w2x2_s3_a16, generated: edit fast.cu.j2
#include "fast.cuh"

extern "C" __global__ void __launch_bounds__(128) fast_bf16_nt_128x128x32_w2x2_s3_a16(const __grid_constant__ Params p) {
    fast<bf16, 128, 128, 32, 3, 16>(p);
}
