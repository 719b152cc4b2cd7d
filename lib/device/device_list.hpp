/// What `--devices` says: which devices of this machine a command works on.
#pragma once

#include <string_view>
#include <vector>

namespace heed {

/// A device by its numbers: of a GPU one, as the CUDA driver counts them; of a CPU the processors that are one device.
using DeviceNumbers = std::vector<int>;

/// The devices of a list: numbers and ranges with commas between, "0-3,5". Numbers joined by + are one device of
/// several processors, "0+1,2+3".
/// @return in the order of the list
/// @throws Error(usage) for an empty list or item, a word that is no number, a range that ends before it begins, a
///     number that is listed twice, or one above 1023, the last that Linux' sets of processors hold
std::vector<DeviceNumbers> parse_device_list(std::string_view text);

}  // namespace heed
