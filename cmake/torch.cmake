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
elseif(FOCI_TORCH STREQUAL "AUTO")
  message(STATUS "torch layer: left out, no libtorch found (Debian: apt-get install libtorch-dev)")
else()
  message(FATAL_ERROR "FOCI_TORCH is ${FOCI_TORCH} and no libtorch was found: apt-get install "
    "libtorch-dev, or -DCMAKE_PREFIX_PATH=$(python3 -c 'import torch; "
    "print(torch.utils.cmake_prefix_path)')")
endif()
