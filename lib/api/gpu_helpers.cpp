// What launches around a plan's own kernel on a GPU: copies of rows, merges of partial results, quantised inputs.
#include "api/precision.hpp"

#ifdef HEED_WITH_CUDA

#include <algorithm>

#include "api/gpu_context.hpp"
#include "merge/merge.hpp"
#include "padding/padding.hpp"
#include "quantise/quantise.hpp"

namespace heed::api {
namespace {

class GpuCopies final : public Copies {
 public:
  GpuCopies(CUcontext context, int ordinal, const Choice& program, int processors)
      : context_(context),
        ordinal_(ordinal),
        program_(loaded(context, program, copy_launch())),
        blocks_(static_cast<unsigned>(kBlocksEach * processors)) {}

  void run(std::span<const padding::RowCopy> copies, void* stream) const override {
    require_device(context_, ordinal_, stream);
    padding::RowCopies parameter{};
    std::copy(copies.begin(), copies.end(), parameter.tensors);
    CUlaunchConfig config{};
    config.gridDimX = blocks_;
    config.gridDimY = static_cast<unsigned>(copies.size());
    config.gridDimZ = 1;
    config.blockDimX = padding::kCopyThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = static_cast<CUstream>(stream);
    void* arguments[] = {&parameter};
    check(cuda_driver().launch_kernel_ex(&config, program_->function(), arguments, nullptr), "launching the copies");
  }

 private:
  static constexpr int kBlocksEach = 4;  // of a multiprocessor: 1024 threads, each with 16 bytes on the way

  static LaunchPlan copy_launch() {
    LaunchPlan launch;
    launch.entry = padding::kCopyEntry;
    launch.threads = padding::kCopyThreads;
    return launch;
  }

  CUcontext context_;
  int ordinal_;
  std::shared_ptr<GpuProgram> program_;
  unsigned blocks_;
};

class GpuQuantiser final : public Quantiser {
 public:
  GpuQuantiser(CUcontext context, int ordinal, const Choice& program, int processors)
      : context_(context),
        ordinal_(ordinal),
        program_(loaded(context, program, quantise_launch())),
        blocks_(static_cast<unsigned>(kBlocksEach * processors)) {}

  double quantise(const quantise::Pass& pass, void* stream) const override {
    require_device(context_, ordinal_, stream);
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

 private:
  static constexpr int kBlocksEach = 8;  // of a multiprocessor: 2048 threads, all that it has room for

  void launch(const quantise::Pass& pass, quantise::Stage stage, unsigned tensors, void* stream) const {
    quantise::Pass parameter = pass;
    parameter.stage = static_cast<int>(stage);
    CUlaunchConfig config{};
    config.gridDimX = blocks_;
    config.gridDimY = tensors;
    config.gridDimZ = 1;
    config.blockDimX = quantise::kQuantiseThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = static_cast<CUstream>(stream);
    void* arguments[] = {&parameter};
    check(cuda_driver().launch_kernel_ex(&config, program_->function(), arguments, nullptr),
          "launching the quantising");
  }

  static LaunchPlan quantise_launch() {
    LaunchPlan launch;
    launch.entry = quantise::kQuantiseEntry;
    launch.threads = quantise::kQuantiseThreads;
    return launch;
  }

  CUcontext context_;
  int ordinal_;
  std::shared_ptr<GpuProgram> program_;
  unsigned blocks_;
};

class GpuMerges final : public Merges {
 public:
  GpuMerges(CUcontext context, int ordinal, const Choice& program, int processors)
      : context_(context),
        ordinal_(ordinal),
        program_(loaded(context, program, merge_launch())),
        most_blocks_(static_cast<unsigned>(kBlocksEach * processors)) {}

  void run(const merge::Merge& merge, void* stream) const override {
    require_device(context_, ordinal_, stream);
    merge::expect_merge(merge);
    const long long rows = merge.batch * merge.heads * merge.rows;
    if (rows == 0) return;
    merge::Merge parameter = merge;
    const long long each = merge::rows_of_block(merge.dim);
    CUlaunchConfig config{};
    config.gridDimX = static_cast<unsigned>(std::min<long long>((rows + each - 1) / each, most_blocks_));
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = merge::kMergeThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = static_cast<CUstream>(stream);
    void* arguments[] = {&parameter};
    check(cuda_driver().launch_kernel_ex(&config, program_->function(), arguments, nullptr), "launching the merge");
  }

 private:
  static constexpr int kBlocksEach = 16;  // of a multiprocessor: 2048 threads, all that it has room for

  static LaunchPlan merge_launch() {
    LaunchPlan launch;
    launch.entry = merge::kMergeEntry;
    launch.threads = merge::kMergeThreads;
    return launch;
  }

  CUcontext context_;
  int ordinal_;
  std::shared_ptr<GpuProgram> program_;
  unsigned most_blocks_;
};

}  // namespace

std::unique_ptr<Copies> make_gpu_copies(const Problem& problem, const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuCopies>(context.get(), problem.ordinal, program, facts_of_device(problem).processors);
}

std::unique_ptr<Quantiser> make_gpu_quantiser(const Problem& problem, const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuQuantiser>(context.get(), problem.ordinal, program, facts_of_device(problem).processors);
}

std::unique_ptr<Merges> make_gpu_merges(const Problem& problem, const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuMerges>(context.get(), problem.ordinal, program, facts_of_device(problem).processors);
}

}  // namespace heed::api

#else

namespace heed::api {

std::unique_ptr<Copies> make_gpu_copies(const Problem&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
std::unique_ptr<Quantiser> make_gpu_quantiser(const Problem&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
std::unique_ptr<Merges> make_gpu_merges(const Problem&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}

}  // namespace heed::api

#endif
