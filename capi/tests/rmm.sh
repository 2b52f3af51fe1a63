#!/bin/bash
# Builds what runs beside RMM on a machine with a GPU: RMM's generic tests over Aquifer, and the times of pairs.
#   rmm.sh RMM_TESTS WHEELS LIBRARY OUT
# RMM_TESTS: the folder cpp/tests of RMM's sources. WHEELS: librmm-cu13 26.10, rapids-logger, nvidia-cuda-runtime and
# nvidia-cuda-crt of 13.0, unpacked into one folder. LIBRARY: the folder of libaquifer.so.0. It takes GoogleTest's static
# libraries. OUT can be carried elsewhere, where OUT/rmm_generic and OUT/pair_rmm run.
set -eu
tests=$1 wheels=$2 library=$3 out=$4
programs=$(cd "$(dirname "$0")" && pwd)/programs
cuda=$wheels/nvidia/cu13
mkdir -p "$out"
build() {
  g++ -std=c++20 -O2 -Wall -Wextra -Werror -Wno-unknown-pragmas -DRMM_LOG_ACTIVE_LEVEL=RAPIDS_LOGGER_LOG_LEVEL_INFO \
    -I "$tests" -I "$programs/../../include" -I "$programs" -isystem "$wheels/librmm/include" \
    -isystem "$wheels/librmm/include/rapids" -isystem "$wheels/rapids_logger/include" -isystem "$cuda/include" \
    "$programs/$1.cpp" -o "$out/$1" -s "$library/libaquifer.so.0" "$wheels/librmm/lib64/librmm.so" \
    "$wheels/rapids_logger/lib64/librapids_logger.so" "$cuda/lib/libcudart_static.a" "${@:2}" \
    -lpthread -ldl -lrt '-Wl,-rpath,$ORIGIN'
}
build pair_rmm
build rmm_generic -l:libgtest_main.a -l:libgtest.a
cp -L "$library/libaquifer.so.0" "$wheels/librmm/lib64/librmm.so" "$wheels/rapids_logger/lib64/librapids_logger.so" "$out/"
