#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing on a Debian system: tools/setup.sh build|browser|lint|fuzz ...
# Names the packages first. When nothing is missing it touches nothing and needs no network.
# Elsewhere it says what to install and stops.
set -euo pipefail

# package and how to see that it is here without asking dpkg: a command, a header in <>, or
# a name that present() knows
needed() {
  case $1 in
    build)
      echo "g++ c++"
      echo "cmake cmake"
      echo "ninja-build ninja"
      echo "pkg-config pkg-config"
      echo "libgtest-dev <gtest/gtest.h>"
      echo "librapidcheck-dev <rapidcheck.h>"
      echo "nlohmann-json3-dev <nlohmann/json.hpp>"
      echo "libfmt-dev <fmt/format.h>"
      echo "libcli11-dev <CLI/CLI.hpp>"
      echo "libopenblas-dev libopenblas"
      echo "libjpeg62-turbo-dev <jerror.h>"
      echo "libpng-dev <png.h>"
      echo "zlib1g-dev <zlib.h>"
      echo "libtorch-dev libtorch"
      echo "libgloo-dev gloo"
      echo "iproute2 namespaces"
      echo "python3 python3"
      echo "python3-torch torch"
      echo "python3-pytest pytest"
      echo "libjs-chart.js /usr/share/javascript/chart.js/chart.min.js"
      ;;
    browser)
      echo "chromium chromium"
      echo "chromium-driver chromedriver"
      echo "python3-selenium selenium"
      ;;
    lint)
      echo "clang-format-14 clang-format-14"
      echo "clang-tidy-14 clang-tidy-14"
      ;;
    fuzz)
      echo "clang-14 clang++-14"
      echo "libclang-rt-14-dev libclang-rt"
      ;;
    *)
      echo "setup: unknown group '$1', need build, browser, lint or fuzz" >&2
      exit 2
      ;;
  esac
}

present() {
  case $1 in
    libopenblas) c++ -shared -x c /dev/null -lopenblas -o /dev/null 2>/dev/null ;;
    torch)
      python3 -c 'import torch' 2>/dev/null || /usr/bin/python3 -c 'import torch' 2>/dev/null
      ;;
    libtorch)
      [ -e /usr/include/torch/script.h ] ||
        python3 -c 'import torch; torch.utils.cmake_prefix_path' 2>/dev/null
      ;;
    pytest)
      python3 -c 'import torch, pytest' 2>/dev/null ||
        /usr/bin/python3 -c 'import torch, pytest' 2>/dev/null
      ;;
    selenium)
      python3 -c 'import pytest, selenium' 2>/dev/null ||
        /usr/bin/python3 -c 'import pytest, selenium' 2>/dev/null
      ;;
    /*) [ -e "$1" ] ;;
    gloo)  # beside pip's torch it would be another version
      [ -e /usr/include/gloo/algorithm.h ] ||
        { [ ! -e /usr/include/torch/script.h ] && present libtorch; }
      ;;
    namespaces)  # of use only where they may be made
      command -v ip >/dev/null || ! unshare -n true 2>/dev/null
      ;;
    libclang-rt)
      [ -n "$(find /usr/lib/llvm-14/lib -name 'libclang_rt.fuzzer-*.a' -print -quit 2>/dev/null)" ]
      ;;
    '<'*)
      printf '#if !__has_include(%s)\n#error\n#endif\n' "$1" |
        c++ -E -x c++ - -o /dev/null 2>/dev/null
      ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing=()
for group in "${@:-build}"; do
  list=$(needed "$group")
  while read -r package sign; do
    present "$sign" || missing+=("$package")
  done <<<"$list"
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: not a Debian system; please install what Debian calls: ${missing[*]}" >&2
  exit 1
fi

echo "setup: missing, installing: ${missing[*]}"
root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: not root and no sudo here; please run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  root=(sudo)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >>"$log" 2>&1
}
if ! apt update || ! apt install -y --no-install-recommends "${missing[@]}"; then
  tail -n 20 "$log" >&2
  echo "setup: apt-get could not install ${missing[*]}" >&2
  exit 1
fi
