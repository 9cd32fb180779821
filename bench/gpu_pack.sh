#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/gpu_pack.sh [TO]: what bench/gpu.sh need not build where a GPU is at hand for minutes.
# Builds kernels and tests of the CUDA backend here (in BUILD, else build-pack) and packs into TO
# (else gpu-pack.tar.xz) object files of src/cuda, the tests, linked to one library, and that
# library once more with kernels that compute-sanitizer can follow. COMMIT names the state.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$(realpath -m "${1:-gpu-pack.tar.xz}")
build=$(realpath -m "${BUILD:-build-pack}")
room=$build/pack
options=(-DCMAKE_BUILD_TYPE=Release -DFOCI_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90a-real
  -DFOCI_ISAS=avx2 -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON)
[ -n "${COMMIT:-}" ] && options+=("-DFOCI_COMMIT=$COMMIT")
cmake -S . -B "$build" -G Ninja "${options[@]}" >/dev/null
cd "$build"
mapfile -t tests < <(ninja -t targets all | sed -n 's/^\(cuda_[a-z_]*_test\): .*/\1/p' | sort -u)
ninja "${tests[@]}" >pack.log
rm -rf "$room"
mkdir -p "$room/kernels" "$room/tests" "$room/watched"
objects=src/CMakeFiles/foci_cuda.dir/cuda
cp "$objects"/*.cu.o "$room/kernels/"
printf '%s' "$OLDPWD" >"$room/source"  # where tests look for their files

# share FILE ARCHIVE: all of an archive as a shared library
share() {
  g++ -shared -o "$1" -Wl,--whole-archive "$2" -Wl,--no-whole-archive lib/libfoci_fmt.a \
    "$cudart" -ldl -lrt -lpthread
}
cudart=$(ninja -t commands "${tests[0]}" | tail -n 1 | grep -o '[^ ]*libcudart_static.a' |
  head -n 1)
share "$room/libinside.so" lib/libfoci_inside.a
cp lib/libfoci_inside.a watched.a
for kernel in softmax_wgmma softmax_wgmma_backward softmax_short_wgmma; do
  command=$(ninja -t commands "$objects/$kernel.cu.o" | tail -n 1)
  eval "${command/ -o $objects\// -DFOCI_WATCHED -o }"
  ar d watched.a $kernel.cu.o
  ar r watched.a $kernel.cu.o
done
share "$room/watched/libinside.so" watched.a

# A test that looks at what the library hides is linked to the archive.
for test in "${tests[@]}"; do
  command=$(ninja -t commands "$test" | tail -n 1 | sed 's/^: && //; s/ && :$//')
  command=${command/-o tests\/$test/-o $room/tests/$test}
  shared=${command/lib\/libfoci_inside.a/-L$room -linside "-Wl,-rpath,'\$ORIGIN/..'"}
  eval "${shared//$cudart/}" 2>/dev/null || eval "$command"
done
strip "$room"/libinside.so "$room"/watched/libinside.so "$room"/tests/*
tar c -C "$room" . | xz -T0 -4 --lzma2=preset=4,dict=192MiB >"$to"
ls -l "$to"
