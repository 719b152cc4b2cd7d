#include "variant/sm90_decode_estimate.hpp"

#include <algorithm>

#include "variant/family.hpp"
#include "variant/rule_table.hpp"
#include "workload/mask.hpp"

namespace heed::sm90_decode_estimate {

std::int64_t all_jobs(const sm90_decode::Config& c, const Workload& w) {
  const int tiles = sm90_decode::row_tiles(c, static_cast<int>(w.heads / w.heads_kv), static_cast<int>(w.len_q));
  return w.batch * w.heads_kv * tiles;
}

std::int64_t job_tiles(const sm90_decode::Config& c, const Workload& w) {
  const FixedSizes sizes = sizes_of(w);
  return sm90_decode::tiles_of_job(c, mask_kind(w), sizes.len_q, sizes.right_offset, sizes.len_k);
}

std::int64_t all_tiles(const sm90_decode::Config& c, const Workload& w) {
  return all_jobs(c, w) * job_tiles(c, w);
}

int block_n_of(const Workload& w) {
  const Problem problem = problem_of(w);
  return sm90_decode::padded_dim(problem) * sm90_decode::key_bytes(problem) <= 128 ? 128 : 64;
}

std::int64_t key_bytes(const Workload& w) {
  return 2 * sm90_decode::key_bytes(problem_of(w)) * w.batch * w.heads_kv *
         (w.has_left_bound() ? w.seen_keys().count() : w.len_k) * w.dim;
}

std::int64_t l2_bytes_of(const DeviceFacts& device) {
  constexpr std::int64_t kOfAnH100 = 50 * 1024 * 1024;
  return device.cache_bytes > 0 ? device.cache_bytes : kOfAnH100;
}

namespace {
constexpr double kLaunchUs = 2.7;  // of a launch whose blocks have nothing to do, its first copy and last store
}  // namespace

double decode_us(const sm90_decode::Config& c, const Workload& w, const DeviceFacts& device) {
  constexpr double kMemory = 4.0e6;         // bytes a us
  constexpr double kMemoryOfABlock = 32e3;  // what one block has under way
  const Problem problem = problem_of(w);
  const int dim = sm90_decode::padded_dim(problem);
  // Bytes of tiles in shared memory that a block takes a us; elements of 8 bits as fast as those of 16, not measured.
  const double block_rate = (c.block_m == 8    ? (dim <= 128 ? 68e3 : 80e3)
                             : c.block_m == 16 ? (dim <= 128 ? 60e3 : 45e3)
                                               : 31e3) *
                            sm90_decode::key_bytes(problem) / 2;
  const std::int64_t jobs = all_jobs(c, w);
  const std::int64_t places = num_sms_of(device);
  sm90_decode::Config tiled = c;
  tiled.block_n = block_n_of(w);
  const std::int64_t parts = std::clamp<std::int64_t>(
      std::min(places / jobs, c.max_splits > 0 ? std::int64_t{c.max_splits} : places), 1, job_tiles(tiled, w));
  const auto blocks = static_cast<double>(std::min(jobs * parts, places));
  const std::int64_t row_tiles = jobs / (w.batch * w.heads_kv);
  // Tiles of rows that run side by side read keys of a head from memory once.
  const bool reads_once = jobs <= places || key_bytes(w) <= l2_bytes_of(device);
  const double from_memory =
      static_cast<double>(key_bytes(w) * (reads_once ? 1 : row_tiles)) / std::min(kMemory, blocks * kMemoryOfABlock);
  const double padded = static_cast<double>(key_bytes(w)) * dim / static_cast<double>(w.dim);
  const double masked = w.has_right_bound() && w.len_q > 1 ? 1.25 : 1.0;
  const double by_blocks = padded * static_cast<double>(row_tiles) / blocks / block_rate * masked;
  const std::int64_t rows = std::min<std::int64_t>(c.block_m, w.heads / w.heads_kv * w.len_q);
  // Of a part of eight rows; half of the lanes take parts of their own where there are four.
  const double part_us = rows <= 4 ? 0.105 : dim == 64 ? 0.13 : dim == 128 ? 0.17 : 0.2;
  const std::int64_t row_groups = (rows + 7) / 8;
  const double merge = parts > 1 ? static_cast<double>(parts * row_groups) * part_us : 0;
  return kLaunchUs + std::max(from_memory, by_blocks) + merge;
}

double persistent_us(const Workload& w, std::int64_t places) {
  const double tile_us = w.dim <= 64 ? 0.27 : w.dim <= 128 ? 0.42 : w.dim <= 192 ? 0.65 : 0.8;  // of 64 keys
  const std::int64_t waves = (w.batch * w.heads + places - 1) / places;
  return kLaunchUs + static_cast<double>(waves) * static_cast<double>(w.len_k) / 64 * tile_us;
}

}  // namespace heed::sm90_decode_estimate
