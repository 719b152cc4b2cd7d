/// The exploit zoo: kernels that cheat, each in its own way, and the self-test that the referee catches them all.
///
/// An exploit is an entry of its own in front of an honest family (cpu/zoo, kernels/zoo). It goes through the same door
/// as any variant. The self-test passes when every exploit is refused for what it is, and the honest kernel beside them
/// is not.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trial/laboratory.hpp"

namespace heed::trial {

/// Where an exploit makes sense.
enum class Habitat {
  everywhere,
  cpu,
  x86,  ///< CPUs with a time-stamp counter that can be closed (prctl PR_SET_TSC) and hardware random numbers
  cuda,
};

struct Exploit {
  std::string_view name;  ///< also the file's stem
  std::string_view description;
  Verdict verdict = Verdict::wrong;    ///< it must end with
  std::vector<Finding> findings = {};  ///< one of these; empty: any
  Habitat habitat = Habitat::everywhere;
  std::string_view mask = "";  ///< of the workload it runs on: as the grammar has it
  int capability = 0;          ///< compute capability its instructions need
  LaunchExtras extras{};       ///< what its launch has that the honest family's has not

  [[nodiscard]] bool lives_on(const DeviceFacts& device) const;
};

std::span<const Exploit> exploits();

/// The workload of a self-test with this mask, as grammar: "", "causal_top_left", "causal_top_left:window=40".
Workload selftest_workload(std::string_view mask);

/// The exploit as a variant of the device's default family. @throws Error(usage) for a name there is not
Variant exploit_variant(const Exploit& exploit, const Workload& workload, const DeviceFacts& device);
const Exploit& find_exploit(std::string_view name);

struct SelftestRow {
  std::string name;
  std::string description;
  std::string expected;
  std::string found;  ///< verdict and finding
  std::string reason;
  bool caught = false;  ///< for the honest kernel: passed
};

/// Runs the honest base and every exploit of the device. @param on_row told each row as it comes
std::vector<SelftestRow> run_selftest(const DeviceFacts& device, jit::Builder& builder,
                                      const std::function<void(const SelftestRow&)>& on_row);

}  // namespace heed::trial
