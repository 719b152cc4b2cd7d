// Which program a problem gets, and whether its tensors are copied or its batch divided for it.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "api/builds.hpp"
#include "api/choice.hpp"
#include "api/listed_plan.hpp"
#include "api/opened_files.hpp"
#include "api/plan.hpp"
#include "api/precision.hpp"
#include "base/digest.hpp"
#include "device/device.hpp"
#include "dispatch/architecture.hpp"
#include "dispatch/object_arch.hpp"
#include "padding/padding.hpp"
#include "variant/element.hpp"
#include "workload/mask.hpp"

namespace heed::api {
namespace {

constexpr const char* kProgramsName = "heed.programs";

// Beside the library, whichever folder it was loaded from.
std::filesystem::path own_programs() {
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&heed_version), &library) == 0 || library.dli_fname == nullptr)
    return kProgramsName;
  return std::filesystem::path(library.dli_fname).parent_path() / kProgramsName;
}

std::shared_ptr<const dispatch::Programs> programs_of(const Options& options, const DeviceFacts& device) {
  const char* const environment = std::getenv("HEED_PROGRAMS");
  const std::string path = !options.programs.empty()                          ? options.programs
                           : environment != nullptr && environment[0] != '\0' ? std::string(environment)
                                                                              : own_programs().string();
  static OpenedFiles<dispatch::Programs> opened;
  return opened.get(path, device, [&] {
    std::error_code error;
    if (!std::filesystem::exists(path, error))
      throw Error(ErrorCode::programs,
                  fmt::format("cannot read {}: there is no such file. heed programs build -o FILE makes one, and "
                              "HEED_PROGRAMS names it",
                              path),
                  path);
    return std::make_shared<const dispatch::Programs>(dispatch::ProgramFile::open(path), device);
  });
}

}  // namespace

Choice nothing_to_run() {
  Choice choice;
  choice.origin = "library";
  choice.reason = "there is nothing to compute";
  return choice;
}

namespace {

Choice choose_program(const Problem& problem, const Options& options, const DeviceFacts& device) {
  const Workload& w = problem.workload;
  const bool has_image = !options.image.empty();
  const std::string arch =
      has_image && device.kind == DeviceKind::cpu ? dispatch::expect_runnable(options.image, device) : "";
  const DeviceFacts seen = dispatch::facts_for(arch, device);  // by the image's program
  std::optional<Variant> asked;
  if (!options.variant.empty()) {
    asked = parse_variant(options.variant, w, seen);
    if (const auto why = asked->family->refuses(w, seen))
      throw Error(ErrorCode::unsupported,
                  fmt::format("{} cannot run {}: {}", asked->family->name(), to_string(w), *why), to_string(w));
    if (const auto why = has_image ? dispatch::program_is_illegal(*asked, w, seen)
                                   : dispatch::every_program_is_illegal(*asked, w, seen))
      throw Error(ErrorCode::unsupported, fmt::format("{} cannot run {}: {}", describe(*asked), to_string(w), *why),
                  describe(*asked));
  }
  if (has_image)
    return {.variant = *asked,
            .image = std::make_shared<const std::string>(options.image),
            .digest = digest(options.image),
            .origin = "given",
            .reason = "its image was given" + (arch.empty() ? "" : dispatch::fit_remark(arch, device)),
            .arch = arch};
  if (asked) return taken(programs_of(options, device)->find(*asked));
  const auto by_order = [&] {
    return choose_by_order(problem, options, device, [&] { return programs_of(options, device); });
  };
  return device.kind == DeviceKind::cpu ? by_order() : better_of_builds(problem, options, device, by_order);
}

Choice choose(const Problem& problem, const Options& options, const DeviceFacts& device) {
  Choice choice = choose_program(problem, options, device);
  if (options.keeps_kv && problem.device == DeviceKind::cuda) choice.reason += "; " + l2_remark(problem);
  return choice;
}

}  // namespace

std::string layout_refusal(const char* name, const TensorSizes& sizes, const TensorLayout& layout, Dtype dtype,
                           DeviceKind device) {
  const auto unit = static_cast<std::int64_t>(kGpuAlignment / size_of(dtype));
  if (layout.step != 1) return fmt::format("the elements of a row of {} are {} apart", name, layout.step);
  for (const auto& [count, stride] :
       {std::pair{sizes.batch, layout.batch}, std::pair{sizes.heads, layout.head}, std::pair{sizes.rows, layout.row}})
    // https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html: tensor maps have no stride of 0.
    if (device == DeviceKind::cuda && count > 1 && (stride == 0 || stride % unit != 0))
      return fmt::format("a stride of {} is {} elements, no positive multiple of {} (16 bytes)", name, stride, unit);
  return {};
}

