// What launches around a plan's own kernel on a GPU: copies of rows, merges of partial results, quantised inputs, lists
// of blocks, appends to a cache.
#include "api/append_run.hpp"
#include "api/listed_plan.hpp"
#include "api/precision.hpp"

#ifdef HEED_WITH_CUDA

#include <algorithm>
#include <optional>

#include "api/gpu_context.hpp"
#include "append/append.hpp"
#include "merge/merge.hpp"
#include "padding/padding.hpp"
#include "quantise/quantise.hpp"

namespace heed::api {
namespace {

// A program of one kernel, which takes one parameter by value and strides over its work, with as many blocks as a GPU
// runs at a time.
class Helper {
 public:
  Helper(CUcontext current, const Problem& problem, const Choice& program, const char* entry, unsigned threads)
      : context_(current),
        ordinal_(problem.ordinal),
        threads_(threads),
        processors_(static_cast<unsigned>(facts_of_device(problem).processors)),
        program_(loaded(context_, program, launch_of(entry, threads))) {}

  void require(void* stream) const { require_device(context_, ordinal_, stream); }
  [[nodiscard]] unsigned processors() const { return processors_; }

  template <typename Parameter>
  void launch(unsigned blocks, unsigned rows_of_blocks, Parameter& parameter, void* stream, const char* doing,
              bool dependent = false) const {
    CUlaunchConfig config{};
    config.gridDimX = blocks;
    config.gridDimY = rows_of_blocks;
    config.gridDimZ = 1;
    config.blockDimX = threads_;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = static_cast<CUstream>(stream);
    CUlaunchAttribute serialization{};
    serialization.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    serialization.value.programmaticStreamSerializationAllowed = 1;
    config.attrs = &serialization;
    config.numAttrs = dependent ? 1 : 0;
    void* arguments[] = {&parameter};
    check(cuda_driver().launch_kernel_ex(&config, program_->function(), arguments, nullptr), doing);
  }

 private:
  static LaunchPlan launch_of(const char* entry, unsigned threads) {
    LaunchPlan launch;
    launch.entry = entry;
    launch.threads = threads;
    return launch;
  }

  CUcontext context_;
  int ordinal_;
  unsigned threads_;
  unsigned processors_;
  std::shared_ptr<GpuProgram> program_;
};

class GpuCopies final : public Copies {
 public:
  GpuCopies(CUcontext context, const Problem& problem, const Choice& program)
      : helper_(context, problem, program, padding::kCopyEntry, padding::kCopyThreads) {}

  void run(std::span<const padding::RowCopy> copies, void* stream) const override {
    helper_.require(stream);
    padding::RowCopies parameter{};
    std::copy(copies.begin(), copies.end(), parameter.tensors);
    helper_.launch(kBlocksEach * helper_.processors(), static_cast<unsigned>(copies.size()), parameter, stream,
                   "launching the copies");
  }

 private:
  static constexpr unsigned kBlocksEach = 4;  // of a multiprocessor: 1024 threads, each with 16 bytes on the way

  Helper helper_;
};

class GpuQuantiser final : public Quantiser {
 public:
  GpuQuantiser(CUcontext context, const Problem& problem, const Choice& program, const Choice* lost)
      : helper_(context, problem, program, quantise::kQuantiseEntry, quantise::kQuantiseThreads) {
    if (lost != nullptr) lost_.emplace(context, problem, *lost, quantise::kLostEntry, quantise::kQuantiseThreads);
  }

  double quantise(const quantise::Pass& pass, void* stream) const override {
    helper_.require(stream);
    for (const quantise::TensorPass* t : {&pass.q, &pass.k, &pass.v})
      if (t->to != nullptr)
        check(cuda_driver().memset_d8_async(reinterpret_cast<CUdeviceptr>(t->largest), 0,
                                            static_cast<std::size_t>(t->count) * sizeof(unsigned),
                                            static_cast<CUstream>(stream)),
              "clearing largest magnitudes");
    using quantise::Stage;
    if (pass.sums != nullptr)
      for (const Stage stage : {Stage::sums, Stage::means}) launch(pass, stage, 1, stream);
    for (const Stage stage : {Stage::largest, Stage::elements}) launch(pass, stage, 3, stream);
    return 0;
  }
  double shift_lse(const quantise::Pass& pass, void* stream) const override {
    launch(pass, quantise::Stage::lse, 1, stream);
    return 0;
  }
  double quantise_by_given_factors(const quantise::Pass& pass, void* stream) const override {
    helper_.require(stream);
    launch(pass, quantise::Stage::elements, 3, stream);
    return 0;
  }
  std::array<quantise::Lost, 3> lost(const quantise::Pass& pass, void* stream) const override {
    const CudaDriver& cuda = cuda_driver();
    auto* const queue = static_cast<CUstream>(stream);
    require_no_capture(queue);
    const auto at = reinterpret_cast<CUdeviceptr>(pass.lost);
    std::array<quantise::Lost, 3> all;
    all.fill({0, quantise::kNoneLost});
    check(cuda.memcpy_htod_async(at, all.data(), sizeof(all), queue), "clearing the count of lost values");
    quantise::Pass parameter = pass;
    parameter.stage = static_cast<int>(quantise::Stage::lost);
    lost_->launch(kBlocksEach * helper_.processors(), 3, parameter, stream, "launching the count of lost values");
    check(cuda.memcpy_dtoh_async(all.data(), at, sizeof(all), queue), "reading the count of lost values");
    check(cuda.stream_synchronize(queue), "waiting for the count of lost values");
    return all;
  }

