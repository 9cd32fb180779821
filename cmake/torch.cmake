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
  # c10d's engines need headers of their own: Gloo's are a package of Debian's, NCCL's lie beside
  # pip's torch. What does not compile is left out.
  include(CheckCXXSourceCompiles)
  file(GLOB beside LIST_DIRECTORIES true ${TORCH_INSTALL_PREFIX}/../nvidia/*/include)
  find_path(FOCI_NCCL_INCLUDE nccl.h HINTS ${beside})
  mark_as_advanced(FOCI_NCCL_INCLUDE)
  set(CMAKE_REQUIRED_QUIET ON)
  # Not its targets: they name others (protobuf) that a trial compilation would have to find.
  set(CMAKE_REQUIRED_INCLUDES ${TORCH_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_FLAGS "${TORCH_CXX_FLAGS}")
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  set(engine_header torch/csrc/distributed/c10d/ProcessGroup)
  check_cxx_source_compiles("#ifndef USE_C10D_GLOO\n#define USE_C10D_GLOO\n#endif
    #include <${engine_header}Gloo.hpp>\nusing G = c10d::ProcessGroupGloo;" FOCI_HAS_GLOO)
  if(TARGET torch_cuda AND FOCI_NCCL_INCLUDE)
    find_package(CUDAToolkit QUIET)
    set(FOCI_NCCL_INCLUDES ${FOCI_NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
    list(APPEND CMAKE_REQUIRED_INCLUDES ${FOCI_NCCL_INCLUDES})
    check_cxx_source_compiles("#ifndef USE_C10D_NCCL\n#define USE_C10D_NCCL\n#endif
      #include <${engine_header}NCCL.hpp>\nusing G = c10d::ProcessGroupNCCL;" FOCI_HAS_NCCL)
    if(NOT FOCI_HAS_NCCL)
      message(STATUS "torch layer: without NCCL, c10d's header of it does not compile with "
        "${FOCI_NCCL_INCLUDE}/nccl.h (CMakeFiles/CMakeError.log, or CMakeConfigureLog.yaml)")
    endif()
  elseif(TARGET torch_cuda)
    message(STATUS "torch layer: without NCCL, no nccl.h beside this torch")
  endif()
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_FLAGS)
  unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  if(NOT FOCI_HAS_GLOO AND NOT FOCI_HAS_NCCL)
    unset(FOCI_HAS_GLOO CACHE)  # looked for again, should it come
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
