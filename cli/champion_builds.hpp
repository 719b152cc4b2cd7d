/// Champions as programs: the variants that a table of champions names, built.
#pragma once

#include <future>
#include <string>
#include <vector>

#include "dispatch/book.hpp"
#include "dispatch/tuned_table.hpp"
#include "jit/build.hpp"
#include "variant/family.hpp"

namespace heed::cli {

/// The device that programs of an architecture are built for: this machine's processor where it is of that name, else a
/// GPU that has it. @throws Error(unsupported) for the architecture of another CPU, Error(usage) for an unknown one
DeviceFacts device_of_arch(const std::string& arch);

/// A champion on its way to a program.
struct ChampionBuild {
  dispatch::TunedEntry entry;
  Workload workload;
  Variant variant;
  std::future<jit::BuildOutcome> build;
  jit::Artifact artifact{};  ///< once it is finished
};

/// Reads, checks and begins to build one, with the names that families and knobs have today. @throws Error(unsupported)
/// where today's families do not run it, Error(usage) where they have no such knob or value
ChampionBuild start_champion(const dispatch::TunedEntry& entry, jit::Builder& builder);

/// @throws Error(build_failed)
dispatch::BookEntry finish_champion(ChampionBuild& champion);

}  // namespace heed::cli
