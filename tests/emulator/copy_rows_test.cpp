// Copies of rows on the emulated GPU: the host's bytes, of elements of each width.
#include <fmt/format.h>

#include <cstddef>
#include <vector>

#include "base/random.hpp"
#include "device.hpp"
#include "lib/padding/copy_rows.cuh"
#include "padding/padding.hpp"
#include "testing.hpp"

namespace heed::padding {
namespace {

TEST(CopyRowsOnGpu, ElementsOfEachWidth) {
  Random random(3);
  std::vector<std::byte> from(16384);
  for (std::byte& b : from) b = static_cast<std::byte>(random.below(256));
  for (const int bytes : {1, 2, 4})
    for (const int dim : {5, 16, 40})
      for (const int step : {1, 3}) {
        SCOPED_TRACE(fmt::format("{} bytes, {} columns, {} apart", bytes, dim, step));
        const auto copied = [&](auto&& run) {
          std::vector<std::byte> to(8192, std::byte{0xee});
          RowCopy c{.from = from.data(),
                    .to = to.data(),
                    .from_strides = {2LL * 3 * dim * step, 3LL * dim * step, static_cast<long long>(dim) * step},
                    .to_strides = {2LL * 3 * 48, 3LL * 48, 48},
                    .from_step = step,
                    .to_step = 1,
                    .batch = 2,
                    .heads = 2,
                    .rows = 3,
                    .from_dim = dim,
                    .to_dim = dim == 40 ? 48 : dim,
                    .is_wide = 0,
                    .element_bytes = bytes};
          c.is_wide = is_wide(c) ? 1 : 0;
          run(c);
          return to;
        };
        const auto gpu = copied([](const RowCopy& c) {
          emulator::Launch one;
          one.grid = {2, 1, 1};
          one.threads = kCopyThreads;
          one.seed = 1;
          emulator::run(one, [&](char*) { copy_rows(c); });
        });
        EXPECT_EQ(gpu, copied([](const RowCopy& c) { copy_on_host(c); }));
      }
}

}  // namespace
}  // namespace heed::padding
