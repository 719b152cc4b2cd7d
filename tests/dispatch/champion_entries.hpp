/// Champions of tests that choose among several: what tells them apart is named, the rest is evidence that passes.
#pragma once

#include <string>

#include "dispatch/book.hpp"
#include "dispatch/contract.hpp"
#include "dispatch/covering.hpp"
#include "variant/family.hpp"

namespace heed::testing_support {

struct Found {
  std::string workload = "b1h8l512d64:fp16";
  std::string arch = "sm_90a";
  std::string device = "NVIDIA H100";
  std::string variant = "fwd_sm80";
  std::string base = "fwd_base.0";
  std::string base_config = {};
  double low = 1.12;
  std::string image = "the binary";
};

/// A variant's text with every knob, as binaries are stored; what is no variant of the architecture stays.
inline std::string whole_variant(const Found& f) {
  try {
    return describe(parse_variant(f.variant, parse_workload(f.workload), dispatch::representative_gpu(f.arch)));
  } catch (const Error&) {
    return f.variant;
  }
}

inline dispatch::BookEntry champion(const Found& f = {}) {
  dispatch::BookEntry entry;
  entry.record.arch = f.arch;
  entry.record.workload = f.workload;
  entry.record.variant = whole_variant(f);
  entry.record.origin = "champion";
  entry.record.contract = dispatch::kernel_contract();
  entry.record.source_digest = "5555555555555555";
  dispatch::Provenance p;
  p.device = f.device;
  p.date = "2026-11-26T06:15:15Z";
  p.heed = "0.1.0";
  p.source_digest = "5555555555555555";
  p.referee = 3;
  p.base = f.base;
  p.base_config = f.base_config;
  p.base_us = 11.3;
  p.us = 10;
  p.ratio = {f.low + 0.01, f.low, f.low + 0.02};
  p.run = 12;
  p.trial = 7;
  p.trials = 45;
  entry.record.provenance = p;
  entry.image = f.image;
  return entry;
}

}  // namespace heed::testing_support
