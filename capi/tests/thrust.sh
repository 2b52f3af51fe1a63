#!/bin/bash
# Builds Thrust's programs with nvcc, for a machine with a GPU.
#   thrust.sh WHEELS LIBRARY OUT [ARCH]
# WHEELS: nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-cccl and nvidia-cuda-runtime of 13.0, unpacked into
# one folder. With librmm-cu13 26.10 and rapids-logger, OUT/thrust_rmm runs RMM's own policies, too. LIBRARY: the folder of
# libaquifer.so.0. ARCH: sm_90. OUT can be carried elsewhere: OUT/thrust OUT/log.csv runs there.
set -eu
wheels=$1 library=$2 out=$3 arch=${4:-sm_90}
programs=$(cd "$(dirname "$0")" && pwd)/programs
cuda=$wheels/nvidia/cu13
# A wheel's files come out without their modes.
chmod +x "$cuda"/bin/* "$cuda"/nvvm/bin/*
mkdir -p "$out"
build() {
  "$cuda/bin/nvcc" -O2 -arch="$arch" -Xcompiler -Wall,-Wextra -I "$programs/../../include" -I "$programs" \
    "$programs/$1.cu" -o "$out/$1" --cudart static -L "$cuda/lib" -Xlinker "$library/libaquifer.so.0" "${@:2}" \
    -Xlinker -rpath,'$ORIGIN'
}
build thrust -std=c++17 -isystem "$cuda/include/cccl"
cp -L "$library/libaquifer.so.0" "$out/"
if [[ -d $wheels/librmm ]]; then
  # RMM's own copy of CCCL, before that of nvcc.
  build thrust_rmm -std=c++20 -I "$wheels/librmm/include/rapids" -isystem "$wheels/librmm/include" \
    -isystem "$wheels/rapids_logger/include" "$wheels/librmm/lib64/librmm.so" \
    "$wheels/rapids_logger/lib64/librapids_logger.so"
  cp -L "$wheels/librmm/lib64/librmm.so" "$wheels/rapids_logger/lib64/librapids_logger.so" "$out/"
fi
