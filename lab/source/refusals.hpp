/// What edited sources are refused for before they are built.
///
/// The audits of binaries (jit/ptx_module.hpp, jit/shared_object.hpp) decide; they see through every disguise and run
/// after a build. What is plain in the source costs no build, and some things leave no trace in a binary: a pragma that
/// changes options, a text that reads otherwise on another day, an include that the cache's key would not cover.
#pragma once

#include <optional>
#include <string>

#include "variant/overlay.hpp"

namespace heed::source {

/// Why an overlay is not built: "line 12 of cpu/simd.hpp includes <time.h>, ..."; empty where nothing was seen. Lines
/// that the carried sources have are no exception: they keep to the same rules.
std::optional<std::string> refusal_of(const Overlay& overlay);

}  // namespace heed::source