namespace {

// Why no kernel reads and writes the tensors of a problem as they lie: rows are of one length, too. Empty where kernels
// do.
std::string layout_refusal(const Problem& p) {
  const Workload& w = p.workload;
  if (p.device == DeviceKind::cuda && w.dim != w.dim_v)
    return fmt::format("the head dims of K and V are {} and {}", w.dim, w.dim_v);
  for (const std::string& refusal : {layout_refusal("Q", p.q_sizes(), p.q, w.dtype_q(), p.device),
                                     layout_refusal("K", p.k_sizes(), p.k, w.dtype_k(), p.device),
                                     layout_refusal("V", p.v_sizes(), p.v, w.dtype_v(), p.device),
                                     layout_refusal("O", p.o_sizes(), p.o, w.dtype, p.device)})
    if (!refusal.empty()) return refusal;
  return {};
}

Problem copied(const Problem& problem, std::int64_t dim, std::int64_t dim_v) {
  Problem p = problem;
  p.workload = padding::padded(problem.workload, dim, dim_v);
  const auto dense = [](const TensorSizes& s) {
    return TensorLayout{{s.heads * s.rows * s.dim, s.rows * s.dim, s.dim}, 1};
  };
  p.q = dense(p.q_sizes());
  p.k = dense(p.k_sizes());
  p.v = dense(p.v_sizes());
  p.o = dense(p.o_sizes());
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

namespace {

Choice choose_helper(const Options& options, const DeviceFacts& device, const char* does,
                     const dispatch::ProgramRecord* (dispatch::Programs::*find)() const) {
  const auto programs = programs_of(options, device);
  const dispatch::ProgramRecord* record = ((*programs).*find)();
  if (record == nullptr)
    throw Error(ErrorCode::unsupported,
                fmt::format("{} holds no program that {} on {}, which this problem needs; make it anew with "
                            "heed programs build",
                            programs->file().name(), does, device.arch),
                device.arch);
  Choice choice;
  choice.image = programs->file().kept_image(*record);
  choice.digest = record->digest;
  choice.origin = programs->file().name();
  choice.arch = record->arch;
  return choice;
}

}  // namespace

Choice choose_copies(const Options& options, const DeviceFacts& device) {
  return choose_helper(options, device, "copies rows", &dispatch::Programs::find_copies);
}
Choice choose_merge(const Options& options, const DeviceFacts& device) {
  return choose_helper(options, device, "merges partial results", &dispatch::Programs::find_merge);
}
Choice choose_lister(const Options& options, const DeviceFacts& device) {
  return choose_helper(options, device, "lists blocks of keys", &dispatch::Programs::find_lister);
}
Choice choose_quantiser(const Options& options, const DeviceFacts& device) {
  return choose_helper(options, device, "quantises inputs", &dispatch::Programs::find_quantiser);
}
Choice choose_lost(const Options& options, const DeviceFacts& device) {
  return choose_helper(options, device, "counts what quantising loses", &dispatch::Programs::find_lost);
}

Choice choose_append(const Options& options, const DeviceFacts& device) {
  return choose_helper(options, device, "appends to a cache", &dispatch::Programs::find_append);
}

namespace {

Decision decide_at_once(const Problem& problem, const Options& options, const DeviceFacts& device) {
  if (problem.is_empty) return {problem, nothing_to_run(), false};
  const Workload& w = problem.workload;
  // The host sets such rows, and cannot read the sinks, which the GPU may not have computed yet.
  if (problem.device == DeviceKind::cuda && !problem.has_keys && w.sinks && problem.wants_lse)
    throw Error(ErrorCode::unsupported,
                "a log-sum-exp of sinks without keys is not supported on a GPU; give one key, and HEED_KEY_LENGTHS "
                "with a length of 0",
                to_string(w));
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
      // What a caller brings is for the problem as it is.
      if (error.code() != ErrorCode::unsupported || !options.variant.empty()) throw;
      refusal = error;
    }
  }
  if (w.quantised) {
    if (refusal) throw Error(*refusal);
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}, and no tensors are copied beside quantised ones; give tensors of equal head dims whose "
                    "rows are contiguous{}",
                    lies, problem.device == DeviceKind::cuda ? ", with strides of whole 16 bytes" : ""),
        to_string(w));
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;
  if (w.dim == w.dim_v) dims.emplace_back(w.dim, w.dim_v);
  for (const std::int64_t dim : padding::padded_dims(w)) dims.emplace_back(dim, dim);
  // While the program of the problem as it is is being built, none of a copy's is.
  Options chosen = options;
  const bool is_building = refusal && options.build == HEED_BUILD_BACKGROUND && is_being_built(problem, device);
  if (is_building) chosen.build = HEED_BUILD_OFF;
  for (const auto& [dim, dim_v] : dims) {
    Problem inner = copied(problem, dim, dim_v);
    if (!problem.has_keys) return {inner, nothing_to_run(), true};
    try {
      Choice choice = choose(inner, chosen, device);
      choice.reason += remark_on_copies(problem, inner);
      if (is_building) choice.reason += "; a program that needs no copies is being built";
      choice.is_building = choice.is_building || is_building;
      return {inner, std::move(choice), true};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      if (!refusal) refusal = error;
    }
  }
  if (refusal) throw Error(*refusal);
  throw Error(
      ErrorCode::unsupported,
      fmt::format("{}, and no program takes copies of tensors with head_dim {} and head_dim_v {}; give tensors whose "
                  "last dimension is contiguous, or equal head dims",
                  lies, w.dim, w.dim_v),
      fmt::format("{}x{}", w.dim, w.dim_v));
}

}  // namespace

