/// The programs within this program that Heed starts as its own children.
#pragma once

#include <optional>

namespace heed::worker {

/// If the command line is that of a child (`worker cpu`, `worker cuda`, `nvrtc`), serves as one and returns its exit
/// code. To be called first thing in main() of every program that uses Heed's workers or builds CUDA code.
std::optional<int> run_child_if_asked(int argc, char** argv);

}  // namespace heed::worker
