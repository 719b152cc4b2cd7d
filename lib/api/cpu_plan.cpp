// Plans on a CPU: a shared object out of memory, its blocks shared by pinned threads or by those of the caller.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "api/cpu_launcher.hpp"
#include "api/places.hpp"
#include "api/plan.hpp"
#include "api/problem_scales.hpp"
#include "base/files.hpp"
#include "base/matrix_unit.hpp"
#include "dispatch/architecture.hpp"
#include "launch/caller_threads.hpp"
#include "launch/cpu_threads.hpp"
#include "padding/padding.hpp"

namespace heed::api {
namespace {

// A path of an open file that no path before it equals. A loader takes an object of an equal path for the one that it
// has, whatever the file is by now, and numbers of files come again as soon as one is closed. So the bits of a serial
// number are in it: "/." and "/" lead nowhere else.
std::string unique_path(int file) {
  static std::atomic<std::uint64_t> last{0};
  std::string path = "/proc/self/fd";
  for (std::uint64_t serial = ++last; serial > 0; serial >>= 1) path += (serial & 1) != 0 ? "/." : "/";
  return fmt::format("{}/{}", path, file);
}

// A shared object in memory that no file backs: dlopen takes a path, and a memory file has one.
// https://man7.org/linux/man-pages/man2/memfd_create.2.html
class LoadedObject {
 public:
  explicit LoadedObject(std::string_view image, const char* entry) {
    const int file = ::memfd_create("heed program", MFD_CLOEXEC);
    if (file < 0) throw Error(ErrorCode::internal, "a memory file cannot be made: " + last_system_error());
    for (std::size_t written = 0; written < image.size();) {
      const ssize_t bytes = ::write(file, image.data() + written, image.size() - written);
      if (bytes <= 0) {
        ::close(file);
        throw Error(ErrorCode::internal, "a memory file cannot be written: " + last_system_error());
      }
      written += static_cast<std::size_t>(bytes);
    }
    handle_ = ::dlopen(unique_path(file).c_str(), RTLD_NOW | RTLD_LOCAL);
    ::close(file);
    if (handle_ == nullptr)
      throw Error(ErrorCode::programs, fmt::format("the program cannot be loaded: {}", ::dlerror()));
    entry_ = reinterpret_cast<CpuEntry>(::dlsym(handle_, entry));
    if (entry_ == nullptr) {
      ::dlclose(handle_);
      throw Error(ErrorCode::programs, fmt::format("the program has no entry {}", entry), entry);
    }
  }
  ~LoadedObject() { ::dlclose(handle_); }
  LoadedObject(const LoadedObject&) = delete;
  LoadedObject& operator=(const LoadedObject&) = delete;

  [[nodiscard]] CpuEntry entry() const { return entry_; }

 private:
  void* handle_ = nullptr;
  CpuEntry entry_ = nullptr;
};

template <typename Key, typename Value, typename Make>
std::shared_ptr<Value> shared_by(std::map<Key, std::weak_ptr<Value>>& all, std::mutex& mutex, const Key& key,
                                 const Make& make) {
  const std::lock_guard lock(mutex);
  std::shared_ptr<Value> value = all[key].lock();
  if (value == nullptr) all[key] = value = make();
  return value;
}

std::shared_ptr<LoadedObject> loaded(const Choice& choice, const LaunchPlan& launch) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<LoadedObject>> objects;
  return shared_by(objects, mutex, choice.digest,
                   [&] { return std::make_shared<LoadedObject>(*choice.image, launch.entry.c_str()); });
}

std::shared_ptr<CpuThreads> threads_of(int count) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<CpuThreads>> pools;
  return shared_by(pools, mutex, count, [&] { return std::make_shared<CpuThreads>(count); });
}

class CpuPlan final : public Plan {
 public:
  CpuPlan(const Problem& problem, Choice choice, const LaunchPlan& launch, bool debug)
      : Plan(problem, std::move(choice), launch), debug_(debug) {
    choice_.image.reset();
  }

  /// @param threads that share the blocks, whatever number of them the program was cut for
  void load(std::shared_ptr<LoadedObject> object, std::shared_ptr<CpuLauncher> threads) {
    object_ = std::move(object);
    threads_ = std::move(threads);
  }

  void prepare(void* workspace, void*) const override {
    require_workspace(workspace);
    if (semaphore_bytes_ > 0) std::memset(workspace, 0, semaphore_bytes_);
  }

