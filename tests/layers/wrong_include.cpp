// A room of lib/ that includes one of lab/: must not compile (CMakeLists.txt of this folder).
#include "process/process.hpp"
