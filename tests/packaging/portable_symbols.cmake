# Functions of the C library that are newer than glibc 2.27 have an older version in packaging/glibc_2_27.c: a wheel that needs a newer one
# is no manylinux_2_28 (PEP 600). Read from what this build links, since a wheel's own takes ten minutes. Versions to 2.36, that of Debian
# 12, where wheels are built.
#
#   cmake -DNM=nm '-DBINARIES=heed|libheed.so' -DWRAPPERS=packaging/glibc_2_27.c -P portable_symbols.cmake

file(READ ${WRAPPERS} wrappers)
string(REPLACE "|" ";" binaries "${BINARIES}")
foreach(binary IN LISTS binaries)
  execute_process(COMMAND ${NM} -D --undefined-only ${binary} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[a-zA-Z0-9_]+@GLIBC_2\\.(2[89]|3[0-6])" newer "${symbols}")
  foreach(symbol IN LISTS newer)
    string(REGEX REPLACE "@.*" "" name ${symbol})
    if(NOT wrappers MATCHES "[ *(]${name}[(;) ]")
      message(SEND_ERROR "${binary} needs ${symbol}: ${WRAPPERS} lacks its older version")
    endif()
  endforeach()
endforeach()
