#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/wheel.sh [PYTHON [JOBS]]: builds the package for the torch of PYTHON (the first python3 that
# has one) into build/python, and a wheel of it into build/. Prints how to install it.
set -euo pipefail

python=${1:-}
for candidate in ${python:+"$python"} python3 /usr/bin/python3; do
  if torch=$("$candidate" -c 'import torch; print(torch.utils.cmake_prefix_path)' 2>/dev/null); then
    python=$(command -v "$candidate")
    break
  elif [ "$candidate" = "$python" ]; then
    echo "wheel: $python has no torch: install it there, or name another: make wheel PYTHON=..." >&2
    exit 1
  fi
done
if [ -z "${torch:-}" ]; then
  echo "wheel: no python3 here has torch; name one: make wheel PYTHON=..." >&2
  exit 1
fi

# What was found for another torch is forgotten.
cmake --preset release -U Torch_DIR -U 'TORCH_*' -U 'C10_*' -U 'CAFFE2_*' -D FOCI_TORCH=ON \
  -D FOCI_PYTHON="$python" -D CMAKE_PREFIX_PATH="$torch" >/dev/null
cmake --build --preset release -j "${2:-$(nproc)}" --target python_package
wheel=$("$python" "$(dirname "$0")/make_wheel.py" build/python build)
echo "$python -m pip install --force-reinstall --no-deps $wheel"
