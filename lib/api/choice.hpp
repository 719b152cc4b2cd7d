/// The program that a problem gets where its caller names none: by the order of dispatch/selection.hpp.
#pragma once

#include <functional>
#include <memory>

#include "api/plan.hpp"

namespace heed::api {

/// A selection with its binary. @throws Error(programs) where that was altered
Choice taken(const dispatch::Selection& selection);

/// Asks the book that `options` names, else the default one; then the programs, which are opened only if the book does
/// not have the very workload. What is wrong with a book that nobody named keeps no program of others from running: it
/// is told behind the reason.
/// @throws Error(programs) for a book that the caller or HEED_BOOK names and that cannot be read, Error(unsupported)
Choice choose_by_order(const Problem& problem, const Options& options, const DeviceFacts& device,
                       const std::function<std::shared_ptr<const dispatch::Programs>()>& programs);

}  // namespace heed::api
