/// Where this build's things lie: defined in main.cpp alone, so that a compiler cache serves every folder the tree is
/// checked out in.
#pragma once

namespace heed::testing_support {

extern const char* const kSourceFolder;       ///< of the checkout
extern const char* const kHeedBinary;         ///< the command line under test
extern const char* const kNvtxListener;       ///< a tool that listens to NVTX; "": built without
extern const char* const kStubCupti;          ///< a stand-in for libcupti; "": built without
extern const char* const kAheadOfTimeFolder;  ///< cubins that nvcc made in this build; may not exist

}  // namespace heed::testing_support
