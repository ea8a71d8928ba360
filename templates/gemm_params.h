// The one kernel parameter of every GEMM variant. Plain C++: the runtime's ctypes twin is tested against this header.
#pragma once

// Codes of out_dtype and bias_dtype.
enum DtypeCode { F32 = 0, F16 = 1, BF16 = 2, S32 = 3, S8 = 4 };
enum ActivationCode { NO_ACTIVATION = 0, RELU = 1, GELU = 2, SILU = 3 };

// D = activation(alpha * A @ B + beta * C + bias), for `batch` independent problems.
// A(i, p) = a[i * a_row + p * a_col], B(p, j) = b[p * b_row + j * b_col], likewise C and D; all strides count elements.
struct GemmParams {
    const void* a;
    const void* b;
    const void* c;     // null where beta is 0
    void* d;
    const void* bias;  // null, or n values
    long long a_row, a_col, b_row, b_col, c_row, c_col, d_row, d_col;
    long long a_batch, b_batch, c_batch, d_batch, bias_stride, bias_batch;
    int m, n, k, batch;
    float alpha, beta;
    int activation;
    int out_dtype;     // of C and D
    int bias_dtype;
    int pad;           // keeps the size a multiple of 8 on every ABI
};
