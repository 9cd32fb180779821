# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: library, headers, CMake package, pkg-config file, documents.
# The prefix may be moved afterwards: every path inside is relative.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/foci)

install(TARGETS foci foci_data EXPORT fociTargets FILE_SET HEADERS)
install(EXPORT fociTargets NAMESPACE foci:: DESTINATION ${package})
if(FOCI_HAS_TORCH)
  install(TARGETS foci_torch foci_dist foci_train foci_attack foci_measure
    EXPORT fociTorchTargets)
  install(EXPORT fociTorchTargets NAMESPACE foci:: DESTINATION ${package})
endif()
configure_package_config_file(cmake/fociConfig.cmake.in fociConfig.cmake
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(fociConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fociConfig.cmake ${PROJECT_BINARY_DIR}/fociConfigVersion.cmake
  DESTINATION ${package})

file(RELATIVE_PATH FOCI_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" FOCI_PC_PREFIX "${FOCI_PC_PREFIX}")
configure_file(cmake/foci.pc.in foci.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/foci.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES LICENSE README.md CHANGELOG.md CITATION.cff DESTINATION ${CMAKE_INSTALL_DOCDIR})
