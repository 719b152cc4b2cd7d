#include "own_processor.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>

namespace heed::testing_support {

void take_a_processor() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed)) continue;
    const std::string path = "/tmp/heed-test-processor-" + std::to_string(::getuid()) + '-' + std::to_string(processor);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    // The lock ends with this process: the descriptor stays open.
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) {
      cpu_set_t own;
      CPU_ZERO(&own);
      CPU_SET(processor, &own);
      ::sched_setaffinity(0, sizeof own, &own);
      return;
    }
    ::close(file);
  }
}

}  // namespace heed::testing_support
