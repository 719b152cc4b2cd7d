/// Files of workloads, such as tests/cases/forward.txt and tests/cases/minilm.txt.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "tensors/tensor_file.hpp"

namespace heed::cli {

/// One line of a case file.
struct Case {
  Workload workload;
  std::string file;                           ///< of tensors, as the line names it; empty where inputs are drawn
  std::shared_ptr<const QkvTensors> tensors;  ///< null where inputs are drawn
};

/// The cases of a file, one a line; '#' starts a comment. A line is a workload, or `qkv=FILE` and what the file does
/// not say: `qkv=minilm/layer0.safetensors:bf16:causal_top_left` takes the shape from the tensors of that file, whose
/// path begins at the case file's folder, and rounds them to bf16; `:d64` puts zeros behind rows, up to head dim 64,
/// and leaves the softmax scale. @throws Error(usage), Error(invalid_input)
std::vector<Case> read_cases(const std::string& path);

/// The workloads of a file whose lines name no tensors. @throws Error(usage) with the line that does
std::vector<Workload> read_workloads(const std::string& path);

}  // namespace heed::cli
