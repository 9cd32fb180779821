#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.sh STAGE...: where an NVIDIA GPU is at hand for minutes. Stages, in order:
#   build     the command, the tests of the CUDA backend and, where torch is, the Python package;
#             PACK=FILE.tar.xz: kernels and tests that bench/gpu_pack.sh built elsewhere
#   torch     the rest of the command, of training and measuring; the test of fused training steps,
#             NCCL's for one rank
#   tests     those tests, case by case, several at a time; ONLY_TESTS=REGEX for some
#   sanitize  compute-sanitizer's memcheck, racecheck and initcheck over every pass once; with a
#             PACK the last two over kernels built with -DFOCI_WATCHED=ON: they misread the others
#   python    the tests of the package that look at CUDA tensors
#   counters  bench/counters.py: what Nsight Compute says of the kernels
#   bench     bench/gpu.py: every speed line beside its peers; ONLY=REGEX for some
# Logs and results go to $OUT (else bench-out/); COMMIT names the state that is measured; a stage
# that has not ended after LIMIT seconds (300) is cut off.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-$PWD/bench-out}
build=${BUILD:-$PWD/build-gpu}
limit=${LIMIT:-300}
jobs=$(nproc)
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH=$build/python out build limit
export FOCI_SOURCE_DIR=$PWD FOCI_BINARY_DIR=$build

pack=$build/pack
tests=$build/tests
[ -n "${PACK:-}" ] && tests=$pack/tests
export tests
gpu_tests() {
  if [ -n "${PACK:-}" ]; then
    ls "$tests"
  else
    ninja -C "$build" -t targets all | sed -n 's/^\(cuda_[a-z_]*_test\): .*/\1/p' | sort -u
  fi
}

# What was built elsewhere, once.
if [ -n "${PACK:-}" ] && [ ! -d "$pack" ]; then
  mkdir -p "$pack" && tar xJf "$PACK" -C "$pack" || exit 1
  source=$(cat "$pack/source")
  [ -e "$source" ] || { mkdir -p "$(dirname "$source")" && ln -s "$PWD" "$source"; }
fi

stage_build() {
  local options=(-DCMAKE_BUILD_TYPE=Release -DFOCI_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90a-real
    -DFOCI_ISAS=avx2) targets=(foci_command) torch
  torch=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)' 2>/dev/null)
  [ -n "${PACK:-}" ] && options+=("-DFOCI_KERNELS=$pack/kernels")
  [ -n "${COMMIT:-}" ] && options+=("-DFOCI_COMMIT=$COMMIT")
  [ -n "$torch" ] && options+=("-DCMAKE_PREFIX_PATH=$torch") && targets+=(python_package)
  if ! TORCH_CUDA_ARCH_LIST=9.0a cmake -S . -B "$build" -G Ninja "${options[@]}" \
    >"$out/build.log" 2>&1; then
    tail -n 30 "$out/build.log"
    return 1
  fi
  # shellcheck disable=SC2207  # one word per test
  [ -z "${PACK:-}" ] && targets+=($(gpu_tests))
  if ! cmake --build "$build" -j "$jobs" --target "${targets[@]}" -- -k 0 \
    >>"$out/build.log" 2>&1; then
    grep -E -A 6 'error|FAILED' "$out/build.log" | head -n 40
    return 1
  fi
}

stage_torch() {
  if ! nice cmake --build "$build" -j "$jobs" --target foci_torch_command nn_fused_test -- -k 0 \
    >"$out/torch.log" 2>&1; then
    grep -E -A 6 'error|FAILED' "$out/torch.log" | head -n 60
    return 1
  fi
  timeout "$limit" "$build/tests/nn_fused_test" >"$out/fused.log" 2>&1 && echo "fused: passed" ||
    { grep -vE '^\[ +(OK|RUN)' "$out/fused.log" | head -n 30 && return 1; }
  sh tests/dist/nccl_test.sh "$build/foci" >"$out/nccl.log" 2>&1 && echo "NCCL: one rank passed" ||
    { tail -n 12 "$out/nccl.log" && return 1; }
}

one_case() { # TEST CASE: its exit status, seconds and name; its words where it fails
  local begin=$SECONDS log=$out/case.$1.${2//\//-} code
  timeout "$limit" "$tests/$1" --gtest_filter="$2" >"$log" 2>&1
  code=$?
  echo "$code $((SECONDS - begin)) $1 $2"
  [ $code = 0 ] || grep -vE '^\[|^Note|^$|Running main' "$log" | head -n 8 | cut -c 1-200
  rm "$log"
}
export -f one_case

stage_tests() {
  local name
  for name in $(gpu_tests); do
    "$tests/$name" --gtest_list_tests |
      awk -v name="$name" '/^[^ ]/ {suite = $1} /^ / {print name, suite $1}'
  done | grep -E "${ONLY_TESTS:-.}" |
    xargs -P "$jobs" -L 1 bash -c 'one_case "$0" "$1"' >"$out/tests.txt"
  grep -vE '^0 ' "$out/tests.txt" | head -n 60
  echo "slowest: $(grep -E '^[0-9]+ [0-9]+ cuda_' "$out/tests.txt" | sort -k 2n | tail -n 1)"
  local all passed
  all=$(grep -cE '^[0-9]+ [0-9]+ cuda_' "$out/tests.txt")
  passed=$(grep -c '^0 ' "$out/tests.txt")
  echo "$passed of $all passed"
  ! grep -qvE '^0 ' "$out/tests.txt"
}

stage_sanitize() {
  local tool log pids=() tools=(memcheck racecheck initcheck) code=0
  for tool in "${tools[@]}"; do
    local folder=$pack/watched
    [ "$tool" = memcheck ] && folder=$pack
    LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-} timeout "$limit" \
      compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$tests/cuda_every_pass_test" >"$out/$tool.log" 2>&1 &
    pids+=($!)
  done
  for tool in "${!tools[@]}"; do
    wait "${pids[$tool]}" || code=1
    log=$out/${tools[$tool]}.log
    echo "${tools[$tool]}: $(grep -E '(ERROR|RACECHECK) SUMMARY|rror:' "$log" | tail -n 1)" \
      "$(grep -E '^\[  (PASSED|FAILED)' "$log" | head -n 1)"
  done
  return $code
}

stage_python() {
  (cd tests/python &&
    timeout "$limit" python3 -m pytest -q -x ${PYTEST:-test_cuda.py test_compile.py}) \
    >"$out/python.log" 2>&1
  local code=$?
  tail -n 5 "$out/python.log"
  return $code
}

stage_counters() {
  timeout "$limit" python3 bench/counters.py --results "$out/results" --only "${ONLY:-}" \
    ${COMMIT:+--commit "$COMMIT"} 2>&1 | tee "$out/counters.log"
}

stage_bench() {
  python3 bench/gpu.py --results "$out/results" --only "${ONLY:-}" --limit $((limit - 20)) \
    ${COMMIT:+--commit "$COMMIT"} 2>&1 | tee "$out/bench.log"
}

failed=0
for stage in "$@"; do
  echo "== $SECONDS s: $stage"
  "stage_$stage" || { failed=1 && echo "== $stage failed"; }
done
echo "== $SECONDS s: done"
exit $failed
