#include "worker/sandbox.hpp"

#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/check.hpp"
#include "worker/protocol.hpp"

namespace heed::worker {
namespace {

void must(int result, const char* step) {
  if (result != 0)
    throw Error(ErrorCode::worker,
                fmt::format("the worker's sandbox could not be set up: {}: {}", step, std::strerror(-result)));
}

// What is mapped now and a little for messages: memory that a candidate maps for itself is refused, not taken from the
// machine.
void limit_memory() {
  constexpr std::uint64_t kRoom = 256ULL << 20;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + kRoom;
  const rlimit bound{limit, limit};
  if (::setrlimit(RLIMIT_AS, &bound) != 0) must(-errno, "limiting memory");
}

}  // namespace

void enter_sandbox() {
  limit_memory();
  scmp_filter_ctx context = seccomp_init(SCMP_ACT_KILL_PROCESS);
  if (context == nullptr)
    throw Error(ErrorCode::worker, "the worker's sandbox could not be set up: seccomp_init failed");
  const auto allow = [&](int call) { must(seccomp_rule_add(context, SCMP_ACT_ALLOW, call, 0), "allowing a call"); };
  for (const int call :
       {SCMP_SYS(futex),        SCMP_SYS(munmap),         SCMP_SYS(madvise),         SCMP_SYS(brk),
        SCMP_SYS(exit),         SCMP_SYS(exit_group),     SCMP_SYS(clock_gettime),   SCMP_SYS(clock_nanosleep),
        SCMP_SYS(nanosleep),    SCMP_SYS(sched_yield),    SCMP_SYS(rt_sigreturn),    SCMP_SYS(rt_sigprocmask),
        SCMP_SYS(rt_sigaction), SCMP_SYS(getpid),         SCMP_SYS(gettid),          SCMP_SYS(tgkill),
        SCMP_SYS(poll),         SCMP_SYS(ppoll),          SCMP_SYS(restart_syscall), SCMP_SYS(mremap),
        SCMP_SYS(getrandom),    SCMP_SYS(set_robust_list)})
    allow(call);
  // Memory yes, executable memory no.
  for (const int call : {SCMP_SYS(mmap), SCMP_SYS(mprotect)})
    must(seccomp_rule_add(context, SCMP_ACT_ALLOW, call, 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)),
         "allowing memory");
  // Reading and writing on the socket to the parent only; fstat for its size checks.
  for (const int call : {SCMP_SYS(read), SCMP_SYS(write)})
    must(seccomp_rule_add(context, SCMP_ACT_ALLOW, call, 1, SCMP_A0(SCMP_CMP_EQ, kSocket)), "allowing the socket");
  must(seccomp_attr_set(context, SCMP_FLTATR_CTL_TSYNC, 1), "covering every thread");
  const int loaded = seccomp_load(context);
  seccomp_release(context);
  must(loaded, "loading the filter");
}

bool sandbox_available() {
  return ::prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

}  // namespace heed::worker
