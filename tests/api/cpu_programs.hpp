/// Files of programs of fwd_cpu for tests of plans on a CPU.
#pragma once

#include <string>
#include <vector>

#include "device/device.hpp"
#include "dispatch/program_file.hpp"
#include "jit/build.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "workload/features.hpp"

namespace heed::testing_support {

/// Builds a program for each workload, with these features besides its own, and writes them to a file. Tests of a
/// machine share what is built (shared_cache). @throws Error(build_failed)
inline void write_cpu_programs(const std::string& path, const std::vector<const char*>& workloads,
                               const Features& features = {}, const char* variant_text = "fwd_cpu:unit=vector") {
  const DeviceFacts device = cpu_facts();
  jit::Builder builder({.cache_folder = shared_cache(), .host_compiler = {}, .jobs = 2});
  dispatch::ProgramFileWriter writer("0123");
  std::vector<std::pair<dispatch::ProgramRecord, std::future<jit::BuildOutcome>>> builds;
  for (const char* text : workloads) {
    const Workload w = with_features(parse_workload(text), features);
    const Variant variant = parse_variant(variant_text, w, device);
    dispatch::ProgramRecord record;
    record.arch = device.arch;
    record.workload = to_string(w);
    record.variant = describe(variant);
    builds.emplace_back(record, builder.start(jit::request_for(variant, w, device)));
  }
  for (auto& [record, build] : builds) {
    const jit::BuildOutcome outcome = build.get();
    if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log, record.workload);
    writer.add(record, read_file(outcome.artifact->path, ErrorCode::cache));
  }
  write_file_atomically(path, writer.bytes(), ErrorCode::store);
}

}  // namespace heed::testing_support