Problem of_batch(const Problem& problem, std::int64_t batch) {
  Problem part = problem;
  part.workload.batch = batch;
  return part;
}

Problem of_heads(const Problem& problem, std::int64_t heads) {
  Problem part = problem;
  const std::int64_t group = problem.workload.heads / problem.workload.heads_kv;
  part.workload.heads = heads;
  part.workload.heads_kv = std::max<std::int64_t>(1, heads / group);
  return part;
}

namespace {

constexpr std::int64_t kMostOfGrid = 65535;  // blocks of a grid's second and third dimension

std::int64_t parts_of(std::int64_t count, std::int64_t most) {
  return (count + most - 1) / most;
}

Decision decide_by_batch(const Problem& problem, std::int64_t batch, const Options& options,
                         const DeviceFacts& device) {
  Decision decision = decide(of_batch(problem, batch), options, device);
  decision.batch = batch;
  decision.heads = 0;
  decision.choice.reason += fmt::format("; {} batch entries are {} launches", problem.workload.batch,
                                        parts_of(problem.workload.batch, batch));
  return decision;
}

// Whole groups where a launch takes one, so that it has whole heads of K and V.
Decision decide_by_heads(const Problem& problem, const Options& options, const DeviceFacts& device) {
  const Workload& w = problem.workload;
  const std::int64_t group = w.heads / w.heads_kv;
  if (group > kMostOfGrid && w.heads_kv > 1)
    throw Error(ErrorCode::unsupported, fmt::format("{} heads of a group; a launch takes {}", group, kMostOfGrid));
  const std::int64_t heads = group > kMostOfGrid ? kMostOfGrid : kMostOfGrid / group * group;
  Decision decision = decide_at_once(of_heads(problem, heads), options, device);
  decision.heads = heads;
  decision.choice.reason += fmt::format("; {} heads are {} launches", w.heads, parts_of(w.heads, heads));
  return decision;
}

}  // namespace

Decision decide(const Problem& problem, const Options& options, const DeviceFacts& device) {
  const Workload& w = problem.workload;
  try {
    return decide_at_once(problem, options, device);
  } catch (const Error& error) {
    // The dropout of a row goes by the number of the head among all.
    const bool many_heads = w.heads > kMostOfGrid && w.dropout == 0;
    if (error.code() != ErrorCode::unsupported || (w.batch <= kMostOfGrid && !many_heads)) throw;
    try {
      if (w.batch > kMostOfGrid) return decide_by_batch(problem, kMostOfGrid, options, device);
      // Log-sum-exps of an entry's heads lie together.
      if (w.batch > 1 && !w.ragged) return decide_by_batch(problem, 1, options, device);
      return decide_by_heads(problem, options, device);
    } catch (const Error&) {
      throw error;
    }
  }
}

}  // namespace heed::api
