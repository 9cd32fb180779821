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
mapfile -t sources < <(files 'src/*.cpp' 'cli/*.cpp')

echo "clang-format: ${#all[@]} files"
clang-format-14 --dry-run -Werror "${all[@]}"

echo "clang-tidy: ${#sources[@]} files"
printf '%s\n' "${sources[@]}" |
  xargs -P "$jobs" -n 1 clang-tidy-14 -p "$build" --quiet 2> >(grep -v 'warnings generated' >&2)
