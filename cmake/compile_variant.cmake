# One variant for one architecture: heed emit, then nvcc. The report of ptxas goes to OUTPUT.log.
#
#   cmake -DHEED=... -DNVCC=... -DVARIANT=... -DSHAPE=... -DARCH=sm_80 -DOUTPUT=x.cubin -DROOT=... -P compile_variant.cmake

cmake_path(GET OUTPUT PARENT_PATH folder)
file(MAKE_DIRECTORY ${folder})
execute_process(COMMAND ${HEED} emit ${VARIANT} --shape ${SHAPE} --arch ${ARCH} --output ${OUTPUT}.cu RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "heed emit ${VARIANT} --shape ${SHAPE} --arch ${ARCH} failed")
endif()
execute_process(
  COMMAND ${NVCC} -cubin -std=c++20 -arch=${ARCH} -Xptxas -v -I ${ROOT} ${OUTPUT}.cu -o ${OUTPUT}
  RESULT_VARIABLE failed
  OUTPUT_VARIABLE log
  ERROR_VARIABLE log)
file(WRITE ${OUTPUT}.log "${log}")
if(failed)
  message(FATAL_ERROR "nvcc failed on ${OUTPUT}.cu:\n${log}")
endif()
