#include "api/plan.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/digest.hpp"
#include "device/cpu_level.hpp"
#include "device/device.hpp"
#include "padding/padding.hpp"
#include "variant/element.hpp"
#include "workload/mask.hpp"

namespace heed::api {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;
constexpr std::uintptr_t kGpuAlignment = 16;  // of tensors: bulk copies, and rows copied 16 bytes at a time
constexpr int kMostThreads = 4096;
constexpr const char* kProgramsName = "heed.programs";

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Beside the library, whichever folder it was loaded from.
std::filesystem::path own_programs() {
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&heed_version), &library) == 0 || library.dli_fname == nullptr)
    return kProgramsName;
  return std::filesystem::path(library.dli_fname).parent_path() / kProgramsName;
}

// Files are read and parsed once a process and architecture.
std::shared_ptr<const dispatch::Programs> programs_of(const Options& options, const DeviceFacts& device) {
  const char* const environment = std::getenv("HEED_PROGRAMS");
  const std::string path = !options.programs.empty()                          ? options.programs
                           : environment != nullptr && environment[0] != '\0' ? std::string(environment)
                                                                              : own_programs().string();
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const dispatch::Programs>> opened;
  std::error_code error;
  const auto changed = std::filesystem::last_write_time(path, error).time_since_epoch().count();
  const std::string key = fmt::format("{}\n{}\n{}", path, changed, device.arch);
  const std::lock_guard lock(mutex);
  auto& entry = opened[key];
  if (entry == nullptr) entry = std::make_shared<dispatch::Programs>(dispatch::ProgramFile::open(path), device);
  return entry;
}

[[noreturn]] void refuse(const std::string& text, std::string value = {}) {
  throw Error(ErrorCode::usage, text, std::move(value));
}

}  // namespace

Options read_options(const heed_options* given) {
  Options options;
  if (given == nullptr) return options;
  if (given->struct_size != sizeof(heed_options))
    refuse(fmt::format("heed_options has {} bytes; this library reads {}: set it with heed_options_init",
                       given->struct_size, sizeof(heed_options)),
           std::to_string(given->struct_size));
  for (const std::uint64_t word : given->reserved)
    if (word != 0) refuse("reserved fields of heed_options must be 0", std::to_string(word));
  if (given->threads < 0) refuse("the number of threads must not be negative", std::to_string(given->threads));
  if (given->threads > kMostThreads)
    refuse(fmt::format("{} threads were asked for; at most {} share a plan's work", given->threads, kMostThreads),
           std::to_string(given->threads));
  options.threads = given->threads;
  if (given->parallel_for == nullptr && given->parallel_context != nullptr)
    refuse("parallel_context is given without parallel_for, whose first argument it is");
  options.parallel_for = {given->parallel_for, given->parallel_context};
  if (given->programs != nullptr) options.programs = given->programs;
  if (given->variant != nullptr && std::string_view(given->variant) != "auto") options.variant = given->variant;
  if (given->image != nullptr) options.image = {static_cast<const char*>(given->image), given->image_bytes};
  if ((given->image == nullptr) != (given->image_bytes == 0))
    refuse("an image has an address and a number of bytes; one of them is 0");
  if (!options.image.empty() && options.variant.empty()) refuse("an image needs the text of the variant that it is of");
  return options;
}

Choice nothing_to_run() {
  Choice choice;
  choice.origin = "library";
  choice.reason = "there is nothing to compute";
  return choice;
}

