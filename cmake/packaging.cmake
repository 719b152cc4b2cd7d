# What is installed, and the Debian package of it: the program, libheed with its headers, its files for CMake and pkg-config, and
# heed.programs where the target `programs` has built it.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Programs that libheed runs without a compiler. They take minutes, so that the target is in no other: cmake --build ... --target programs
set(heed_program_archs cpu)
if(HEED_HAS_CUDA)
  find_library(HEED_NVRTC NAMES libnvrtc.so.13 libnvrtc.so.12 nvrtc)
  if(nvrtc_folders OR HEED_NVRTC)
    list(APPEND heed_program_archs sm_90a sm_80 sm_89 compute_80)
  endif()
endif()
set(HEED_PROGRAM_ARCHS "${heed_program_archs}" CACHE STRING "What the target programs builds for: cpu (every level of its instruction set), x86-64-v3, sm_80, sm_86, sm_89, sm_90a, compute_80 (PTX)")
set(HEED_PROGRAM_SAMPLES 150 CACHE STRING "Problems that the target programs draws for each dtype, head dim and mask")
list(JOIN HEED_PROGRAM_ARCHS "," archs)
set(heed_programs ${CMAKE_BINARY_DIR}/heed.programs)
add_custom_command(
  OUTPUT ${heed_programs}
  COMMAND heed programs build --arch ${archs} --samples ${HEED_PROGRAM_SAMPLES} --page-dtypes e4m3 --cache ${CMAKE_BINARY_DIR}/programs_cache --output ${heed_programs}
  DEPENDS heed
  COMMENT "Programs of libheed for ${archs}"
  USES_TERMINAL
  VERBATIM)
add_custom_target(programs DEPENDS ${heed_programs})

if(SKBUILD)
  # A Python wheel: libraries and the program below the package, and no more.
  install(TARGETS libheed heed_torch LIBRARY DESTINATION heed/lib COMPONENT wheel)
  install(TARGETS heed RUNTIME DESTINATION heed/bin COMPONENT wheel)
  set(HEED_PROGRAMS_FILE "" CACHE FILEPATH "Programs that were built before, for the wheel; else those of HEED_PROGRAM_ARCHS are built with it")
  if(HEED_PROGRAMS_FILE)
    install(FILES ${HEED_PROGRAMS_FILE} DESTINATION heed/lib RENAME heed.programs COMPONENT wheel)
  else()
    add_custom_target(programs_of_wheel ALL DEPENDS ${heed_programs})
    install(FILES ${heed_programs} DESTINATION heed/lib COMPONENT wheel)
  endif()
  return()
endif()

install(TARGETS heed)
install(TARGETS libheed EXPORT heed_targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/heed/append.h include/heed/heed.h include/heed/offload.h include/heed/offload.hpp include/heed/plan.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/heed)
# libheed looks for them beside itself.
install(FILES ${heed_programs} DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(FILES docs/library.md docs/library-programs.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY examples/library/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

# find_package(heed) gives heed::heed.
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/heed)
install(EXPORT heed_targets NAMESPACE heed:: FILE heed_targets.cmake DESTINATION ${cmake_folder})
configure_package_config_file(cmake/heed-config.cmake.in ${CMAKE_BINARY_DIR}/heed-config.cmake INSTALL_DESTINATION ${cmake_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/heed-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/heed-config.cmake ${CMAKE_BINARY_DIR}/heed-config-version.cmake DESTINATION ${cmake_folder})

# heed.pc finds its prefix from where it lies, so that an installed tree may be moved.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" up ${up})
  set(pc_prefix "\${pcfiledir}/${up}")
endif()
cmake_path(APPEND pc_libdir "\${prefix}" ${CMAKE_INSTALL_LIBDIR})
cmake_path(APPEND pc_includedir "\${prefix}" ${CMAKE_INSTALL_INCLUDEDIR})
configure_file(cmake/heed.pc.in ${CMAKE_BINARY_DIR}/heed.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/heed.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# cpack -G DEB
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The Heed project <heed@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Fused attention kernels: the library libheed and the program heed")
set(CPACK_PACKAGE_DESCRIPTION
    "libheed is scaled-dot-product attention on CPUs and NVIDIA GPUs as a C library. It runs\nprograms that were built before, and needs no compiler.\nThe program heed evolves, proves and measures such kernels; building them takes a C++\ncompiler for CPUs, and NVRTC for GPUs.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS g++)
include(CPack)