  double run(const heed_tensors* tensors, std::size_t count, void* workspace, void*, std::uint32_t) const override {
    if (problem_.is_empty) return 0;
    if (!problem_.has_keys) {
      for (std::size_t i = 0; i < count; ++i) write_empty_rows(checked(tensors[i], nullptr));
      return 0;
    }
    require_workspace(workspace);
    if (count == 1) {
      const FeatureParams one = bound_within(tensors[0], workspace);
      return threads_->run(object_->entry(), &one, 1, launch_.grid[0]);
    }
    std::vector<FeatureParams> all;
    all.reserve(count);
    for (std::size_t i = 0; i < count; ++i) all.push_back(bound_within(tensors[i], workspace));
    return threads_->run(object_->entry(), all.data(), static_cast<long long>(count), launch_.grid[0]);
  }

 private:
  void write_empty_rows(const Addresses& at) const {
    const TensorSizes o = problem_.o_sizes();
    for (std::int64_t b = 0; b < o.batch; ++b)
      for (std::int64_t h = 0; h < o.heads; ++h)
        for (std::int64_t row = 0; row < o.rows; ++row) {
          const std::int64_t offset = b * problem_.o.batch + h * problem_.o.head + row * problem_.o.row;
          std::memset(static_cast<char*>(at.o) + offset * bytes_.o, 0,
                      static_cast<std::size_t>(o.dim) * static_cast<std::size_t>(bytes_.o));
          if (at.lse != nullptr)
            at.lse[(b * o.heads + h) * o.rows + row] =
                at.sinks != nullptr ? at.sinks[h] : -std::numeric_limits<float>::infinity();
        }
  }

  // With the addresses of a run, whose rows are found where they may be.
  [[nodiscard]] FeatureParams bound_within(const heed_tensors& tensors, void* workspace) const {
    const Addresses at = checked(tensors, workspace);
    if (debug_) expect_places(problem_, {at.cu_seqlens_q, at.cu_seqlens_k, at.seqused_k, at.page_table});
    if (at.cu_seqlens_q != nullptr) expect_within("cu_seqlens_q", at.cu_seqlens_q, problem_.total_q);
    if (at.cu_seqlens_k != nullptr) expect_within("cu_seqlens_k", at.cu_seqlens_k, problem_.total_k);
    const FeatureParams launch = bound(at, workspace);
    expect_factors(problem_, launch);
    return launch;
  }
  void expect_within(const char* name, const std::int32_t* begins, std::int64_t total) const {
    for (std::int64_t b = 0; b <= problem_.workload.batch; ++b)
      if (begins[b] < 0 || begins[b] > total)
        throw Error(ErrorCode::usage,
                    fmt::format("{}[{}] is {}; the tensor has rows 0 to {}", name, b, begins[b], total - 1),
                    std::to_string(begins[b]));
  }

  bool debug_;
  std::shared_ptr<LoadedObject> object_;
  std::shared_ptr<CpuLauncher> threads_;
};

class CpuCopies final : public Copies {
 public:
  void run(std::span<const padding::RowCopy> copies, void*) const override {
    for (const padding::RowCopy& copy : copies) padding::copy_on_host(copy);
  }
};

}  // namespace

std::shared_ptr<CpuLauncher> cpu_launcher(const Options& options, const DeviceFacts& device, long long scratch_bytes) {
  const int threads = options.threads > 0 ? options.threads : device.processors;
  if (options.parallel_for.call != nullptr)
    return std::make_shared<CallerThreads>(options.parallel_for, threads, scratch_bytes);
  std::shared_ptr<CpuThreads> own = threads_of(threads);
  if (!own->reserve(scratch_bytes)) throw std::bad_alloc();
  return own;
}

std::unique_ptr<Copies> make_cpu_copies() {
  return std::make_unique<CpuCopies>();
}

std::unique_ptr<Plan> make_cpu_plan(const Problem& problem, const Options& options, Choice choice,
                                    const DeviceFacts& device) {
  if (problem.is_empty || !problem.has_keys)
    return std::make_unique<CpuPlan>(problem, std::move(choice), LaunchPlan{}, options.debug);
  (void)allow_matrix_unit();
  // Scratch grows with the width of vectors.
  const LaunchPlan launch = choice.variant.plan(problem.workload, dispatch::facts_for(choice.arch, device));
  std::shared_ptr<LoadedObject> object = loaded(choice, launch);
  std::shared_ptr<CpuLauncher> threads = cpu_launcher(options, device, launch.shared_bytes);
  auto plan = std::make_unique<CpuPlan>(problem, std::move(choice), launch, options.debug);
  plan->load(std::move(object), std::move(threads));
  return plan;
}

}  // namespace heed::api
