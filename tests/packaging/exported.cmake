# What the headers declare is what libheed.so exports.
#
#   cmake -DNM=nm -DLIBRARY=libheed.so '-DHEADERS=heed.h|offload.h' -P exported.cmake

execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+\n" exported "${symbols}")
list(TRANSFORM exported REPLACE "(@@HEED_1)?\n" "")
list(REMOVE_ITEM exported HEED_1)  # the version's own symbol
string(REPLACE "|" ";" headers "${HEADERS}")
set(text "")
foreach(header IN LISTS headers)
  file(READ ${header} one)
  string(APPEND text "${one}")
endforeach()
string(REGEX MATCHALL "HEED_API [a-z][a-z0-9_ *]+\\(" declared "${text}")
list(TRANSFORM declared REPLACE ".*[ *](heed_[a-z_]+)\\(" "\\1")
list(SORT exported)
list(SORT declared)
if(NOT exported OR NOT exported STREQUAL declared)
  message(FATAL_ERROR "${LIBRARY} exports\n  ${exported}\n${HEADERS} declare\n  ${declared}")
endif()
