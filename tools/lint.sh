#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/lint.sh BUILD JOBS: clang-format over every C and C++ file, clang-tidy over src and cli.
# Says nothing but what it finds; exit 1 when it finds anything.
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
  grep -v '^src/nn/\|^src/models/\|^src/train/\|^cli/torch/models\|^src/cuda/emulate')

echo "clang-format: ${#all[@]} files"
rough=$(clang-format-14 --dry-run "${all[@]}" 2>&1 |
  sed -n 's/^\([^ :]*\):.*\[-Wclang-format.*/\1/p' | sort -u)
if [ -n "$rough" ]; then
  echo "not formatted; clang-format-14 -i puts them right:"
  echo "$rough"
  exit 1
fi

# A kernel source is compiled once per instruction set; one of them, the last, is looked at.
once=$(mktemp -d)
trap 'rm -rf "$once"' EXIT
python3 - "$build/compile_commands.json" > "$once/compile_commands.json" <<'PYTHON'
import json, sys
commands = json.load(open(sys.argv[1]))
json.dump(list({command["file"]: command for command in commands}.values()), sys.stdout)
PYTHON

echo "clang-tidy: ${#sources[@]} files"
printf '%s\n' "${sources[@]}" |
  xargs -P "$jobs" -n 1 clang-tidy-14 -p "$once" --quiet 2> >(grep -v 'warnings generated' >&2)
