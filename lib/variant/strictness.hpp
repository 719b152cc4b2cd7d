/// What programs of a family keep of NaN and infinity beyond the kernel contract.
#pragma once

#include "variant/family.hpp"

namespace heed {

/// The contract asks that NaN and infinity show: a row that sees NaN in its query or in a key, or a score above the
/// range of fp32, is NaN or infinite in every element; a value that is NaN or infinite shows in its column, in every
/// row that sees it. Other heads' rows, and other rows where only a query is not finite, are as if it were not there.
/// A row that sees no key is zero; where its own query is not finite it may be NaN instead.
///
/// Families for CPUs keep three more things. What the mask hides from a row does not reach it though other rows of its
/// tile see it. A row whose scores are all below the range of fp32 is NaN, and no row that sees nothing. The
/// log-sum-exp is NaN where scores are. Products of tensor cores, which take whole tiles, do not keep the first: 0 *
/// NaN is NaN.
inline bool is_strict_with_nan(const Family& family) {
  return family.device() == DeviceKind::cpu;
}

}  // namespace heed
