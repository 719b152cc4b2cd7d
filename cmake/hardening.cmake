# The command line parses files and replies of processes that run candidates: its code lies at random addresses and its tables of
# functions are read-only once it runs.

# Only where the compiler does not make position-independent executables by itself, as Debian's does.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("#ifndef __PIE__\n#error\n#endif\nint main() {}" HEED_COMPILER_MAKES_PIE)
if(NOT HEED_COMPILER_MAKES_PIE)
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES CXX)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
endif()

function(heed_hardened target)
  target_link_options(${target} PRIVATE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endfunction()
