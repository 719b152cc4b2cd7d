# Compiles the variants of tuned/variants.txt with nvcc, from the very text and headers that NVRTC gets: heed emit prints the
# translation unit, nvcc makes a cubin of it, and what ptxas reports is kept beside it for the tests.

set(HEED_ARCHITECTURES 80 89 90a CACHE STRING "GPU architectures to compile ahead of time for")

function(heed_ahead_of_time)
  if(NOT HEED_NVCC)
    return()
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tuned/variants.txt)
  file(STRINGS ${CMAKE_SOURCE_DIR}/tuned/variants.txt lines REGEX "^[^#]")
  file(GLOB_RECURSE device_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.hpp ${CMAKE_SOURCE_DIR}/kernels/*.cuh)
  set(cubins "")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([^ ]+) +([^ ]+)" ignored "${line}")
    set(shape ${CMAKE_MATCH_1})
    set(variant ${CMAKE_MATCH_2})
    string(REGEX REPLACE "[:=,]" "_" name "${variant}.${shape}")
    foreach(arch IN LISTS HEED_ARCHITECTURES)
      set(cubin ${CMAKE_BINARY_DIR}/ahead_of_time/${name}.sm_${arch}.cubin)
      add_custom_command(
        OUTPUT ${cubin}
        COMMAND ${CMAKE_COMMAND} -DHEED=$<TARGET_FILE:heed> -DNVCC=${HEED_NVCC} -DVARIANT=${variant} -DSHAPE=${shape} -DARCH=sm_${arch} -DOUTPUT=${cubin}
                -DROOT=${CMAKE_SOURCE_DIR} -P ${CMAKE_SOURCE_DIR}/cmake/compile_variant.cmake
        DEPENDS ${device_sources} ${CMAKE_SOURCE_DIR}/cmake/compile_variant.cmake
        COMMENT "nvcc ${name} for sm_${arch}"
        VERBATIM)
      list(APPEND cubins ${cubin})
    endforeach()
  endforeach()
  add_custom_target(ahead_of_time ALL DEPENDS ${cubins})
  add_dependencies(ahead_of_time heed)
endfunction()
