// Test programs start workers and NVRTC builds as children of themselves, so they answer to the children's command
// lines.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "folders.hpp"
#include "ladder/ladder.hpp"
#include "own_processor.hpp"
#include "requirements.hpp"
#include "worker/child.hpp"

#ifndef HEED_NVTX_LISTENER
#define HEED_NVTX_LISTENER ""
#endif
#ifndef HEED_STUB_CUPTI
#define HEED_STUB_CUPTI ""
#endif

namespace heed::testing_support {

const char* const kSourceFolder = HEED_SOURCE_FOLDER;
const char* const kHeedBinary = HEED_BINARY;
const char* const kNvtxListener = HEED_NVTX_LISTENER;
const char* const kStubCupti = HEED_STUB_CUPTI;
const char* const kAheadOfTimeFolder = HEED_AHEAD_OF_TIME_FOLDER;

}  // namespace heed::testing_support

int main(int argc, char** argv) {
  if (const auto code = heed::worker::run_child_if_asked(argc, argv)) return *code;
  if (const std::string unknown = heed::testing_support::unknown_requirements(); !unknown.empty()) {
    std::cerr << "HEED_REQUIRE names " << unknown << "; it takes gpu and nvrtc, separated by a comma\n";
    return 2;
  }
  if (std::getenv("HEED_TEST_ON_ONE_PROCESSOR") != nullptr) heed::testing_support::take_a_processor();
  ::setenv("HEED_BOOK", "", 1);     // the champions of whoever runs the tests are not the tests'
  heed::ladder::register_family();  // before GoogleTest asks for the families that tests are made for
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
