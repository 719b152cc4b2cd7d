#include "stub_passes.hpp"

#include "lib/append/append_rows.hpp"
#include "lib/listing/list_blocks.hpp"

namespace {

heed::listing::Pass last_listing;
int listed = 0;
heed::append::Append last_append{};
unsigned blocks_of_append = 0;
unsigned attributes_of_append = 0;
int appended = 0;

}  // namespace

namespace heed::stub {

bool take_listing(const CUlaunchConfig& config, const void* parameters) {
  if (config.blockDimX != listing::kListThreads || config.gridDimY != 1) return false;
  last_listing = *static_cast<const listing::Pass*>(parameters);
  ++listed;
  return true;
}

bool take_append(const CUlaunchConfig& config, const void* parameters) {
  if (config.blockDimX != append::kAppendThreads || config.gridDimX == 0 || config.gridDimY != 1) return false;
  last_append = *static_cast<const append::Append*>(parameters);
  blocks_of_append = config.gridDimX;
  attributes_of_append = config.numAttrs;
  ++appended;
  return true;
}

}  // namespace heed::stub

extern "C" {

/// The last pass that listed blocks of keys, and how many there were.
const heed::listing::Pass* stub_listing() {
  return &last_listing;
}
int stub_listed() {
  return listed;
}
/// The last append to a cache, its launch, and how many there were.
const heed::append::Append* stub_append() {
  return &last_append;
}
/// Its blocks and its attributes.
unsigned stub_append_blocks() {
  return blocks_of_append;
}
unsigned stub_append_attributes() {
  return attributes_of_append;
}
int stub_appended() {
  return appended;
}
}
