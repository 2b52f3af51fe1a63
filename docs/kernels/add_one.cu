// nvcc --cubin -arch=sm_90 add_one.cu, or NVRTC's nvrtcGetCUBIN, made add_one.sm_90.cubin of it.

extern "C" __global__ void add_one(unsigned *data, unsigned n) {
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n) {
        data[index] += 1;
    }
}

struct Pair {
    unsigned char first[3];
    short second;
};

extern "C" __global__ void __launch_bounds__(128) limited(Pair pair, unsigned char byte, unsigned long long *out) {
    __shared__ unsigned long long tile[100];
    tile[threadIdx.x % 100] = pair.second + byte;
    __syncthreads();
    out[threadIdx.x] = tile[(threadIdx.x + 1) % 100];
}

extern "C" __global__ void nothing() {}
