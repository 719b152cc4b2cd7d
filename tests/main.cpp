// Test programs start workers and NVRTC builds as children of themselves, so they answer to the children's command
// lines.
#include <gtest/gtest.h>

#include "worker/child.hpp"

int main(int argc, char** argv) {
  if (const auto code = heed::worker::run_child_if_asked(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
