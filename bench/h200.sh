#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/h200.sh [COMMIT]: on a machine that is there for minutes, builds with what is there, runs
# the tests of the CPU backend on every instruction set, then the suite of speed lines. Leaves
# cpu.json and the logs in $OUT (else bench-out/) and ends by itself before MINUTES (8) are over.
#   TESTS=no leaves the tests out, ONLY=REGEX measures some lines, MACHINE=NAME names the results.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-$PWD/bench-out}
build=${BUILD:-build-bench}
machine=${MACHINE:-h200-host}
end=$((${MINUTES:-8} * 60))
jobs=$(nproc)
failed=0
mkdir -p "$out"
left() { echo $((end - SECONDS)); }
say() { echo "== $SECONDS s: $*"; }

export PYTHONUNBUFFERED=1
{
  lscpu | grep -E 'Model name|^CPU\(s\)|Thread|MHz|L[123]d? cache|Flags'
  c++ --version | head -n 1
  python3 -c 'import torch; print("torch", torch.__version__)'
} >"$out/machine.txt" 2>&1
grep -v Flags "$out/machine.txt"

say "building into $build with $jobs jobs"
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
log=$out/build.log
if ! cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release >"$log" 2>&1 ||
  ! cmake --build "$build" -j "$jobs" --target foci_command >>"$log" 2>&1; then
  tail -n 30 "$log"
  say "the build failed"
  exit 1
fi
cmake --build "$build" -j "$jobs" --target foci_sgemm >>"$log" 2>&1 || say "without OpenBLAS"

if [ "${TESTS:-yes}" != no ]; then
  say "testing backend cpu"
  targets=$(cd "$build" && ctest -N -R '^(cpu|attend)_' |
    sed -n 's/.*Test .*: \([a-z0-9_]*_test\).*/\1/p' | sort -u)
  # shellcheck disable=SC2086  # one word per target
  if [ -n "$targets" ] &&
    cmake --build "$build" -j "$jobs" --target $targets >>"$log" 2>&1; then
    timeout $(($(left) * 3 / 4)) ctest --test-dir "$build" -R "^(cpu|attend)_" -j "$jobs" \
      --timeout 240 --output-on-failure >"$out/tests.log" 2>&1 || failed=1
    grep -E '^ *[0-9]+/[0-9]+ Test|tests passed|FAILED|Failure' "$out/tests.log" | tail -n 40
  else
    tail -n 20 "$log"
    say "the tests do not build"
    failed=1
  fi
fi

say "measuring"
commit=()
[ -n "${1:-}" ] && commit=(--commit "$1")
python3 bench/suite.py --foci "$build/foci" --machine "$machine" --results "$out/results" \
  --only "${ONLY:-}" --limit $(($(left) - 30)) "${commit[@]}" 2>&1 |
  tee "$out/suite.log" || failed=1
cp "$out/results/$machine/cpu.json" "$out/cpu.json" && rm -r "$out/results"
say "done: copy cpu.json to bench/results/$machine/ and run make docs"
exit $failed
