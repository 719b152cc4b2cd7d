#include "dispatch/built_programs.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "base/digest.hpp"
#include "base/files.hpp"
#include "compile/embedded.hpp"
#include "compile/nvrtc.hpp"

namespace heed::dispatch {
namespace fs = std::filesystem;
namespace {

using File = std::shared_ptr<const ProgramFile>;

// Programs that this process built or builds, by the path of their file: where that cannot be written they are here
// alone.
struct Kept {
  std::mutex mutex;
  std::map<std::string, File> files;
  std::map<std::string, std::shared_future<File>> builds;  ///< that run
};
Kept& kept() {
  static auto* const all = new Kept;  // outlives the builds of a process that ends
  return *all;
}

// One thread and what it has to do.
class Background {
 public:
  ~Background() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      waiting_.clear();
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void add(const std::string& name, std::function<void()> build) {
    const std::lock_guard lock(mutex_);
    if (!states_.emplace(name, BuiltPrograms::Progress{.is_building = true, .failure = {}}).second) return;
    waiting_.emplace_back(name, std::move(build));
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    changed_.notify_all();
  }
  BuiltPrograms::Progress progress(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto at = states_.find(name);
    return at == states_.end() ? BuiltPrograms::Progress{} : at->second;
  }
  std::size_t wait(double seconds) {
    std::unique_lock lock(mutex_);
    const auto left = [this] { return waiting_.size() + (is_running_ ? 1 : 0); };
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return left() == 0; });
    return left();
  }

 private:
  void work() {
    // Of this thread alone: https://man7.org/linux/man-pages/man2/setpriority.2.html
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
    for (;;) {
      std::pair<std::string, std::function<void()>> next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
        if (ends_) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
        is_running_ = true;
      }
      std::string failure;
      try {
        next.second();
      } catch (const std::exception& error) {
        failure = error.what();
      }
      const std::lock_guard lock(mutex_);
      is_running_ = false;
      states_[next.first] = {.is_building = false, .failure = failure};
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::string, std::function<void()>>> waiting_;
  std::map<std::string, BuiltPrograms::Progress> states_;  ///< of every build that was added
  bool is_running_ = false;
  bool ends_ = false;
  std::thread thread_;
};
Background& background() {
  (void)kept();
  static Background one;
  return one;
}

fs::path default_folder() {
  const char* const named = std::getenv("HEED_BUILT_PROGRAMS");
  if (named != nullptr && named[0] != '\0') return named;
  const fs::path cache = folder_of_environment("XDG_CACHE_HOME", ".cache");
  return cache.empty() ? fs::path() : cache / "programs";
}

}  // namespace

BuiltPrograms::BuiltPrograms(const fs::path& folder) : folder_(folder.empty() ? default_folder() : folder) {}

fs::path BuiltPrograms::path_of(const Variant& variant, const std::string& arch) const {
  // Ids may be longer than names of files.
  const std::string name = digest(fmt::format("{} {}", to_string(variant.problem), describe(variant)));
  return folder_ / fmt::format("{}_{}_{}_{}.programs", variant.family->name(), arch, name, compile::source_digest());
}

std::shared_ptr<const ProgramFile> BuiltPrograms::find(const Variant& variant, const std::string& arch) const {
  const fs::path path = path_of(variant, arch);
  const std::lock_guard lock(kept().mutex);
  const auto at = kept().files.find(path.string());
  if (at != kept().files.end()) return at->second;
  std::error_code error;
  if (folder_.empty() || !fs::exists(path, error)) return nullptr;
  try {
    std::shared_ptr<const ProgramFile> file = ProgramFile::open(path);
    if (file->records().size() != 1 || file->records()[0].variant != describe(variant)) return nullptr;
    (void)file->image(file->records()[0]);
    return kept().files[path.string()] = std::move(file);
  } catch (const Error&) {
    return nullptr;
  }
}

std::shared_ptr<const ProgramFile> BuiltPrograms::build(const Variant& variant, const Workload& workload,
                                                        const DeviceFacts& device) {
  const std::string path = path_of(variant, device.arch).string();
  std::promise<File> promise;
  {
    std::unique_lock lock(kept().mutex);
    if (const auto at = kept().files.find(path); at != kept().files.end()) return at->second;
    if (const auto at = kept().builds.find(path); at != kept().builds.end()) {
      const std::shared_future<File> other = at->second;
      lock.unlock();
      return other.get();
    }
    kept().builds.emplace(path, promise.get_future().share());
  }
  const auto ends = [&](const File& file) {
    const std::lock_guard lock(kept().mutex);
    kept().builds.erase(path);
    if (file != nullptr) kept().files[path] = file;
  };
  try {
    const File file = build_alone(variant, workload, device);
    ends(file);
    promise.set_value(file);
    return file;
  } catch (...) {
    ends(nullptr);
    promise.set_exception(std::current_exception());
    throw;
  }
}

std::shared_ptr<const ProgramFile> BuiltPrograms::build_alone(const Variant& variant, const Workload& workload,
                                                              const DeviceFacts& device) const {
  compile::GpuSource source{.source = variant.unit(), .headers = {}, .arch = device.arch};
  for (const std::string& path : compile::included_by(source.source))
    source.headers.emplace_back(path, compile::device_file(path));
  const compile::GpuBinary binary = compile::compile_gpu(source);
  if (!binary.ok)
    throw Error(ErrorCode::build_failed, fmt::format("{} does not build: {}", variant.id(), binary.log), variant.id());
  ProgramFileWriter writer(compile::source_digest());
  ProgramRecord record;
  record.arch = device.arch;
  record.workload = to_string(workload);
  record.variant = describe(variant);
  record.origin = "rule";
  writer.add(record, binary.image);
  const fs::path path = path_of(variant, device.arch);
  std::string bytes = writer.bytes();
  try {
    if (folder_.empty()) throw Error(ErrorCode::cache, "there is no cache folder");
    make_folder(folder_, ErrorCode::cache);
    write_file_atomically(path, bytes, ErrorCode::cache);
  } catch (const Error&) {
    // A home that cannot be written to keeps nobody from running what was built.
  }
  return ProgramFile::parse(std::move(bytes), path.string());
}

void BuiltPrograms::start(const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  background().add(path_of(variant, device.arch).string(), [programs = *this, variant, workload, device]() mutable {
    programs.build(variant, workload, device);
  });
}

BuiltPrograms::Progress BuiltPrograms::progress(const Variant& variant, const std::string& arch) const {
  return background().progress(path_of(variant, arch).string());
}

std::size_t BuiltPrograms::wait(double seconds) {
  return background().wait(seconds);
}

}  // namespace heed::dispatch