namespace {

Choice choose(const Problem& problem, const Options& options, const DeviceFacts& device) {
  const Workload& w = problem.workload;
  std::optional<Variant> asked;
  if (!options.variant.empty()) {
    asked = parse_variant(options.variant, w, device);
    if (const auto why = asked->family->refuses(w, device))
      throw Error(ErrorCode::unsupported,
                  fmt::format("{} cannot run {}: {}", asked->family->name(), to_string(w), *why), to_string(w));
    if (const auto why = dispatch::every_program_is_illegal(*asked, w, device))
      throw Error(ErrorCode::unsupported, fmt::format("{} cannot run {}: {}", describe(*asked), to_string(w), *why),
                  describe(*asked));
  }
  if (!options.image.empty())
    return {*asked, std::string(options.image), digest(options.image), "given", "its image was given", {}};
  const auto programs = programs_of(options, device);
  const dispatch::Selection selection = asked ? programs->find(*asked) : programs->select(w);
  return {selection.variant,        programs->file().image(*selection.record),
          selection.record->digest, programs->file().name(),
          selection.reason,         selection.record->arch};
}

// Why no kernel reads and writes the tensors as they lie: rows are of one length whose elements follow each other, on a
// GPU 16 bytes at a time. Empty where kernels do.
std::string layout_refusal(const Problem& problem) {
  const Workload& w = problem.workload;
  const bool gpu = problem.device == DeviceKind::cuda;
  const std::int64_t unit = static_cast<std::int64_t>(kGpuAlignment) / facts_of(w.dtype).bytes;
  if (gpu && w.dim != w.dim_v) return fmt::format("the head dims of K and V are {} and {}", w.dim, w.dim_v);
  struct Tensor {
    const char* name;
    const TensorLayout& layout;
    std::int64_t heads;
    std::int64_t rows;
  };
  for (const Tensor& t : {Tensor{"Q", problem.q, w.heads, w.len_q}, Tensor{"K", problem.k, w.heads_kv, w.len_k},
                          Tensor{"V", problem.v, w.heads_kv, w.len_k}, Tensor{"O", problem.o, w.heads, w.len_q}}) {
    if (t.layout.step != 1) return fmt::format("the elements of a row of {} are {} apart", t.name, t.layout.step);
    for (const auto& [count, stride] :
         {std::pair{w.batch, t.layout.batch}, std::pair{t.heads, t.layout.head}, std::pair{t.rows, t.layout.row}})
      if (gpu && count > 1 && stride % unit != 0)
        return fmt::format("a stride of {} is {} elements, no multiple of {} (16 bytes)", t.name, stride, unit);
  }
  return {};
}

Problem copied(const Problem& problem, std::int64_t dim, std::int64_t dim_v) {
  Problem p = problem;
  Workload& w = p.workload = padding::padded(problem.workload, dim, dim_v);
  const auto dense = [](std::int64_t heads, std::int64_t rows, std::int64_t columns) {
    return TensorLayout{{heads * rows * columns, rows * columns, columns}, 1};
  };
  p.q = dense(w.heads, w.len_q, w.dim);
  p.k = dense(w.heads_kv, w.len_k, w.dim);
  p.v = dense(w.heads_kv, w.len_k, w.dim_v);
  p.o = dense(w.heads, w.len_q, w.dim_v);
  return p;
}

std::string remark_on_copies(const Problem& problem, const Problem& inner) {
  const Workload& w = problem.workload;
  const Workload& to = inner.workload;
  if (w.dim == to.dim && w.dim_v == to.dim_v)
    return fmt::format("; Q, K, V and O are copied, for {}", layout_refusal(problem));
  return fmt::format("; Q, K, V and O are copied: rows of {} elements to rows of {}",
                     w.dim == w.dim_v ? std::to_string(w.dim) : fmt::format("{} and {}", w.dim, w.dim_v), to.dim);
}

}  // namespace

Choice choose_copies(const Options& options, const DeviceFacts& device) {
  const auto programs = programs_of(options, device);
  const dispatch::ProgramRecord* record = programs->find_copies();
  if (record == nullptr)
    throw Error(ErrorCode::unsupported,
                fmt::format("{} holds no program that copies rows on {}, which this problem needs; make it anew with "
                            "heed programs build",
                            programs->file().name(), device.arch),
                device.arch);
  Choice choice;
  choice.image = programs->file().image(*record);
  choice.digest = record->digest;
  choice.origin = programs->file().name();
  return choice;
}

Decision decide(const Problem& problem, const Options& options, const DeviceFacts& device) {
  if (problem.is_empty) return {problem, nothing_to_run(), false};
  const Workload& w = problem.workload;
  const bool cpu = problem.device == DeviceKind::cpu;
  std::optional<Error> refusal;
  const std::string lies = layout_refusal(problem);
  if (!lies.empty() && !options.image.empty())
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}, which the given program cannot read; give tensors that it can, or leave the image out", lies),
        options.variant);
  if (lies.empty()) {
    if (!problem.has_keys) return {problem, nothing_to_run(), false};
    try {
      return {problem, choose(problem, options, device), false};
    } catch (const Error& error) {
      // What a caller brings is for the problem as it is, and on a CPU every head dim is served so.
      if (error.code() != ErrorCode::unsupported || cpu || !options.variant.empty()) throw;
      refusal = error;
    }
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;
  if (cpu || w.dim == w.dim_v) dims.emplace_back(w.dim, w.dim_v);
  if (!cpu)
    for (const std::int64_t dim : padding::padded_dims(w)) dims.emplace_back(dim, dim);
  for (const auto& [dim, dim_v] : dims) {
    Problem inner = copied(problem, dim, dim_v);
    if (!problem.has_keys) return {inner, nothing_to_run(), true};
    try {
      Choice choice = choose(inner, options, device);
      choice.reason += remark_on_copies(problem, inner);
      return {inner, std::move(choice), true};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      if (!refusal) refusal = error;
    }
  }
  throw *refusal;
}

