# HEED_PORTABLE: what is built runs on every Linux with glibc 2.27 or newer, whatever the building system has. For Python wheels
# (PEP 600: manylinux_2_28).

option(HEED_PORTABLE "Link libstdc++, zlib and SQLite statically and take the C library's functions as glibc 2.27 has them" OFF)
set(heed_fmt fmt::fmt)
if(HEED_PORTABLE)
  enable_language(C)
  set(heed_fmt fmt::fmt-header-only)
  set(ZLIB_USE_STATIC_LIBS ON)
  find_library(SQLite3_LIBRARY NAMES libsqlite3.a REQUIRED)
endif()

# heed_portable(TARGET [SHARES_CXX]): SHARES_CXX keeps libstdc++ shared, for a library that lets exceptions of others pass.
function(heed_portable target)
  if(NOT HEED_PORTABLE)
    return()
  endif()
  # A library of its own: beside C++ sources it would be given their precompiled header, as C.
  set(glibc ${target}_glibc)
  add_library(${glibc} OBJECT ${CMAKE_SOURCE_DIR}/packaging/glibc_2_27.c)
  set_target_properties(${glibc} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${glibc}>)
  # Old systems have these functions in libraries of their own.
  target_link_options(${target} PRIVATE -Wl,--push-state,--no-as-needed -lpthread -ldl -lm -Wl,--pop-state)
  if("SHARES_CXX" IN_LIST ARGN)
    target_compile_definitions(${glibc} PRIVATE HEED_SHARES_CXX)
  else()
    target_link_options(${target} PRIVATE -static-libstdc++)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    target_compile_definitions(${glibc} PRIVATE HEED_PROGRAM)
  endif()
endfunction()
