// A step of a sum-check over the Pallas base field: out[i] = in[2 i] + r * in[2 i + 1], in Montgomery form.
//
// `nvcc -O3 --ptx -arch=compute_75 fold.cu` made docs/kernels/fold.ptx of it; its `.version` was lowered to 6.4, for drivers
// from CUDA 10.1 on. build.rs compiles the C function `fold` with the compiler that the variable NVCC names.

struct Fp {
    unsigned long long limbs[4];
};

__device__ static const unsigned long long P[4] = {0x992d30ed00000001, 0x224698fc094cf91b, 0, 0x4000000000000000};
// -1 / P modulo 2^64.
#define INVERSE 0x992d30ecffffffffULL

typedef unsigned __int128 wide;

// x - P where x is no less than P.
__device__ static Fp reduced(const unsigned long long x[4]) {
    Fp less;
    unsigned long long borrow = 0;
    for (int i = 0; i < 4; i++) {
        wide difference = (wide)x[i] - P[i] - borrow;
        less.limbs[i] = (unsigned long long)difference;
        borrow = (unsigned long long)(difference >> 64) & 1;
    }
    for (int i = 0; i < 4; i++) {
        less.limbs[i] = borrow ? x[i] : less.limbs[i];
    }
    return less;
}

__device__ static Fp sum(const Fp &a, const Fp &b) {
    unsigned long long x[4];
    wide carry = 0;
    for (int i = 0; i < 4; i++) {
        carry += (wide)a.limbs[i] + b.limbs[i];
        x[i] = (unsigned long long)carry;
        carry >>= 64;
    }
    return reduced(x); // P has 255 bits, so the last carry is 0
}

__device__ static Fp product(const Fp &a, const Fp &b) {
    unsigned long long x[5] = {0, 0, 0, 0, 0};
    for (int i = 0; i < 4; i++) {
        wide carry = 0;
        for (int j = 0; j < 4; j++) {
            carry += (wide)a.limbs[j] * b.limbs[i] + x[j];
            x[j] = (unsigned long long)carry;
            carry >>= 64;
        }
        x[4] += (unsigned long long)carry;
        unsigned long long m = x[0] * INVERSE;
        carry = ((wide)m * P[0] + x[0]) >> 64;
        for (int j = 1; j < 4; j++) {
            carry += (wide)m * P[j] + x[j];
            x[j - 1] = (unsigned long long)carry;
            carry >>= 64;
        }
        carry += x[4];
        x[3] = (unsigned long long)carry;
        x[4] = (unsigned long long)(carry >> 64);
    }
    return reduced(x);
}

extern "C" __global__ void fold_pairs(const Fp *in, Fp *out, Fp r, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = sum(in[2 * i], product(r, in[2 * i + 1]));
    }
}

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>

// Enqueues the step for `n` results on `stream`. Returns a code of CUDA's, 0 for success.
extern "C" int fold(cudaStream_t stream, unsigned n, const Fp *in, Fp *out, const Fp *r) {
    fold_pairs<<<(n + 255) / 256, 256, 0, stream>>>(in, out, *r, n);
    return (int)cudaGetLastError();
}
#endif
