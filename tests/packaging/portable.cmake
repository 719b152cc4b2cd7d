# A wheel's build as far as it takes seconds: it is configured, C sources of its own compile, and no C source is given a precompiled
# header, which holds C++.
#
#   SOURCE      the checkout
#   FOLDER      where it is built
#   GENERATOR   Ninja, whose commands are read
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${FOLDER} -G ${GENERATOR} -DHEED_PORTABLE=ON -DHEED_TESTS=OFF OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ninja -C ${FOLDER} heed_glibc libheed_glibc OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ninja -C ${FOLDER} -t commands heed libheed OUTPUT_VARIABLE commands COMMAND_ERROR_IS_FATAL ANY)
string(FIND "${commands}" "-x c-header" at)
if(NOT at EQUAL -1)
  message(FATAL_ERROR "a precompiled header is made for C: a target has C sources beside C++ sources, see cmake/portable.cmake")
endif()
