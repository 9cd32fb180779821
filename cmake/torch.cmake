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
elseif(FOCI_TORCH STREQUAL "AUTO")
  message(STATUS "torch layer: left out, no libtorch found (Debian: apt-get install libtorch-dev)")
else()
  message(FATAL_ERROR "FOCI_TORCH is ${FOCI_TORCH} and no libtorch was found: apt-get install "
    "libtorch-dev, or -DCMAKE_PREFIX_PATH=$(python3 -c 'import torch; "
    "print(torch.utils.cmake_prefix_path)')")
endif()
