# GPU support needs cuda.h when Heed is built; the driver and NVRTC are loaded at run time.
#
# cuda.h comes from a CUDA toolkit (12.4 or newer) or from the PyPI packages that scripts/setup installs into .venv.
# With HEED_CUDA=OFF nothing of CUDA is looked for, whatever the machine has.

set(HEED_HAS_CUDA OFF)
set(HEED_HAS_CUPTI OFF)
set(HEED_HAS_NVTX OFF)
option(HEED_CUPTI "Read hardware counters where CUPTI's headers are found" ON)

# heed_cuda(TARGET): TARGET includes cuda.h, and CUPTI's headers, where they were found.
function(heed_cuda target)
  if(HEED_HAS_CUDA)
    target_compile_definitions(${target} PRIVATE HEED_WITH_CUDA)
    target_include_directories(${target} SYSTEM PRIVATE ${HEED_CUDA_INCLUDE})
  endif()
  if(HEED_HAS_CUPTI)
    target_compile_definitions(${target} PRIVATE HEED_WITH_CUPTI)
    target_include_directories(${target} SYSTEM PRIVATE ${HEED_CUPTI_INCLUDE})
  endif()
endfunction()

if(HEED_CUDA STREQUAL "OFF")
  unset(HEED_NVCC CACHE)
  unset(HEED_CUDA_INCLUDE CACHE)
  unset(HEED_CUPTI_INCLUDE CACHE)
  message(STATUS "CUDA support: OFF (HEED_CUDA=OFF)")
  return()
endif()

file(GLOB pypi_cuda ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu1[2-9] ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cuda_runtime
     ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cuda_nvrtc)
find_program(HEED_NVCC nvcc HINTS /usr/local/cuda/bin)
if(HEED_NVCC)
  # nvcc may be a wrapper script: ask it where its toolkit is.
  execute_process(COMMAND ${HEED_NVCC} --dryrun -x cu /dev/null ERROR_VARIABLE nvcc_dryrun OUTPUT_QUIET)
  string(REGEX MATCH "TOP=([^\n\r]+)" ignored "${nvcc_dryrun}")
  set(nvcc_root "${CMAKE_MATCH_1}")
endif()
list(TRANSFORM pypi_cuda APPEND /include OUTPUT_VARIABLE pypi_include)
find_path(HEED_CUDA_INCLUDE cuda.h HINTS "${nvcc_root}/include" "${nvcc_root}/targets/x86_64-linux/include" /usr/local/cuda/include ${pypi_include})

if(HEED_CUDA_INCLUDE)
  file(STRINGS ${HEED_CUDA_INCLUDE}/cuda.h version_line REGEX "#define CUDA_VERSION [0-9]+")
  string(REGEX MATCH "[0-9]+$" cuda_version "${version_line}")
  if(cuda_version GREATER_EQUAL 12040)
    set(HEED_HAS_CUDA ON)
  else()
    message(STATUS "cuda.h is of version ${cuda_version}; Heed needs 12040 (CUDA 12.4) or newer")
  endif()
endif()
if(HEED_CUDA STREQUAL "ON" AND NOT HEED_HAS_CUDA)
  message(FATAL_ERROR "HEED_CUDA=ON, but no cuda.h of CUDA 12.4 or newer was found; run scripts/setup or install the CUDA toolkit")
endif()
message(STATUS "CUDA support: ${HEED_HAS_CUDA}; nvcc: ${HEED_NVCC}")

# Where libnvrtc may be on this machine, besides the dynamic linker's search path.
set(nvrtc_folders "")
foreach(root IN LISTS nvcc_root pypi_cuda)
  foreach(folder lib64 lib targets/x86_64-linux/lib)
    file(GLOB found ${root}/${folder}/libnvrtc.so.*)
    if(found)
      list(APPEND nvrtc_folders ${root}/${folder})
    endif()
  endforeach()
endforeach()
list(JOIN nvrtc_folders ":" nvrtc_folders)

# Hardware counters need CUPTI's headers (CUDA 12.6 or newer has the range profiler); libcupti is loaded at run time.
set(pypi_cupti ${pypi_cuda})
file(GLOB pypi_cupti_package ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cuda_cupti)
list(APPEND pypi_cupti ${pypi_cupti_package})
list(TRANSFORM pypi_cupti APPEND /include OUTPUT_VARIABLE pypi_cupti_include)
find_path(HEED_CUPTI_INCLUDE cupti_range_profiler.h
          HINTS ${HEED_CUDA_INCLUDE} "${nvcc_root}/include" "${nvcc_root}/extras/CUPTI/include" "${nvcc_root}/targets/x86_64-linux/include"
                /usr/local/cuda/include /usr/local/cuda/extras/CUPTI/include ${pypi_cupti_include})
if(HEED_CUPTI AND HEED_HAS_CUDA AND HEED_CUPTI_INCLUDE)
  set(HEED_HAS_CUPTI ON)
endif()
message(STATUS "Hardware counters (CUPTI): ${HEED_HAS_CUPTI}")
# NVTX is headers alone, which load the tool that listens.
find_path(HEED_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${HEED_CUDA_INCLUDE} "${nvcc_root}/include" /usr/local/cuda/include)
if(HEED_HAS_CUDA AND HEED_NVTX_INCLUDE)
  set(HEED_HAS_NVTX ON)
endif()
message(STATUS "Ranges of a timeline (NVTX): ${HEED_HAS_NVTX}")
set(cupti_folders "")
foreach(root IN LISTS nvcc_root pypi_cupti)
  foreach(folder lib64 lib targets/x86_64-linux/lib extras/CUPTI/lib64)
    file(GLOB found ${root}/${folder}/libcupti.so.*)
    if(found)
      list(APPEND cupti_folders ${root}/${folder})
    endif()
  endforeach()
endforeach()
list(JOIN cupti_folders ":" cupti_folders)
