#!/bin/bash
# Builds the peers, runs them and ours in one go, and prints the table of ratios. Wants a GPU, CUDA
# 13 with nvcc, g++ with C++20 and python3; PyTorch where its rows are wanted. README.md says more.
set -u
usage() {
  cat <<'TEXT'
run.sh [--ours BINARY] [--family BINARY|-] [--replay BINARY|-] [--wheels FOLDER] [--out FOLDER]
       [--capacity FILE] [--skip NAMES] [--slow] [--timeout SECONDS]
  --ours      the built bench (default: cargo bench --bench pool of this repository)
  --family    the other resources, the adaptors and RMM's programs, in place of the pool's rows: the
              built bench, or - for cargo bench --bench family. Both: --family after --ours
  --replay    the family's REPLAY: the built bench of aquifer-replay (default: cargo bench with
              --family -, and no rows of it with --family BINARY)
  --wheels    holds librmm-cu13 26.10 and rapids-logger 0.3 (default: pip downloads them)
  --out       where binaries and rows go (default: /tmp/aquifer-peers)
  --capacity  the output of the heap's capacity test, to go into the table
  --skip      of: ours pool binning async cuda generator rmm_traffic torch torch_traffic torch_host
              containers limits (by commas); of the family: family rmm_family multi_stream replay rmm_replay, and what rmm_family_peer.cpp
              lists
  --slow      also RMM's arena (up to ten minutes), glibc's malloc
  --timeout   of each program (default 300; the arena's is 600)
TEXT
}
OURS= FAMILY= REPLAY= WHEELS= OUT=/tmp/aquifer-peers CAPACITY= SKIP= SLOW= LIMIT=300
while [ $# -gt 0 ]; do
  case $1 in
    --ours) OURS=$(realpath "$2"); shift 2 ;;
    --family) FAMILY=$2; [ "$2" = - ] || FAMILY=$(realpath "$2"); shift 2 ;;
    --replay) REPLAY=$2; [ "$2" = - ] || REPLAY=$(realpath "$2"); shift 2 ;;
    --wheels) WHEELS=$(realpath "$2"); shift 2 ;;
    --out) OUT=$2; shift 2 ;;
    --capacity) CAPACITY=$(realpath "$2"); shift 2 ;;
    --skip) SKIP=$2; shift 2 ;;
    --slow) SLOW=yes; shift ;;
    --timeout) LIMIT=$2; shift 2 ;;
    --help) usage; exit 0 ;;
    *) echo "run.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done
POOL=yes
[ -z "$FAMILY" ] || [ -n "$OURS" ] || POOL=
[ "$FAMILY" != - ] || REPLAY=${REPLAY:--}
if [ -n "$REPLAY" ] && [ -z "$FAMILY" ]; then echo "run.sh: --replay wants --family" >&2; exit 2; fi
mkdir -p "$OUT" || exit 1
OUT=$(realpath "$OUT"); HERE=$(cd "$(dirname "$0")" && pwd); ROWS=$OUT/rows.csv
cd "$HERE" || exit 1
wanted() { [[ ",$SKIP," != *",$1,"* ]]; }

# --- Build ---
if [ -z "$WHEELS" ]; then
  WHEELS=$OUT/wheels
  if ! ls "$WHEELS"/librmm*.whl >/dev/null 2>&1; then
    python3 -m pip download -q --no-deps -d "$WHEELS" librmm-cu13==26.10.0 rapids-logger==0.3.0
  fi
fi
for wheel in "$WHEELS"/librmm*.whl "$WHEELS"/rapids_logger*.whl; do
  python3 -m zipfile -e "$wheel" "$OUT" || echo "# not unpacked: $wheel" >&2
done
NVCC=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
CUDA=$(dirname "$(dirname "$(readlink -f "$NVCC")")")
CXX="g++ -std=c++20 -O3 -DNDEBUG -w"
RMM="-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -I $OUT/librmm/include
  -I $OUT/librmm/include/rapids -I $OUT/rapids_logger/include -I $CUDA/include"
RMM_LIBS="-L $OUT/librmm/lib64 -lrmm -L $OUT/rapids_logger/lib64 -lrapids_logger
  -L $CUDA/lib64 -lcudart -Wl,-rpath,$OUT/librmm/lib64:$OUT/rapids_logger/lib64:$CUDA/lib64 -lpthread"
TORCH=$(python3 -c 'import torch, os; print(os.path.dirname(torch.__file__))' 2>/dev/null)
# A program of an earlier run must not stand in for one that no longer builds.
rm -f "$OUT"/{limits,rmm_traffic_peer,torch_traffic_peer,rmm_peer,rmm_containers_peer,rmm_family_peer,rmm_replay_peer,torch_peer,torch_host_peer}
$CXX $RMM rmm_containers_peer.cpp -o "$OUT/rmm_containers_peer" $RMM_LIBS &
if [ -n "$FAMILY" ]; then
  $CXX $RMM rmm_family_peer.cpp -o "$OUT/rmm_family_peer" $RMM_LIBS &
  [ -z "$REPLAY" ] || $CXX $RMM rmm_replay_peer.cpp -o "$OUT/rmm_replay_peer" $RMM_LIBS &
fi
if [ -n "$POOL" ]; then
  "$NVCC" -O2 -std=c++20 -o "$OUT/limits" limits.cu -lcuda &
  $CXX $RMM rmm_peer.cpp -o "$OUT/rmm_peer" $RMM_LIBS &
  $CXX $RMM rmm_traffic_peer.cpp -o "$OUT/rmm_traffic_peer" $RMM_LIBS -ldl &
