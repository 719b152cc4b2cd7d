#include "jit/build.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/digest.hpp"
#include "base/files.hpp"
#include "base/parallel.hpp"
#include "compile/embedded.hpp"
#include "compile/nvrtc.hpp"
#include "jit/elf.hpp"
#include "jit/machine_code.hpp"
#include "jit/shared_object.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "process/timeline.hpp"

namespace heed::jit {
namespace fs = std::filesystem;
namespace {

// Of the JSON beside a binary and of the audit whose findings it holds; part of the key, so that another is another
// entry.
constexpr int kAttempts = 3;  // at a build that something outside kills
constexpr int kFormat = 6;

// make_host_toolchain names both on the command line of every build.
constexpr const char* kGivenToHostCompiler[] = {"cpu/exports.map", "cpu/freestanding.hpp"};

nlohmann::json to_json(const Artifact& artifact, const std::string& digest) {
  const Resources& r = artifact.resources;
  return {{"digest", digest},
          {"machine_code", artifact.machine_code},
          {"violation", artifact.violation},
          {"audit", artifact.audit},
          {"log", artifact.log},
          {"build_ms", artifact.build_ms},
          {"processor_s", artifact.processor_s},
          {"registers", r.registers},
          {"spill_store_bytes", r.spill_store_bytes},
          {"spill_load_bytes", r.spill_load_bytes},
          {"stack_bytes", r.stack_bytes},
          {"static_shared_bytes", r.static_shared_bytes},
          {"code_bytes", r.code_bytes}};
}

Artifact from_json(const nlohmann::json& json) {
  Artifact artifact;
  artifact.machine_code = json.at("machine_code").get<std::string>();
  artifact.violation = json.at("violation").get<std::string>();
  artifact.audit = json.at("audit").get<std::string>();
  artifact.log = json.at("log").get<std::string>();
  artifact.build_ms = json.at("build_ms").get<double>();
  artifact.processor_s = std::max(0.0, json.value("processor_s", 0.0));
  artifact.resources = {json.at("registers").get<int>(),           json.at("spill_store_bytes").get<int>(),
                        json.at("spill_load_bytes").get<int>(),    json.at("stack_bytes").get<int>(),
                        json.at("static_shared_bytes").get<int>(), json.at("code_bytes").get<std::int64_t>()};
  return artifact;
}

// Digest, sizes and violations of a shared object of the host.
void audit_shared_object(const BuildRequest& request, std::string_view bytes, Artifact& artifact) {
  const SharedObject object = parse_shared_object(bytes);
  artifact.audit = "shared object";
  artifact.resources.code_bytes = code_bytes(object);
  artifact.machine_code = machine_code_digest(object);
  if (artifact.violation.empty()) artifact.violation = contract_violation_in_shared_object(object, request.entry);
}

// The same of a cubin, whatever its PTX showed.
void audit_cubin(const BuildRequest& request, std::string_view bytes, Artifact& artifact) {
  const ElfFile elf = parse_elf(bytes);
  artifact.resources = parse_ptxas_report(artifact.log);
  artifact.resources.code_bytes = code_bytes(elf);
  artifact.machine_code = machine_code_digest(elf);
  if (artifact.violation.empty()) artifact.violation = contract_violation_in_cubin(elf, request.entry);
  const MachineCodeAudit code = audit_machine_code(
      elf, request.arch,
      {.supports_pdl = request.supports_pdl, .semaphores = request.semaphores, .entry = request.entry});
  artifact.audit =
      code.decoded ? "PTX and machine code" : fmt::format("PTX; machine code of {} not decoded", request.arch);
  if (artifact.violation.empty()) artifact.violation = code.violation;
}

// And of PTX.
void audit_ptx(std::string_view text, Artifact& artifact) {
  artifact.audit = "PTX";
  artifact.resources.code_bytes = static_cast<std::int64_t>(text.size());
  artifact.machine_code = digest(text);
}

}  // namespace

Artifact audited(const BuildRequest& request, std::string_view bytes) {
  Artifact artifact;
  if (request.device == DeviceKind::cpu)
    audit_shared_object(request, bytes, artifact);
  else
    audit_cubin(request, bytes, artifact);
  return artifact;
}

BuildRequest request_for(const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  const LaunchPlan plan = variant.plan(workload, device);
  return {.device = device.kind,
          .arch = device.arch,
          .source = variant.unit(),
          .entry = plan.entry,
          .supports_pdl = plan.supports_pdl,
          // A family's program may serve workloads that need semaphores and others that need none.
          .semaphores = plan.semaphores > 0 || variant.is_as_carried(),
          .overlay = variant.overlay};
}

Cache::Cache(const fs::path& folder) : folder_(fs::absolute(folder)) {
  try {
    make_folder(folder_, ErrorCode::cache);
  } catch (const Error& error) {
    throw Error(ErrorCode::cache, fmt::format("{}; name another with --cache", error.what()), error.value());
  }
  if (::access(folder_.c_str(), R_OK | W_OK | X_OK) != 0)
    throw Error(ErrorCode::cache,
                fmt::format("the cache folder {} cannot be used: {}; name another with --cache", folder_.string(),
                            last_system_error()),
                folder_.string());
}

void Cache::expect_loadable() const {
  struct statvfs info {};
  if (::statvfs(folder_.c_str(), &info) == 0 && (info.f_flag & ST_NOEXEC) != 0)
    throw Error(
        ErrorCode::cache,
        fmt::format("kernels in the cache folder {} cannot be loaded: its file system is mounted noexec; name a "
                    "folder of another with --cache",
                    folder_.string()),
        folder_.string());
}

std::set<std::string> files_of(const BuildRequest& request) {
  std::set<std::string> files = compile::included_by(request.source, request.overlay.get());
  if (request.device == DeviceKind::cpu)
    for (const char* path : kGivenToHostCompiler) files.emplace(path);
  return files;
}

fs::path Cache::include_folder() const {
  Digester digester;
  for (const auto& [path, content] : compile::device_files()) digester.add(path).add(content);
  return folder_ / fmt::format("include-{}", digester.hex().substr(0, 16));
}

fs::path Cache::include_root() {
  const fs::path root = include_folder();
  for (const auto& [name, content] : compile::device_files()) {
    const fs::path path = root / name;
    std::error_code error;
    if (fs::exists(path, error) && read_file(path, ErrorCode::cache) == content) continue;
    make_folder(path.parent_path(), ErrorCode::cache);
    write_file_atomically(path, content, ErrorCode::cache);
  }
  return root;
}

bool Cache::has_includes() const {
  const fs::path root = include_folder();
  std::error_code error;
  for (const auto& [name, content] : compile::device_files())
    if (!fs::exists(root / name, error)) return false;
  return true;
}

std::string Cache::key_of(const BuildRequest& request, const Toolchain& toolchain) {
  Digester headers;
  for (const std::string& path : files_of(request))
    headers.add(path).add(compile::device_file(path, request.overlay.get()));
  return Digester()
      .add(std::to_string(kFormat))
      .add(headers.hex())
      .add(to_string(request.device))
      .add(request.arch)
      .add(toolchain.identity(request))
      .add(request.entry)
      .add(request.supports_pdl ? "supports_pdl" : "")
      .add(request.semaphores ? "semaphores" : "")
      .add(request.source)
      .hex();
}

std::optional<Artifact> Cache::find(const std::string& key, const std::string& extension) {
  const fs::path binary = folder_ / fmt::format("{}.{}", key, extension);
  const fs::path record = folder_ / fmt::format("{}.json", key);
  std::error_code error;
  if (!fs::exists(record, error)) return std::nullopt;
  try {
    const auto json = parse_json(read_file(record, ErrorCode::cache));
    if (json.at("digest").get<std::string>() == digest(read_file(binary, ErrorCode::cache))) {
      Artifact artifact = from_json(json);
      artifact.path = binary;
      artifact.from_cache = true;
      return artifact;
    }
  } catch (const nlohmann::json::exception&) {
  } catch (const Error&) {
  }
  fs::remove(record, error);  // the record first: without it the binary counts for nothing
  fs::remove(binary, error);
  return std::nullopt;
}

fs::path Cache::temporary(const std::string& key) {
  static std::atomic<unsigned> counter{0};
  make_folder(folder_, ErrorCode::cache);
  return folder_ / fmt::format(".{}.{}.{}.tmp", key, ::getpid(), counter++);
}

Artifact Cache::store(const std::string& key, const std::string& extension, const fs::path& built, Artifact artifact) {
  const std::string bytes = read_file(built, ErrorCode::cache);
  std::error_code error;
  fs::remove(built, error);
  artifact.path = folder_ / fmt::format("{}.{}", key, extension);
  make_folder(folder_, ErrorCode::cache);
  write_file_atomically(artifact.path, bytes, ErrorCode::cache);
  write_file_atomically(folder_ / fmt::format("{}.json", key), to_json(artifact, digest(bytes)).dump(1),
                        ErrorCode::cache);
  return artifact;
}

Builder::Builder(const BuilderOptions& options) : options_(options), cache_(options.cache_folder) {
  const int jobs = options.jobs > 0 ? options.jobs : available_processors();
  for (int i = 0; i < jobs; ++i) threads_.emplace_back([this] { work(); });
}

Builder::~Builder() {
  {
    const std::lock_guard lock(queue_mutex_);
    stopping_ = true;
    queue_.clear();
  }
  queue_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Builder::work() {
  for (;;) {
    std::packaged_task<BuildOutcome()> task;
    {
      std::unique_lock lock(queue_mutex_);
      queue_changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      task = std::move(queue_.begin()->second);
      queue_.erase(queue_.begin());
    }
    task();
  }
}

std::future<BuildOutcome> Builder::start(BuildRequest request, bool fresh, std::int64_t turn) {
  std::packaged_task<BuildOutcome()> task([this, request = std::move(request), fresh] { return run(request, fresh); });
  std::future<BuildOutcome> future = task.get_future();
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.emplace(turn, std::move(task));
  }
  queue_changed_.notify_one();
  return future;
}

const Toolchain& Builder::toolchain(DeviceKind device) {
  const std::lock_guard lock(toolchain_mutex_);
  std::unique_ptr<Toolchain>& slot = device == DeviceKind::cpu ? host_ : nvrtc_;
  if (!slot)
    slot = device == DeviceKind::cpu ? make_host_toolchain(options_.host_compiler, cache_.include_root())
                                     : make_nvrtc_toolchain();
  return *slot;
}

void Builder::keep(const Artifact& artifact, const BuildRequest& request) {
  std::error_code error;
  if (fs::exists(artifact.path, error)) return;
  const BuildOutcome again = build(request, /*fresh=*/true);
  if (!again.artifact || again.artifact->path != artifact.path || again.artifact->machine_code != artifact.machine_code)
    throw Error(
        ErrorCode::cache,
        fmt::format("{} was deleted while it was needed, and cannot be built again as it was", artifact.path.string()),
        artifact.path.string());
}

BuildOutcome Builder::run(const BuildRequest& request, bool fresh) {
  const Toolchain& compiler = toolchain(request.device);
  if (request.device == DeviceKind::cpu) cache_.expect_loadable();
  const std::string key = Cache::key_of(request, compiler);
  struct Mine {  // no other worker builds the same meanwhile
    Mine(Builder& of, const std::string& what) : builder(of), key(what) {
      std::unique_lock lock(builder.keys_mutex_);
      builder.keys_changed_.wait(lock, [&] { return !builder.keys_.contains(key); });
      builder.keys_.insert(key);
    }
    ~Mine() {
      {
        const std::lock_guard lock(builder.keys_mutex_);
        builder.keys_.erase(key);
      }
      builder.keys_changed_.notify_all();
    }
    Mine(const Mine&) = delete;
    Mine& operator=(const Mine&) = delete;
    Builder& builder;
    const std::string& key;
  } const mine(*this, key);
  if (!fresh)
    if (std::optional<Artifact> found = cache_.find(key, compiler.extension()))
      return {.artifact = std::move(found), .timed_out = false, .log = {}};
  return compile(request, compiler, key);
}

BuildOutcome Builder::compile(const BuildRequest& request, const Toolchain& compiler, const std::string& key) {
  const TimelineRange range("build", key);
  const auto start = std::chrono::steady_clock::now();
  fs::path output = cache_.temporary(key);
  Toolchain::Result result = compiler.compile(request, output, options_.limit_s);
  // Someone may have deleted the cache under the compiler's hands, with what it includes and what it wrote: once more.
  const auto is_lost = [&] {
    std::error_code error;
    return !fs::exists(output.parent_path(), error) || (result.ok && !fs::exists(output, error)) ||
           (request.device == DeviceKind::cpu && !cache_.has_includes());
  };
  if (is_lost()) {
    if (request.device == DeviceKind::cpu) (void)cache_.include_root();
    output = cache_.temporary(key);
    result = compiler.compile(request, output, options_.limit_s);
  }
  for (int attempt = 1; result.killed && attempt < kAttempts; ++attempt)
    result = compiler.compile(request, output, options_.limit_s);
  if (result.killed)
    result.log = fmt::format(
        "something outside killed the compiler, {} times in a row, as the system does where memory "
        "runs out\n{}",
        kAttempts, result.log);
  if (!result.ok) {
    std::error_code error;
    fs::remove(output, error);
    check_interrupt();  // which ends compilers, too
    return {.artifact = std::nullopt, .timed_out = result.timed_out, .log = result.log};
  }
  Artifact artifact;
  artifact.build_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  artifact.processor_s = result.processor_s;
  artifact.log = result.log;
  const std::string bytes = read_file(output, ErrorCode::cache);
  artifact.violation = result.violation;
  if (request.device == DeviceKind::cpu)
    audit_shared_object(request, bytes, artifact);
  else if (compile::is_virtual_arch(request.arch))
    audit_ptx(bytes, artifact);
  else
    audit_cubin(request, bytes, artifact);
  return {
      .artifact = cache_.store(key, compiler.extension(), output, std::move(artifact)), .timed_out = false, .log = {}};
}

}  // namespace heed::jit
