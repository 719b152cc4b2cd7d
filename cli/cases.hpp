/// Files of workloads, such as tests/cases/forward.txt.
#pragma once

#include <string>
#include <vector>

#include "heed/heed.hpp"

namespace heed::cli {

/// The workloads of a file, one a line; '#' starts a comment. @throws Error(usage)
std::vector<Workload> read_cases(const std::string& path);

}  // namespace heed::cli
