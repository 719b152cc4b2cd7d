# The examples of an installed libheed on a GPU; skipped without one.
#
#   cmake -DBUILD=build/release -DSOURCE=. -DHEED=heed -DFOLDER=scratch -DGENERATOR=Ninja -P gpu_examples.cmake

include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)

file(REMOVE_RECURSE ${FOLDER})
install_to(${FOLDER}/prefix)
build_examples(${FOLDER}/prefix ${FOLDER}/examples)
if(NOT EXISTS ${FOLDER}/examples/cuda_graph)
  message("skipped: there is no CUDA toolkit to build the examples with")
  return()
endif()
# Without programs the example either says that there is no GPU, or fails.
find_program(env env REQUIRED)
execute_process(COMMAND ${env} HEED_PROGRAMS=/nowhere ${FOLDER}/examples/cuda_graph OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(output MATCHES "skipped")
  if("$ENV{HEED_REQUIRE}" MATCHES gpu)
    message(FATAL_ERROR "HEED_REQUIRE names gpu, and the example says: ${output}")
  endif()
  message("${output}")
  return()
endif()
set(programs ${FOLDER}/small.programs)
run(${HEED} programs build --arch sm_80,sm_86,sm_89,sm_90a --dims 64 --masks none --samples 3 --most 1 --precision none --cache ${FOLDER}/cache -o ${programs})
run_bare(HEED_PROGRAMS=${programs} ${FOLDER}/examples/attention_c gpu)
run(${HEED} programs build --arch sm_80,sm_86,sm_89,sm_90a,cpu --dtypes fp32 --dims 64 --masks none --samples 3 --most 1 --precision none --cache ${FOLDER}/cache -o ${FOLDER}/fp32.programs)
run_bare(HEED_PROGRAMS=${FOLDER}/fp32.programs ${FOLDER}/examples/long_context cuda)
run_bare(HEED_PROGRAMS=${programs} ${FOLDER}/examples/cuda_graph)
if(NOT output MATCHES "in one launch of a graph")
  message(FATAL_ERROR "cuda_graph launched none:\n${output}")
endif()
