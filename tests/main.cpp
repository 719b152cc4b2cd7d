// Test programs start workers and NVRTC builds as children of themselves, so they answer to the children's command
// lines.
#include <gtest/gtest.h>

#include "folders.hpp"
#include "worker/child.hpp"

namespace heed::testing_support {

const char* const kSourceFolder = HEED_SOURCE_FOLDER;
const char* const kHeedBinary = HEED_BINARY;
const char* const kAheadOfTimeFolder = HEED_AHEAD_OF_TIME_FOLDER;

}  // namespace heed::testing_support

int main(int argc, char** argv) {
  if (const auto code = heed::worker::run_child_if_asked(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
