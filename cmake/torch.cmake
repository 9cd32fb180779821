# SPDX-License-Identifier: Apache-2.0
# Finds libtorch: Debian's (libtorch-dev), or that of a pip torch whose folder is in
# CMAKE_PREFIX_PATH. FOCI_HAS_TORCH says whether the torch layer is built.
set(FOCI_HAS_TORCH FALSE)
if(FOCI_FUZZ OR FOCI_SANITIZE OR NOT FOCI_TORCH)
  return()
endif()
find_package(Torch QUIET)
if(TARGET torch)
  set(FOCI_HAS_TORCH TRUE)
  message(STATUS "torch layer: with libtorch ${Torch_VERSION}")
  # pip's torch brings an fmt of its own among its headers; beside those foci_fmt is another one.
  set(FOCI_TORCH_FMT foci_fmt)
  get_target_property(fmt_headers fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
  foreach(folder ${TORCH_INCLUDE_DIRS})
    if(EXISTS ${folder}/fmt/core.h AND NOT folder IN_LIST fmt_headers)
      set(FOCI_TORCH_FMT fmt::fmt-header-only)
    endif()
  endforeach()
  include(CheckCXXSourceCompiles)
  # Of the engines' own headers; torch's need them.
  set(CMAKE_REQUIRED_INCLUDES ${TORCH_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_QUIET ON)
  foreach(engine GLOO:gloo/algorithm.h NCCL:nccl.h)
    string(REGEX REPLACE ":.*" "" name ${engine})
    string(REGEX REPLACE ".*:" "" header ${engine})
    if(name STREQUAL NCCL AND NOT TARGET torch_cuda)
      continue()
    endif()
    check_cxx_source_compiles("#if !__has_include(<${header}>)\n#error\n#endif\nint main() {}"
      FOCI_HAS_${name})
  endforeach()
  unset(CMAKE_REQUIRED_INCLUDES)
  if(NOT FOCI_HAS_GLOO AND NOT FOCI_HAS_NCCL)
    message(STATUS "torch layer: one process alone, no headers of Gloo or NCCL here "
      "(Debian: apt-get install libgloo-dev)")
  endif()
elseif(FOCI_TORCH STREQUAL "AUTO")
  message(STATUS "torch layer: left out, no libtorch found (Debian: apt-get install libtorch-dev)")
else()
  message(FATAL_ERROR "FOCI_TORCH is ${FOCI_TORCH} and no libtorch was found: apt-get install "
    "libtorch-dev, or -DCMAKE_PREFIX_PATH=$(python3 -c 'import torch; "
    "print(torch.utils.cmake_prefix_path)')")
endif()