fi
if [ -n "$POOL" ] && [ -n "$TORCH" ]; then
  INCLUDE="-I $TORCH/include -I $TORCH/include/torch/csrc/api/include -I $CUDA/include"
  LINK="-L $CUDA/lib64 -lcudart -Wl,-rpath,$TORCH/lib:$CUDA/lib64 -lpthread"
  $CXX $INCLUDE torch_peer.cpp -o "$OUT/torch_peer" -L "$TORCH/lib" -lc10 -lc10_cuda $LINK &
  # libtorch_cuda, of which it names nothing, tells c10 whether a device has a context.
  $CXX $INCLUDE torch_traffic_peer.cpp -o "$OUT/torch_traffic_peer" -L "$TORCH/lib" -Wl,--no-as-needed \
    -ltorch_cuda -ltorch_cpu -ltorch -lc10 -lc10_cuda $LINK -ldl &
  $CXX $INCLUDE torch_host_peer.cpp -o "$OUT/torch_host_peer" -L "$TORCH/lib" -ltorch_cuda \
    -ltorch_cpu -ltorch -lc10 -lc10_cuda $LINK &
fi
wait

# --- Run ---
: >"$ROWS"
failures=0
run() { # NAME SECONDS PROGRAM ARGUMENTS...
  local name=$1 seconds=$2; shift 2
  wanted "$name" || return 0
  echo "# running $name" >&2
  timeout "$seconds" "$@" >>"$ROWS"
  local code=$?
  if [ $code -ne 0 ]; then
    local how="ended with $code"
    [ $code -ne 124 ] || how="ended with a stop after $seconds s"
    # A program that was stopped may have left half a row.
    printf '\n# %s %s\n' "$name" "$how" | tee -a "$ROWS" >&2
    failures=$((failures + 1))
  fi
}
pool_rows() {
  # Ours writes the programs of the footprint, and the peers play them.
  local traces=$OUT/traces
  if wanted ours; then rm -rf "$traces"; fi
  if [ -n "$OURS" ]; then
    run ours "$LIMIT" "$OURS" --traces "$traces"
  else
    run ours "$((LIMIT + 600))" cargo bench --quiet --bench pool -- --traces "$traces"
  fi
  for which in pool binning async; do
    run rmm_traffic "$LIMIT" "$OUT/rmm_traffic_peer" $which "$traces"/*.txt
  done
  run generator "$LIMIT" "$OUT/rmm_peer" generator
  for which in binning pool async cuda; do run $which "$LIMIT" "$OUT/rmm_peer" $which; done
  run containers "$LIMIT" "$OUT/rmm_containers_peer"
  if [ -n "$TORCH" ]; then
    run torch "$LIMIT" "$OUT/torch_peer"
    run torch_traffic "$LIMIT" "$OUT/torch_traffic_peer" "$traces"/*.txt
    # Older versions of PyTorch read the second name. expandable_segments:True crashes in this program
    # (PyTorch 2.11), outside of Python.
    settings=backend:cudaMallocAsync
    run torch_traffic "$LIMIT" env PYTORCH_ALLOC_CONF=$settings \
      PYTORCH_CUDA_ALLOC_CONF=$settings "$OUT/torch_traffic_peer" "$traces"/*.txt
    run torch_host "$LIMIT" "$OUT/torch_host_peer"
  else
    echo "# no PyTorch: its rows are missing" | tee -a "$ROWS" >&2
  fi
  run limits "$LIMIT" "$OUT/limits"
  if [ -n "$SLOW" ]; then
    run malloc "$LIMIT" "$OUT/rmm_peer" malloc
    run arena 600 "$OUT/rmm_peer" arena
  fi
}
family_rows() {
  # A process each, ours and the peers': what one of them leaves behind must not slow the others.
  for which in resources async adaptors logging random multi vectors streams priming; do
    if [ "$FAMILY" = - ]; then
      run family "$((LIMIT + 600))" cargo bench --quiet --bench family -- --only $which
    else
      run family "$LIMIT" "$FAMILY" --only $which
    fi
  done
  if wanted rmm_family; then
    for which in fixed binning arena async managed system adaptors random uvector streams priming; do
      run $which "$LIMIT" "$OUT/rmm_family_peer" $which
    done
  fi
  if wanted multi_stream; then
    for which in pool binning arena async; do
      run multi_stream_$which "$LIMIT" "$OUT/rmm_containers_peer" $which streams
    done
  fi
  if [ -n "$REPLAY" ]; then
    replay_rows
  else
    echo "# no --replay: the rows of RMM's REPLAY are missing" | tee -a "$ROWS" >&2
  fi
}
# Ours writes the logs, and RMM's resources get those that ours of the same name had.
replay_rows() {
  local logs=$OUT/logs
  if wanted replay; then rm -rf "$logs"; fi
  if [ "$REPLAY" = - ]; then
    run replay "$((LIMIT + 600))" \
      cargo bench --quiet -p aquifer-replay --bench replay -- --keep "$logs"
  else
    run replay "$LIMIT" "$REPLAY" --keep "$logs"
  fi
  wanted rmm_replay || return 0
  for which in pool binning async; do
    run replay_$which "$LIMIT" "$OUT/rmm_replay_peer" $which "$logs"/*n=10000\ *.csv
  done
  run replay_arena "$LIMIT" "$OUT/rmm_replay_peer" arena "$logs"/*n=1000\ *.csv
  for which in cuda managed; do
    run replay_$which "$LIMIT" "$OUT/rmm_replay_peer" $which "$logs"/*n=1000\ *MiB.csv
  done
}
[ -z "$POOL" ] || pool_rows
[ -z "$FAMILY" ] || family_rows

# --- Table ---
echo "# rows: $ROWS" >&2
python3 table.py "$ROWS" ${CAPACITY:+"$CAPACITY"} | tee "$OUT/table.md"
[ $failures -eq 0 ]
