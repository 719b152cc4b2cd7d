/// What a CPU program's binary says of the processors that it was built for.
#pragma once

#include <string>
#include <string_view>

#include "device/device_facts.hpp"

namespace heed::dispatch {

/// The section of a shared object that names its architecture, as files of programs do: "x86-64-v4", or that of one
/// processor. cpu/freestanding.hpp writes it. It is read from the file alone, and no part of what is loaded.
inline constexpr std::string_view kArchSection = ".heed.arch";

/// What the section says; empty where the bytes are no 64-bit little-endian ELF file or have no such section.
std::string arch_of_object(std::string_view bytes);

/// The architecture of an image that a caller brings, one that the device runs.
/// @throws Error(programs) where the image does not say, Error(unsupported) where the device lacks what it was built
/// for
std::string expect_runnable(std::string_view image, const DeviceFacts& device);

}  // namespace heed::dispatch
