/// Champions of tests of the book: evidence that passes, and files of programs that hold it.
#pragma once

#include <string>

#include "dispatch/book.hpp"
#include "dispatch/contract.hpp"

namespace heed::testing_support {

inline dispatch::BookEntry book_entry(double low = 1.1, const std::string& workload = "b1h8l512d64:fp16",
                                      const std::string& device = "GPU A") {
  dispatch::BookEntry entry;
  entry.record.arch = "sm_90a";
  entry.record.workload = workload;
  entry.record.variant = "one";
  entry.record.origin = "champion";
  entry.record.contract = dispatch::kernel_contract(workload);
  entry.record.source_digest = "abcd";
  dispatch::Provenance p;
  p.device = device;
  p.date = "2026-11-26T06:00:00Z";
  p.source_digest = "abcd";
  p.referee = 2;
  p.base = "base";
  p.base_config = "fwd_base:a=1";
  p.ratio = {low + 0.1, low, low + 0.2};
  p.run = 3;
  p.trial = 7;
  entry.record.provenance = p;
  entry.image = "image " + std::string(300, 'y') + workload + device;
  return entry;
}

}  // namespace heed::testing_support
