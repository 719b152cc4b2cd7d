/// Builds with a cache in front and a pool of workers behind.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "jit/artifact.hpp"
#include "jit/toolchain.hpp"

namespace heed::jit {

/// Device sources that a build reads: what the source includes, directly or not, and what the compiler of that device
/// is given with every build.
std::set<std::string> files_of(const BuildRequest& request);

/// Binaries by the digest of everything that decides them: the source and the headers it includes, compiler, version,
/// options and architecture. An entry is a binary and a JSON file beside it, written last, that names the binary's own
/// digest; an entry whose digest does not fit (a torn write, a flipped bit) is removed and built again. The folder may
/// be deleted at any time: it is made again, and what was in it is built again.
class Cache {
 public:
  /// @throws Error(cache) when the folder cannot be created or written to
  explicit Cache(const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// @throws Error(cache) where programs of the folder cannot be loaded: its file system is mounted noexec. Of a
  /// kernel for a CPU that would look like a fault of the kernel.
  void expect_loadable() const;
  /// Where the device sources lie as files, for compilers that read files. Written where they are missing.
  [[nodiscard]] std::filesystem::path include_root();

  [[nodiscard]] bool has_includes() const;

  [[nodiscard]] static std::string key_of(const BuildRequest& request, const Toolchain& toolchain);
  /// The entry, if it is there and whole.
  [[nodiscard]] std::optional<Artifact> find(const std::string& key, const std::string& extension);
  /// A name beside the entries for a compiler to write to; `store` renames it.
  [[nodiscard]] std::filesystem::path temporary(const std::string& key);
  Artifact store(const std::string& key, const std::string& extension, const std::filesystem::path& built,
                 Artifact artifact);

 private:
  [[nodiscard]] std::filesystem::path include_folder() const;
  std::filesystem::path folder_;
};

struct BuilderOptions {
  std::filesystem::path cache_folder;
  std::string host_compiler;  ///< empty: the first found
  int jobs = 0;               ///< builds at a time; 0: one a processor
  double limit_s = 120;       ///< wall clock for one build
};

/// Builds variants, several at a time.
class Builder {
 public:
  explicit Builder(const BuilderOptions& options);
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  /// Starts a build (or a look into the cache). @param fresh ignore a cached binary
  /// @param turn builds that wait for a worker begin lowest first, those of one turn in the order of the calls
  /// The future holds an Error when no compiler or no cache is to be had, an outcome otherwise.
  std::future<BuildOutcome> start(BuildRequest request, bool fresh = false, std::int64_t turn = 0);
  BuildOutcome build(BuildRequest request, bool fresh = false) { return start(std::move(request), fresh).get(); }

  /// Digest of all that decides the binary: equal ones are one binary. Nothing is built. @throws Error(no_compiler)
  [[nodiscard]] std::string key_of(const BuildRequest& request) {
    return Cache::key_of(request, toolchain(request.device));
  }

  /// Sees to it that the binary of an artifact is there: builds it again where the cache has lost it since.
  /// @throws Error(cache) when that gives another binary, which nobody has verified
  void keep(const Artifact& artifact, const BuildRequest& request);

  [[nodiscard]] Cache& cache() { return cache_; }
  [[nodiscard]] const BuilderOptions& options() const { return options_; }
  [[nodiscard]] int jobs() const { return static_cast<int>(threads_.size()); }
  /// @throws Error(no_compiler)
  [[nodiscard]] const Toolchain& toolchain(DeviceKind device);

 private:
  BuildOutcome run(const BuildRequest& request, bool fresh);
  BuildOutcome compile(const BuildRequest& request, const Toolchain& compiler, const std::string& key);
  void work();

  BuilderOptions options_;
  Cache cache_;
  std::mutex toolchain_mutex_;
  std::unique_ptr<Toolchain> host_;
  std::unique_ptr<Toolchain> nvrtc_;
  std::mutex keys_mutex_;
  std::condition_variable keys_changed_;
  std::set<std::string> keys_;  ///< that are being built: who asks for one of them meanwhile finds it in the cache
  std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::multimap<std::int64_t, std::packaged_task<BuildOutcome()>> queue_;  ///< by turn; equal ones keep their order
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace heed::jit
