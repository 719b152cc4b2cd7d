#include "cli/probes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/files.hpp"
#include "base/limits.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "verify/compare.hpp"
#include "worker/worker.hpp"

namespace heed::cli {
namespace fs = std::filesystem;
namespace {

constexpr double kLimit_s = 60;
constexpr double kLeastSpace = 256 << 20;   // builds of a run of 45 trials: about 100 MB
constexpr double kLeastMemory = 512 << 20;  // a compiler takes 300 MB
// Database, arenas, sockets and logs of three workers; then the pipes of each compiler.
constexpr int kFilesOfARun = 48;
constexpr int kFilesOfABuild = 4;
// Three workers with their runners; then the driver, the compiler, the assembler and the linker of each build.
constexpr int kProcessesOfARun = 8;
constexpr int kProcessesOfABuild = 4;

}  // namespace

std::string probe_kernel(const MachineOptions& machine, const DeviceFacts& device) {
  const bool gpu = device.kind == DeviceKind::cuda;
  const Workload workload = parse_workload(gpu ? "b1h1l64d64" : "b1h1l16d16:fp32");
  const auto builder = machine.builder();
  trial::TrialRunner trial_runner(workload, device, *builder, nullptr, machine.trial_options());
  const Variant variant = admitted(std::string(kAutomatic), workload, device);
  const trial::Built built = trial_runner.build(variant, /*fresh=*/true);
  const LaunchPlan plan = variant.plan(workload, device);
  const verify::Scene scene(workload, verify::make_inputs(workload, verify::InputClass::normal, 1), plan, 1);
  const std::uint64_t bytes = scene.image().size();
  const std::uint64_t result_at = (bytes + 4095) / 4096 * 4096;
  try {
    worker::Worker worker(device.kind, std::make_shared<worker::Arena>(2 * result_at));
    worker.load(0, built.artifact.path.string(), plan);
    worker.seal();
    std::memcpy(worker.arena().data(), scene.image().data(), bytes);
    worker.run(0, 0, bytes, result_at, scene.launch(), kLimit_s);
    const verify::Comparison comparison =
        verify::compare(scene, worker.arena().data() + result_at,
                        verify::make_reference(scene, verify::choose_rows(workload, 1e9, 1)), /*hard_limit=*/false);
    if (comparison.finding != Finding::none)
      throw Error(ErrorCode::worker,
                  fmt::format("{} built and ran, and is wrong: {}", variant.family->name(), comparison.text));
    return fmt::format("{} built in {:.1f} s, loaded, ran, and is right (max|error| {:.1e})", variant.family->name(),
                       built.artifact.build_ms / 1000, comparison.error.max_abs);
  } catch (const worker::WorkerFailure& failure) {
    throw Error(ErrorCode::worker,
                fmt::format("{} built, and did not run: {}", variant.family->name(), failure.what()));
  }
}

std::string probe_folder(const fs::path& folder, ErrorCode code) {
  make_folder(folder, code);
  const fs::path file = folder / fmt::format(".doctor.{}", ::getpid());
  const std::string written(1 << 16, 'h');
  write_file_atomically(file, written, code);
  const std::string read = read_file(file, code);
  std::error_code error;
  fs::remove(file, error);
  if (read != written)
    throw Error(code, fmt::format("what was written to {} reads otherwise; name another folder", folder.string()));
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return folder.string();
  const double left = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  if (left < kLeastSpace)
    throw Error(code, fmt::format("{} has {} left; a run needs {}: free some, or name another folder", folder.string(),
                                  human_bytes(left), human_bytes(kLeastSpace)));
  return fmt::format("{}, {} left", folder.string(), human_bytes(left));
}

std::string probe_database(const StoreOptions& options) {
  const fs::path path = options.file();
  const auto store = options.open(store::Access::read_write);
  const std::size_t runs = store->runs().size();
  {
    store::Transaction transaction(store->database());
    store->database().execute("CREATE TABLE doctor (text TEXT)");
    store->database().execute("INSERT INTO doctor VALUES (hex(randomblob(65536)))");
  }
  (void)probe_folder(fs::absolute(path).parent_path(), ErrorCode::store);
  return fmt::format("{}, {} runs", path.string(), runs);
}

std::string probe_open_files(int jobs) {
  const int needed = kFilesOfARun + kFilesOfABuild * jobs;
  std::vector<int> open;
  int reason = 0;
  for (int i = 0; i < needed && reason == 0; ++i) {
    const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
      reason = errno;
    else
      open.push_back(fd);
  }
  for (const int fd : open) ::close(fd);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (reason != 0)
    throw Error(ErrorCode::worker,
                fmt::format("a run holds {} files open and got {} ({}); the limit is {}: raise it with ulimit -n {}",
                            needed, open.size(), std::strerror(reason), limit.rlim_cur, 4 * needed));
  return fmt::format("{} at once", needed);
}

std::string probe_processes(int jobs) {
  const int needed = kProcessesOfARun + kProcessesOfABuild * jobs;
  std::vector<pid_t> children;
  int reason = 0;
  for (int i = 0; i < needed && reason == 0; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);
      for (;;) ::pause();
    }
    if (child < 0)
      reason = errno;
    else
      children.push_back(child);
  }
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children)
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  if (reason != 0)
    throw Error(
        ErrorCode::worker,
        fmt::format("a run has {} processes at once and got {} ({}): raise the limit (ulimit -u, or pids.max of "
                    "the container), or lower --jobs",
                    needed, children.size(), std::strerror(reason)));
  return fmt::format("{} at once", needed);
}

std::string probe_memory() {
  const MemoryRoom room = memory_room();
  const std::string found =
      fmt::format("{} of {} available (bound by {})", human_bytes(static_cast<double>(room.available_bytes)),
                  human_bytes(static_cast<double>(room.total_bytes)), room.bound_by);
  if (room.available_bytes > 0 && static_cast<double>(room.available_bytes) < kLeastMemory)
    throw Error(ErrorCode::worker, fmt::format("{}; a run needs {} for one compiler alone: raise the limit, or end "
                                               "other programs",
                                               found, human_bytes(kLeastMemory)));
  return found;
}

std::string probe_processors() {
  const std::optional<ProcessorQuota> quota = processor_quota();
  if (!quota) return fmt::format("{}, no quota", available_processors());
  const std::string found =
      fmt::format("{} used, of a quota of {:.2f} ({})", available_processors(), quota->processors, quota->bound_by);
  if (quota->processors < 1)
    throw Error(ErrorCode::worker, fmt::format("{}: every kernel is stopped within each period of the quota, so that "
                                               "times on a CPU say little; give the container a whole processor",
                                               found));
  return found;
}

}  // namespace heed::cli
