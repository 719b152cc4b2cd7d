#include <csignal>
#include <string_view>

#include "jit/toolchain.hpp"
#include "worker/child.hpp"
#include "worker/worker.hpp"

namespace heed::worker {

std::optional<int> run_child_if_asked(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a child that ends early is noticed by write()'s result
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "nvrtc" && argc == 2) return jit::run_nvrtc_child();
  if (command == "worker" && argc == 3)
    return run_worker_child(std::string_view(argv[2]) == "cuda" ? DeviceKind::cuda : DeviceKind::cpu);
  return std::nullopt;
}

}  // namespace heed::worker
