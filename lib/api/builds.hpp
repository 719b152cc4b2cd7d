/// Programs that NVRTC builds on the user's machine, where no file has the very one.
#pragma once

#include <functional>

#include "api/plan.hpp"

namespace heed::api {

/// What `choose` gives, or the program that the rule names for the very problem, where that is another and was built
/// before, or is built now as `options.build` says. Why it could not be is told behind the reason.
/// @throws what `choose` throws, where nothing was built
Choice better_of_builds(const Problem& problem, const Options& options, const DeviceFacts& device,
                        const std::function<Choice()>& choose);

/// Whether a build of the program that the rule names for the very problem waits or runs.
bool is_being_built(const Problem& problem, const DeviceFacts& device);

}  // namespace heed::api
