# Steps of the tests beside this file.

# run(COMMAND...): fails with what the command says; `output` is that.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# run_bare(SETTINGS COMMAND...): with these variables and where libcuda is in the environment, and no compiler on the path.
function(run_bare settings)
  find_program(env env REQUIRED)
  run(${env} -i PATH= LD_LIBRARY_PATH=$ENV{LD_LIBRARY_PATH} ${settings} ${ARGN})
  list(JOIN ARGN " " command)
  message(STATUS "${command}\n${output}")
  set(output "${output}" PARENT_SCOPE)
endfunction()

# install_to(PREFIX): installed elsewhere and moved there; `library_folder` is where libheed.so lies.
function(install_to prefix)
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix}.first)
  file(RENAME ${prefix}.first ${prefix})
  file(GLOB_RECURSE library ${prefix}/*/libheed.so)
  cmake_path(GET library PARENT_PATH folder)
  set(library_folder ${folder} PARENT_SCOPE)
endfunction()

# build_examples(PREFIX INTO): by find_package.
function(build_examples prefix into)
  set(warnings "-Wall -Wextra -Wpedantic -Wshadow -Werror")
  run(${CMAKE_COMMAND} -S ${SOURCE}/examples/library -B ${into} -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${prefix} "-DCMAKE_C_FLAGS=${warnings}"
      "-DCMAKE_CXX_FLAGS=${warnings}")
  run(${CMAKE_COMMAND} --build ${into})
  file(GLOB_RECURSE config ${prefix}/*/heed-config.cmake)
  cmake_path(GET config PARENT_PATH config)
  file(STRINGS ${into}/CMakeCache.txt found REGEX "^heed_DIR")
  if(NOT found STREQUAL "heed_DIR:PATH=${config}")
    message(FATAL_ERROR "the examples found ${found}, not ${config}")
  endif()
endfunction()
