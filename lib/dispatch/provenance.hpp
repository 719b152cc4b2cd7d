/// What is known of a program that a search found: what was measured, where, against what, and by which referee.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace heed::dispatch {

/// A ratio of two times with its 95% interval: above 1 the program is the faster one.
struct RatioInterval {
  double value = 0;
  double low = 0;
  double high = 0;
  bool operator==(const RatioInterval&) const = default;
};

/// The best of PyTorch's backends beside a program.
struct PeerEvidence {
  std::string backend;  ///< "sdpa_cudnn"
  std::string torch;    ///< versions
  std::string cudnn;
  double us = 0;  ///< its time, in microseconds
  RatioInterval ratio;
  bool operator==(const PeerEvidence&) const = default;
};

/// The search that found a program. Texts are kept as they were stored, ids of earlier names among them.
struct Provenance {
  std::string device;         ///< its name: "NVIDIA H100 80GB HBM3"
  std::string date;           ///< when the search began: UTC, ISO 8601
  std::string heed;           ///< version that searched
  std::string source_digest;  ///< of the kernel sources that were measured
  int referee = 0;            ///< kReferee of that version
  std::string base;           ///< id of the variant that it was measured against
  std::string base_config;    ///< the same as "family:knob=value,..."; empty where it was not stored
  double base_us = 0;         ///< times in microseconds
  double us = 0;
  RatioInterval ratio;               ///< time of the base / time of the program
  std::optional<PeerEvidence> peer;  ///< none where PyTorch was not measured
  std::int64_t run = 0;              ///< number in the store that it was found in; 0 where that is not known
  std::int64_t trial = -1;           ///< number within the run; -1 where it is not known
  std::int64_t trials = 0;           ///< that the run made in all
  bool operator==(const Provenance&) const = default;
};

/// Why this is no evidence of a champion, as the end of a sentence about it: "... says nothing of its device". Empty
/// where it is.
std::string lacks_evidence(const Provenance& provenance);

/// "run 12 trial 7: 1.13 [1.12, 1.14] over its base on NVIDIA H100"; without a number of the run
/// "search of 2026-11-26: ...".
std::string to_string(const Provenance& provenance);

}  // namespace heed::dispatch