DeviceFacts facts_of_device(const Problem& problem) {
  if (problem.device == DeviceKind::cpu) {
    const char* const level = std::getenv("HEED_CPU_LEVEL");
    return at_most_level(cpu_facts(), level == nullptr ? "" : level);
  }
  // Asked for once a device: attributes take tens of microseconds.
  static std::mutex mutex;
  static std::map<int, DeviceFacts> known;
  const std::lock_guard lock(mutex);
  const auto at = known.find(problem.ordinal);
  if (at != known.end()) return at->second;
  CudaProbe probe = probe_cuda(problem.ordinal);
  if (!probe.facts)
    throw Error(ErrorCode::no_device, fmt::format("no GPU can be used: {}", probe.reason),
                std::to_string(problem.ordinal));
  return known[problem.ordinal] = *probe.facts;
}

Plan::Plan(const Problem& problem, Choice choice, LaunchPlan launch)
    : problem_(problem),
      choice_(std::move(choice)),
      launch_(std::move(launch)),
      mask_(mask_kind(problem_.workload)),
      element_bytes_(facts_of(problem_.workload.dtype).bytes),
      tensor_alignment_(problem_.device == DeviceKind::cuda ? kGpuAlignment
                                                            : static_cast<std::uintptr_t>(element_bytes_)) {
  const Workload& w = problem_.workload;
  if (choice_.variant.family != nullptr) variant_text_ = describe(choice_.variant);
  const auto differs = [](std::int64_t count, long long a, long long b) { return count > 1 && a != b; };
  if (const auto& own = launch_.o_strides;
      own && (differs(w.batch, own->batch, problem_.o.batch) || differs(w.heads, own->head, problem_.o.head) ||
              differs(w.len_q, own->row, problem_.o.row)))
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} writes outputs of strides ({}, {}, {}) alone, not ({}, {}, {}); give such an output, or "
                    "take the variant with o_layout=strided",
                    variant_text_, launch_.o_strides->batch, launch_.o_strides->head, launch_.o_strides->row,
                    problem_.o.batch, problem_.o.head, problem_.o.row),
        variant_text_);
  semaphore_bytes_ = rounded_up(static_cast<std::size_t>(launch_.semaphores) * sizeof(unsigned));
  workspace_bytes_ = semaphore_bytes_ + rounded_up(static_cast<std::size_t>(launch_.workspace_bytes));
  params_.q_strides = problem_.q;
  params_.k_strides = problem_.k;
  params_.v_strides = problem_.v;
  params_.o_strides = problem_.o;
  params_ = with_sizes(params_, whole_sizes_of(w));
  params_.o_strides = problem_.o;
  params_.scale = static_cast<float>(w.softmax_scale());
  q_bytes_ = extent_bytes(w.batch, w.heads, w.len_q, w.dim, problem_.q, element_bytes_);
  k_bytes_ = extent_bytes(w.batch, w.heads_kv, w.len_k, w.dim, problem_.k, element_bytes_);
  v_bytes_ = extent_bytes(w.batch, w.heads_kv, w.len_k, w.dim_v, problem_.v, element_bytes_);
  o_bytes_ = extent_bytes(w.batch, w.heads, w.len_q, w.dim_v, problem_.o, element_bytes_);
  lse_bytes_ = static_cast<std::uint64_t>(w.batch * w.heads * w.len_q) * sizeof(float);
}

