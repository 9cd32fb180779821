#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# consumer_test.sh STEP: uses foci as a stranger would, from an installed prefix that was moved
# afterwards. ctest sets SOURCE, BUILD, CMAKE, GENERATOR, CC, CXX, LIBDIR and runs `install` first.
set -euo pipefail
work=$BUILD/consumer
prefix=$work/moved
library=$prefix/$LIBDIR/libfoci.so

fail() {
  echo "consumer: $*" >&2
  exit 1
}

configure() { # folder, then what find_package needs to know
  "$CMAKE" -S "$SOURCE/tests/consumer" -B "$work/$1" -G "$GENERATOR" \
    -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" "${@:2}"
}

run_both() {
  "$1/consumer_cpp"
  "$1/consumer_c"
}

case $1 in
  install)
    rm -rf "$work"
    "$CMAKE" --install "$BUILD" --prefix "$work/first" >/dev/null
    mv "$work/first" "$prefix"
    ;;

  find_package)
    configure found -DCMAKE_PREFIX_PATH="$prefix"
    grep -q "^foci_DIR:PATH=$prefix/" "$work/found/CMakeCache.txt" || fail "found another foci"
    "$CMAKE" --build "$work/found"
    run_both "$work/found"
    ;;

  versions)
    for version in 0.0 0.2 1.0; do
      wanted=(-DCMAKE_PREFIX_PATH="$prefix" "-DFOCI_WANTED=$version")
      said=$(configure "wrong-$version" "${wanted[@]}" 2>&1) &&
        fail "version $version was found"
      grep -q 'version: 0.1.0' <<<"$said" || fail "not refused for its version: $said"
    done
    ;;

  pkg_config)
    export PKG_CONFIG_PATH=$prefix/$LIBDIR/pkgconfig
    mkdir -p "$work/by-pkg-config"
    cd "$work/by-pkg-config"
    read -ra flags < <(pkg-config --cflags --libs foci)
    "$CXX" -std=c++20 "$SOURCE/tests/consumer/consumer.cpp" -o consumer_cpp "${flags[@]}"
    "$CC" -std=c99 "$SOURCE/tests/consumer/consumer.c" -o consumer_c "${flags[@]}" -lm
    [[ "${flags[*]}" == *"$prefix"* ]] || fail "pkg-config points elsewhere: ${flags[*]}"
    export LD_LIBRARY_PATH=$prefix/$LIBDIR
    run_both .
    ;;

  subdirectory)
    launcher=$(command -v ccache || true)
    configure inside -DFOCI_SOURCE="$SOURCE" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" \
      -DCMAKE_BUILD_TYPE=Debug -DFOCI_ISAS=
    "$CMAKE" --build "$work/inside" --target consumer_cpp consumer_c
    run_both "$work/inside"
    [ ! -e "$work/inside/foci/tests" ] || fail "foci's tests came along"
    ;;

  torch)
    configure torch -DCMAKE_PREFIX_PATH="$prefix;$TORCH" -DFOCI_WITH_TORCH=ON
    "$CMAKE" --build "$work/torch"
    "$work/torch/consumer_torch"
    ;;

  exports)
    names=$(nm -DC --defined-only "$library" | cut -c20-)
    grep -q '^foci::attend(' <<<"$names" || fail "foci::attend is not exported"
    grep -q '^foci_' <<<"$names" || fail "no C function is exported"
    ours='^(foci::|foci_|(typeinfo|typeinfo name|vtable) for foci::)'
    if grep -Ev "$ours" <<<"$names"; then
      fail "libfoci.so exports the names above, which are not foci's"
    fi
    needs=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    if grep -Ev '^(lib(stdc\+\+|gcc_s|m|c)\.so\.|ld-linux)' <<<"$needs"; then
      fail "libfoci.so needs the libraries above"
    fi
    ;;

  command)
    version=$(cd / && env -i "$prefix/bin/foci" --version)
    [[ "$version" == *0.1.0* ]] || fail "foci --version says '$version'"
    (cd / && env -i "$prefix/bin/foci" info >/dev/null)
    readelf -d "$prefix/bin/foci" | grep -q 'RUNPATH.*\[\$ORIGIN/' || fail "no relative RUNPATH"
    if grep -rIlF -e "$work/first" -e "$SOURCE" "$prefix"; then
      fail "the text files above hold a path of the machine that built them"
    fi
    ;;

  *) fail "unknown step '$1'" ;;
esac
