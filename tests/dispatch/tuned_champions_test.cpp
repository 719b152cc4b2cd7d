// tuned/champions.json with today's names: every entry can be read, and dispatch takes a champion for a workload
// nearby.
#include <map>

#include "base/files.hpp"
#include "dispatch/covering.hpp"
#include "dispatch/neighbour.hpp"
#include "dispatch/selection.hpp"
#include "dispatch/tuned_table.hpp"
#include "testing.hpp"
#include "variant/renames.hpp"

namespace heed::dispatch {
namespace {

using ::testing::StartsWith;

std::vector<TunedEntry> tuned() {
  const std::string path = std::string(testing_support::kSourceFolder) + "/tuned/champions.json";
  return TunedTable::parse(read_file(path, ErrorCode::internal), path).entries();
}

std::vector<Workload> unseen_workloads() {
  const std::string path = std::string(testing_support::kSourceFolder) + "/tests/cases/neighbours.txt";
  std::vector<Workload> workloads;
  for (const std::string& line : split(read_file(path, ErrorCode::internal), '\n'))
    if (const std::string text = trim(line.substr(0, line.find('#'))); !text.empty())
      workloads.push_back(parse_workload(text));
  return workloads;
}

std::string text_of_default(const Workload& w, const DeviceFacts& device) {
  const Family& family = default_family(w, device);
  return describe(make_variant(family, family.default_config(w, device), w));
}

// The file of programs that heed programs build makes of the table, with images that are none, and with the defaults of
// some workloads.
class TunedChampions : public ::testing::Test {
 protected:
  [[nodiscard]] Selection select(const std::string& shape, const std::vector<TunedEntry>& entries) {
    ProgramFileWriter writer("0123");
    ProgramRecord record;
    record.arch = device_.arch;
    record.origin = "rule";
    record.workload = shape;
    record.variant = text_of_default(parse_workload(shape), device_);
    writer.add(record, "rule");
    for (const TunedEntry& entry : entries) {
      if (entry.variant.empty()) {
        writer.add_unbeaten({entry.arch, entry.workload, entry.provenance.device});
        continue;
      }
      record.origin = "champion";
      record.workload = entry.workload;
      record.variant =
          describe(parse_variant(with_current_names(entry.variant), parse_workload(entry.workload), device_));
      record.provenance = entry.provenance;
      writer.add(record, "champion of " + entry.workload);
    }
    file_ = ProgramFile::parse(writer.bytes(), "tuned.programs");
    programs_ = std::make_unique<Programs>(file_, device_);
    std::vector<std::string> refused;
    const Selection selection = programs_->select({parse_workload(shape), std::nullopt}, nullptr, refused);
    EXPECT_THAT(refused, ::testing::IsEmpty());
    return selection;
  }

  DeviceFacts device_ = representative_gpu("sm_90a");
  std::shared_ptr<const ProgramFile> file_;
  std::unique_ptr<Programs> programs_;
};

TEST_F(TunedChampions, EveryOneIsEvidenceAndNamesItsBase) {
  int champions = 0;
  for (const TunedEntry& entry : tuned()) {
    if (entry.variant.empty()) continue;
    ++champions;
    EXPECT_EQ(lacks_evidence(entry.provenance), "") << entry.workload;
    const Workload w = parse_workload(entry.workload);
    const std::string base_config = with_current_names(entry.provenance.base_config);
    const Variant base = parse_variant(base_config, w, device_);
    EXPECT_EQ(base.specialization, Specialization{}) << entry.workload;
    for (const Knob& knob : base.family->knobs())
      EXPECT_THAT(base_config, ::testing::ContainsRegex("[:,]" + knob.name + "=")) << entry.workload;
    EXPECT_EQ(select(entry.workload, {entry}).step, Step::champion) << entry.workload;
  }
  EXPECT_GT(champions, 0);
}

// Its batch * key heads and lengths are near those of the search, and its default is the base of that.
TEST_F(TunedChampions, OneRunsForAWorkloadNearby) {
  const std::string tuned_for = "b1h32hkv8l1k32768d128:fp16";
  for (const char* near : {"b1h32hkv8l1k20000d128:fp16", "b1h40hkv10l1k32768d128:fp16", "b1h32hkv8l1k50000d128:fp16"}) {
    const Selection selection = select(near, tuned());
    EXPECT_EQ(selection.step, Step::neighbour) << near;
    EXPECT_EQ(selection.record->workload, tuned_for);
    EXPECT_THAT(selection.reason, StartsWith("tuned neighbour " + tuned_for + ", search of 2026-11-24: "));
  }
  EXPECT_EQ(select("b1h32hkv8l1k8192d128:fp16", tuned()).step, Step::rule) << "four times the keys";
  EXPECT_EQ(select("b1h32hkv8l1k20000d128:bf16", tuned()).step, Step::rule);
}

// Those that heed library neighbours measures on a GPU: nobody tuned for them, each is near a tuned one, and both ways
// that the rule has are among them.
TEST_F(TunedChampions, TheUnseenWorkloadsAreNearTunedOnes) {
  const std::vector<Workload> unseen = unseen_workloads();
  EXPECT_EQ(unseen.size(), 10U);
  std::map<Step, int> steps;
  for (const Workload& w : unseen) {
    bool is_near = false;
    for (const TunedEntry& entry : tuned()) {
      const Workload tuned_for = parse_workload(entry.workload);
      EXPECT_NE(tuned_for, w) << to_string(w);
      is_near = is_near || (!entry.variant.empty() && neighbour_distance(tuned_for, w));
    }
    EXPECT_TRUE(is_near) << to_string(w);
    ++steps[select(to_string(w), tuned()).step];
  }
  EXPECT_EQ(steps[Step::neighbour], 4);
  EXPECT_EQ(steps[Step::rule], 6);
}

// Programs for one shape alone serve no other.
TEST_F(TunedChampions, ThoseOfOneShapeServeNoNeighbour) {
  for (const TunedEntry& entry : tuned()) {
    if (entry.variant.empty()) continue;
    Workload near = parse_workload(entry.workload);
    near.len_k = near.len_k * 9 / 8;
    if (near.is_causal()) near.len_q = near.len_k;
    const Variant variant = parse_variant(with_current_names(entry.variant), parse_workload(entry.workload), device_);
    const bool is_for_all = variant.specialization == Specialization{};
    EXPECT_EQ(select(to_string(near), {entry}).step, is_for_all ? Step::neighbour : Step::rule) << to_string(near);
  }
}

}  // namespace
}  // namespace heed::dispatch