Addresses Plan::checked(const heed_tensors& t) const {
  if (t.struct_size != sizeof(heed_tensors))
    refuse(fmt::format("heed_tensors has {} bytes; this library reads {}: set it with heed_tensors_init", t.struct_size,
                       sizeof(heed_tensors)),
           std::to_string(t.struct_size));
  struct Tensor {
    const char* name;
    const void* address;
    std::uint64_t bytes;
    bool is_needed;
  };
  const Tensor all[] = {{"Q", t.q, q_bytes_, problem_.has_keys},
                        {"K", t.k, k_bytes_, problem_.has_keys},
                        {"V", t.v, v_bytes_, problem_.has_keys},
                        {"O", t.o, o_bytes_, true},
                        {"lse", t.lse, lse_bytes_, problem_.wants_lse}};
  for (const Tensor& tensor : all) {
    if (!tensor.is_needed) continue;
    if (tensor.address == nullptr) refuse(fmt::format("the address of {} is null", tensor.name), tensor.name);
    const std::uintptr_t needed = &tensor == &all[4] ? sizeof(float) : tensor_alignment_;
    if (reinterpret_cast<std::uintptr_t>(tensor.address) % needed != 0)
      refuse(
          fmt::format("{} lies at {}; its address must be a multiple of {} bytes", tensor.name, tensor.address, needed),
          fmt::format("{}", tensor.address));
  }
  const auto overlap = [](const Tensor& a, const Tensor& b) {
    const auto x = reinterpret_cast<std::uintptr_t>(a.address);
    const auto y = reinterpret_cast<std::uintptr_t>(b.address);
    return a.is_needed && b.is_needed && x < y + b.bytes && y < x + a.bytes;
  };
  for (int i = 0; i < 5; ++i)
    for (const int written : {3, 4})
      if (i != written && overlap(all[i], all[written]))
        refuse(fmt::format("{} overlaps {}; outputs must lie apart from every other tensor", all[written].name,
                           all[i].name),
               all[written].name);
  return {t.q, t.k, t.v, t.o, problem_.wants_lse ? t.lse : nullptr};
}

void Plan::require_workspace(const void* workspace) const {
  if (workspace_bytes_ == 0) return;
  if (workspace == nullptr)
    refuse(fmt::format("the workspace is null; this plan takes {} bytes", workspace_bytes_), "null");
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    refuse(fmt::format("the workspace lies at {}; its address must be a multiple of {} bytes", workspace,
                       kWorkspaceAlignment),
           fmt::format("{}", workspace));
}

ForwardParams Plan::bound(const Addresses& at, void* workspace) const {
  ForwardParams p = params_;
  p.q = at.q;
  p.k = at.k;
  p.v = at.v;
  p.o = at.o;
  p.lse = at.lse;
  p.semaphores = launch_.semaphores > 0 ? static_cast<unsigned*>(workspace) : nullptr;
  p.workspace = launch_.workspace_bytes > 0 ? static_cast<char*>(workspace) + semaphore_bytes_ : nullptr;
  return trimmed(p, mask_, element_bytes_);
}

void Plan::info(heed_plan_info& info) const {
  info.can_be_dependent = launch_.supports_pdl ? 1 : 0;
  info.workspace_bytes = workspace_bytes_;
  info.workspace_alignment = kWorkspaceAlignment;
  info.workspace_zeroed = static_cast<std::size_t>(launch_.semaphores) * sizeof(unsigned);
  info.family = choice_.variant.family == nullptr ? "" : choice_.variant.family->name().data();
  info.variant = variant_text_.c_str();
  info.origin = choice_.origin.c_str();
  info.reason = choice_.reason.c_str();
  info.flops = problem_.is_empty || !problem_.has_keys ? 0 : problem_.workload.flops();
  info.o_strides = {};
  if (launch_.o_strides)
    info.o_strides = {launch_.o_strides->batch, launch_.o_strides->head, launch_.o_strides->row, 1};
}

std::unique_ptr<Plan> make_plan(const Problem& problem, const Options& options) {
  const DeviceFacts device = facts_of_device(problem);
  Decision decision = decide(problem, options, device);
  const bool cpu = problem.device == DeviceKind::cpu;
  const auto plan = [&] {
    return cpu ? make_cpu_plan(decision.problem, options, std::move(decision.choice), device)
               : make_gpu_plan(decision.problem, std::move(decision.choice), device);
  };
  if (!decision.is_copied) return plan();
  std::unique_ptr<Copies> copies = cpu ? make_cpu_copies(facts_of(problem.workload.dtype).bytes)
                                       : make_gpu_copies(problem, choose_copies(options, device));
  return make_copied_plan(problem, plan(), std::move(copies));
}

}  // namespace heed::api
