#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/lint.sh BUILD JOBS: clang-format over every C and C++ file, clang-tidy over src and cli.
# Says nothing but what it finds; exit 1 when it finds anything. DEEP=1 runs clang-tidy's static
# analyser too, which takes four times as long.
set -euo pipefail
build=$1
jobs=$2

files() {
  git ls-files --cached --others --exclude-standard -- "$@"
}
mapfile -t all < <(files '*.h' '*.hpp' '*.c' '*.cpp' '*.cu' '*.cuh')
# Not the torch layer: clang 14 does not get through the headers of torch 1.13 as C++20. Nor the
# emulator of a GPU, whose names are CUDA's.
mapfile -t sources < <(files 'src/*.cpp' 'cli/*.cpp' |
  grep -v '^src/nn/\|^src/models/\|^src/train/\|^src/attack/\|^src/dist/\|^src/measure/' |
  grep -v '^cli/torch/\|^src/cuda/emulate')

echo "clang-format: ${#all[@]} files"
rough=$(clang-format-14 --dry-run "${all[@]}" 2>&1 |
  sed -n 's/^\([^ :]*\):.*\[-Wclang-format.*/\1/p' | sort -u)
if [ -n "$rough" ]; then
  echo "not formatted; clang-format-14 -i puts them right:"
  echo "$rough"
  exit 1
fi

echo "clang-tidy: ${#sources[@]} files"
tools/tidy.py "$build/compile_commands.json" "$jobs" ${DEEP:+--deep} "${sources[@]}"
