/// What a page pool does where, from measured rates: which share of the pages that the device does not hold comes over
/// the link, and from how many query rows on a streamed prefill hides the link.
#pragma once

#include <cstdint>
#include <string>

namespace heed::offload {

/// What a machine does in a second.
struct Rates {
  double link = 0;          ///< bytes over the link, from host to device
  double host = 0;          ///< bytes of keys and values that the processors attend to, in decoding; 0: they cannot
  double device = 0;        ///< the same of the device
  double device_flops = 0;  ///< of a prefill

  bool operator==(const Rates&) const = default;
};

/// Pages of one decoding step of one layer, in bytes of keys and values.
struct DecodeBytes {
  double resident = 0;  ///< on the device
  double remote = 0;    ///< in host memory alone
};

/// How remote pages are divided, and how long each part of the step takes, in seconds.
struct DecodePlan {
  double streamed = 0;  ///< the share that comes over the link, 0 to 1; the processors attend to the others
  double device_s = 0;  ///< of resident and streamed pages
  double link_s = 0;
  double host_s = 0;

  [[nodiscard]] double step_s() const;
};
/// The share with which the slowest part of a step ends first. With a rate for the host of 0 all is streamed.
DecodePlan plan_decode(const Rates& rates, const DecodeBytes& bytes);
/// With a share that is given.
DecodePlan plan_decode(const Rates& rates, const DecodeBytes& bytes, double streamed);

/// Query rows of a prefill from which on copies take no longer than the kernel of the chunk before: a key is
/// (dim + dim_v) elements of heads_kv heads on the link, and 2 (dim + dim_v) operations for each row of heads heads.
std::int64_t rows_that_hide_the_link(const Rates& rates, std::int64_t heads, std::int64_t heads_kv, int element_bytes);

/// Decoding steps after which a page that moved to the device has paid for the way: the time over the link of all
/// layers, over what a step takes longer without it. Infinity where the step is no shorter with it.
double steps_to_pay(const Rates& rates, const DecodeBytes& bytes, double page_bytes);

}  // namespace heed::offload
