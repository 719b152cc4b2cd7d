/// Numbers of the softmax, which works in base 2: scores are multiplied with log2(e), and log-sum-exps with ln(2) at
/// the end.
#pragma once

namespace heed::attention {

inline constexpr float kLog2e = 1.44269504F;  ///< log2(e)
inline constexpr float kLn2 = 0.693147181F;   ///< ln(2)
inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
inline constexpr float kLargest = __builtin_bit_cast(float, 0x7f7fffff);  ///< finite

}  // namespace heed::attention
