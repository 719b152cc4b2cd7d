// libheed on a GPU: the case table through the C interface, CUDA graphs, threads with streams of their own.
#include "base/files.hpp"
#include "conformance/case_table.hpp"
#include "conformance/stress.hpp"
#include "gpu/gpu_test.hpp"
#include "heed/heed.h"
#include "testing.hpp"
#include "variant/family.hpp"
#ifdef HEED_WITH_CUDA
#include "device/cuda_driver.hpp"

namespace heed {
namespace {

using testing_support::case_table;

class GpuLibrary : public testing_support::GpuTest {
 protected:
  // The default variant's plan; its binary is kept by the driver.
  std::unique_ptr<conformance::CheckedPlan> plan_of(const Family& family, const Workload& workload) {
    const Variant variant = make_variant(family, family.default_config(workload, device_), workload);
    const std::string image = image_of(variant, workload);
    return std::make_unique<conformance::CheckedPlan>(workload, DeviceKind::cuda,
                                                      conformance::Program{describe(variant), image, {}, 0}, 3);
  }
  std::string image_of(const Variant& variant, const Workload& workload) {
    const jit::BuildOutcome outcome = builder_->build(jit::request_for(variant, workload, device_));
    if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log);
    return read_file(outcome.artifact->path, ErrorCode::cache);
  }
  std::vector<const Family*> families_for(const Workload& workload) {
    std::vector<const Family*> found;
    for (const Family* family : searched_families(workload, device_))
      if (!family->refuses(workload, device_)) found.push_back(family);
    return found;
  }
};

TEST_F(GpuLibrary, CaseTablePassesThroughTheCInterface) {
  for (const Workload& workload : case_table())
    for (const Family* family : families_for(workload)) {
      const Variant variant = make_variant(*family, family->default_config(workload, device_), workload);
      const std::string image = image_of(variant, workload);
      const conformance::CaseResult result =
          conformance::run_case(workload, DeviceKind::cuda, {describe(variant), image, {}, 0}, 3);
      EXPECT_EQ(result.failure, "") << family->name() << " at " << result.workload;
    }
}

TEST_F(GpuLibrary, RunsAreCapturedIntoAGraph) {
  const CudaDriver& cuda = cuda_driver();
  const Workload workload = parse_workload("b2h8hkv2l4k700d64:bf16:causal_bottom_right");
  for (const Family* family : families_for(workload)) {
    const auto plan = plan_of(*family, workload);
    conformance::CheckedRun tensors(*plan);
    tensors.reset();
    tensors.wait();
    const auto stream = static_cast<CUstream>(tensors.stream());
    ASSERT_EQ(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i) tensors.run();
    CUgraph graph = nullptr;
    ASSERT_EQ(cuda.stream_end_capture(stream, &graph), CUDA_SUCCESS) << family->name();
    CUgraphExec executable = nullptr;
    ASSERT_EQ(cuda.graph_instantiate(&executable, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(cuda.graph_launch(executable, stream), CUDA_SUCCESS);
    const verify::Comparison comparison = plan->check(tensors.result());
    EXPECT_EQ(comparison.finding, Finding::none) << family->name() << ": " << comparison.text;
    cuda.graph_exec_destroy(executable);
    cuda.graph_destroy(graph);
  }
}

// A few seconds are enough to see a lock or a shared buffer; heed library threads takes a minute.
TEST_F(GpuLibrary, ThreadsRunPlansOnStreamsOfTheirOwn) {
  const Workload workload = parse_workload("b2h8hkv2l4k700d64:bf16:causal_bottom_right");
  std::vector<std::unique_ptr<conformance::CheckedPlan>> plans;
  for (const Family* family : families_for(workload)) plans.push_back(plan_of(*family, workload));
  ASSERT_FALSE(plans.empty());
  conformance::StressOptions options;
  options.seconds = 3;
  for (const conformance::StressResult& result : conformance::stress(plans, options, [] { return false; })) {
    EXPECT_EQ(result.failure, "") << result.variant;
    EXPECT_GT(result.runs, 0) << result.variant;
  }
}

}  // namespace
}  // namespace heed
#endif
