/// Which kernel contract a binary keeps to: the layout of what its entry is given.
#pragma once

#include <string>

namespace heed::dispatch {

/// A digest of the names and places of all fields of ForwardParams and of the tensor maps behind it. A binary that was
/// built for another one reads its parameters where they are not, and must never be launched.
const std::string& kernel_contract();

}  // namespace heed::dispatch