 private:
  static constexpr unsigned kBlocksEach = 8;  // of a multiprocessor: 2048 threads, all that it has room for

  void launch(const quantise::Pass& pass, quantise::Stage stage, unsigned tensors, void* stream) const {
    quantise::Pass parameter = pass;
    parameter.stage = static_cast<int>(stage);
    helper_.launch(kBlocksEach * helper_.processors(), tensors, parameter, stream, "launching the quantising");
  }

  Helper helper_;
  std::optional<Helper> lost_;
};

class GpuMerges final : public Merges {
 public:
  GpuMerges(CUcontext context, const Problem& problem, const Choice& program)
      : helper_(context, problem, program, merge::kMergeEntry, merge::kMergeThreads) {}

  void run(const merge::Merge& merge, void* stream) const override {
    helper_.require(stream);
    merge::expect_merge(merge);
    const long long rows = merge.batch * merge.heads * merge.rows;
    if (rows == 0) return;
    merge::Merge parameter = merge;
    const long long each = merge::rows_of_block(merge.dim);
    const long long most = kBlocksEach * helper_.processors();
    helper_.launch(static_cast<unsigned>(std::min((rows + each - 1) / each, most)), 1, parameter, stream,
                   "launching the merge");
  }

 private:
  static constexpr long long kBlocksEach = 16;  // of a multiprocessor: 2048 threads, all that it has room for

  Helper helper_;
};

class GpuLister final : public Lister {
 public:
  GpuLister(CUcontext context, const Problem& problem, const Choice& program)
      : helper_(context, problem, program, listing::kListEntry, listing::kListThreads) {}

  double list(const listing::Pass& pass, void* stream) const override {
    helper_.require(stream);
    listing::Pass parameter = pass;
    const long long most = kBlocksEach * helper_.processors();
    helper_.launch(static_cast<unsigned>(std::min(listing::lists_of(pass), most)), 1, parameter, stream,
                   "launching the pass over the bias");
    return 0;
  }

 private:
  static constexpr long long kBlocksEach = 8;  // of a multiprocessor: 2048 threads, all that it has room for

  Helper helper_;
};

class GpuAppend final : public AppendRun {
 public:
  GpuAppend(CUcontext context, const Problem& problem, const append::Append& parameters, const Choice& program)
      : AppendRun(parameters),
        helper_(context, problem, program, append::kAppendEntry, append::kAppendThreads),
        can_be_dependent_(append::can_be_dependent(program.arch)) {}

  [[nodiscard]] bool can_be_dependent() const override { return can_be_dependent_; }

 private:
  static constexpr long long kBlocksEach = 8;  // of a multiprocessor: 2048 threads, all that it has room for

  void launch(const append::Append& append, void* stream, bool dependent) const override {
    helper_.require(stream);
    append::Append parameter = append;
    constexpr long long kWarps = append::kAppendThreads / 32;
    const long long blocks = (append::rows_of_all(append) * append.heads + kWarps - 1) / kWarps;
    const long long most = kBlocksEach * helper_.processors();
    helper_.launch(static_cast<unsigned>(std::clamp(blocks, 1LL, most)), 1, parameter, stream, "launching the append",
                   dependent);
  }

  Helper helper_;
  bool can_be_dependent_;
};

}  // namespace

std::unique_ptr<Copies> make_gpu_copies(const Problem& problem, const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuCopies>(context.get(), problem, program);
}

std::unique_ptr<Quantiser> make_gpu_quantiser(const Problem& problem, const Choice& program, const Choice* lost) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuQuantiser>(context.get(), problem, program, lost);
}

std::unique_ptr<Merges> make_gpu_merges(const Problem& problem, const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuMerges>(context.get(), problem, program);
}

std::unique_ptr<Lister> make_gpu_lister(const Problem& problem, const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuLister>(context.get(), problem, program);
}

std::unique_ptr<AppendRun> make_gpu_append(const Problem& problem, const append::Append& parameters,
                                           const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuAppend>(context.get(), problem, parameters, program);
}

}  // namespace heed::api

#else

namespace heed::api {

std::unique_ptr<Copies> make_gpu_copies(const Problem&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
std::unique_ptr<Quantiser> make_gpu_quantiser(const Problem&, const Choice&, const Choice*) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
std::unique_ptr<Lister> make_gpu_lister(const Problem&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
std::unique_ptr<Merges> make_gpu_merges(const Problem&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
std::unique_ptr<AppendRun> make_gpu_append(const Problem&, const append::Append&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}

}  // namespace heed::api

#endif
