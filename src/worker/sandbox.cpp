#include "worker/sandbox.hpp"

#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/check.hpp"
#include "worker/protocol.hpp"

namespace heed::worker {
namespace {

void must(int result, const char* step) {
  if (result != 0)
    throw Error(ErrorCode::worker,
                fmt::format("the worker's sandbox could not be set up: {}: {}", step, std::strerror(-result)));
}

scmp_filter_ctx new_filter() {
  scmp_filter_ctx context = seccomp_init(SCMP_ACT_KILL_PROCESS);
  if (context == nullptr)
    throw Error(ErrorCode::worker, "the worker's sandbox could not be set up: seccomp_init failed");
  return context;
}

void load_filter(scmp_filter_ctx context) {
  const int loaded = seccomp_load(context);
  seccomp_release(context);
  must(loaded, "loading the filter");
}

}  // namespace

void enter_pool_sandbox() {
  static std::mutex one_at_a_time;  // libseccomp makes no promise about threads
  const std::lock_guard lock(one_at_a_time);
  scmp_filter_ctx context = new_filter();
  for (const int call : {SCMP_SYS(futex), SCMP_SYS(sched_yield), SCMP_SYS(restart_syscall)})
    must(seccomp_rule_add(context, SCMP_ACT_ALLOW, call, 0), "allowing a call");
  load_filter(context);
}

void enter_sandbox() {
  scmp_filter_ctx context = new_filter();
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
  load_filter(context);
}

bool sandbox_available() {
  return ::prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

}  // namespace heed::worker
