# Debian's cross-compiler for aarch64, the libraries that scripts/aarch64 unpacks, and QEMU, under which tests run.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

get_filename_component(heed_aarch64_system ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64_system ABSOLUTE)
set(CMAKE_SYSROOT ${heed_aarch64_system})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${heed_aarch64_system})

# Programs of this machine, libraries and headers of the other.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
