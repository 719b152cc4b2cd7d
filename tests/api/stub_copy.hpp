/// What the kernel that copies rows does, by the stand-in for the driver.
#pragma once

#include <cstddef>
#include <cstring>

#include "lib/padding/copy_rows.hpp"

namespace heed::stub {

inline void copy(const padding::RowCopy& t) {
  for (long long b = 0; b < t.batch; ++b)
    for (int h = 0; h < t.heads; ++h)
      for (int r = 0; r < t.rows; ++r)
        for (int c = 0; c < t.to_dim; ++c) {
          const auto width = static_cast<std::size_t>(t.element_bytes);
          const auto place = [&](const TensorStrides& s, long long step) {
            return (b * s.batch + h * s.head + r * s.row + c * step) * t.element_bytes;
          };
          char* const to = static_cast<char*>(t.to) + place(t.to_strides, t.to_step);
          if (c < t.from_dim)
            std::memcpy(to, static_cast<const char*>(t.from) + place(t.from_strides, t.from_step), width);
          else
            std::memset(to, 0, width);
        }
}

}  // namespace heed::stub
