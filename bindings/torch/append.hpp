/// heed::append_kv, of tensors (batch, heads_kv, rows, dim), ragged ones (rows, heads_kv, dim), and caches of entries
/// or of pages: (parts, heads_kv, rows, dim).
#pragma once

#include "libtorch.hpp"

namespace heed::torch {

void append_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);

/// Forgets every append, as forget_plans does plans.
void forget_appends();

}  // namespace heed::torch
