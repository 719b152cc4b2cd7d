// The order of dispatch: the book's champion, that of the programs, a neighbour's, the rule's program.
#include "dispatch/selection.hpp"

#include "dispatch/book_entries.hpp"
#include "dispatch/covering.hpp"
#include "testing.hpp"

namespace heed::dispatch {
namespace {

using testing_support::book_entry;
using testing_support::expect_error;

const std::string kSelectedFor = "b4h8l512d64:fp16";
const std::string kNear = "b5h8l512d64:fp16";  // 1.25 times the tiles
const std::string kFar = "b6h8l512d64:fp16";

class Order : public ::testing::Test {
 protected:
  Order() { device_.name = "GPU A"; }

  [[nodiscard]] Variant rule(const std::string& text) const {
    const Workload w = parse_workload(text);
    const Family& family = default_family(w, device_);
    return make_variant(family, family.default_config(w, device_), w);
  }
  // A champion that is the rule's own program: its step tells it from the rule's.
  [[nodiscard]] BookEntry champion(const std::string& workload, double low = 1.1,
                                   const std::string& device = "GPU A") const {
    BookEntry entry = book_entry(low, workload, device);
    entry.record.variant = describe(rule(workload));
    entry.record.provenance->base = rule(kSelectedFor).id();
    return entry;
  }
  void has(const BookEntry& entry) { writer_.add(entry.record, entry.image); }
  [[nodiscard]] Champions book(const std::vector<BookEntry>& entries) const {
    ProgramFileWriter writer("abcd");
    for (const BookEntry& entry : entries) writer.add(entry.record, entry.image);
    return {ProgramFile::parse(writer.bytes(), "the book"), device_};
  }
  Selection select(const Champions* book = nullptr) {
    ProgramFileWriter all = writer_;
    ProgramRecord plain;
    plain.arch = "sm_90a";
    plain.workload = kSelectedFor;
    plain.variant = describe(rule(kSelectedFor));
    plain.origin = "rule";
    all.add(plain, "code of the rule");
    programs_ = std::make_unique<Programs>(ProgramFile::parse(all.bytes(), "programs"), device_);
    refused_.clear();
    const Wanted wanted{parse_workload(kSelectedFor), std::nullopt};
    if (book != nullptr)
      if (auto chosen = select_from_book(*book, wanted, refused_)) return *chosen;
    return programs_->select(wanted, book, refused_);
  }

  DeviceFacts device_ = representative_gpu("sm_90a");
  ProgramFileWriter writer_{"abcd"};
  std::unique_ptr<Programs> programs_;
  std::vector<std::string> refused_;
};

TEST_F(Order, FirstTheBookThenChampionsThenNeighboursThenTheRule) {
  EXPECT_EQ(select().step, Step::rule);
  has(champion(kNear));
  EXPECT_EQ(select().step, Step::neighbour);
  has(champion(kSelectedFor));
  EXPECT_EQ(select().step, Step::champion);
  const Champions near = book({champion(kNear, 2)});
  EXPECT_EQ(select(&near).step, Step::champion) << "the very workload before the book's neighbour";
  const Champions own = book({champion(kSelectedFor)});
  EXPECT_EQ(select(&own).step, Step::book);
}

TEST_F(Order, TheDevicesOwnChampionBeforeAnothersOfItsArchitecture) {
  const Champions both = book({champion(kSelectedFor, 1.9, "GPU B"), champion(kSelectedFor, 1.1, "GPU A")});
  EXPECT_EQ(select(&both).record->provenance->device, "GPU A");
  const Champions others = book({champion(kSelectedFor, 1.9, "GPU B")});
  EXPECT_EQ(select(&others).record->provenance->device, "GPU B");
  BookEntry old = champion(kSelectedFor);
  old.record.arch = "sm_80";
  const Champions elsewhere = book({old});
  EXPECT_EQ(select(&elsewhere).step, Step::rule) << "another architecture";
  writer_.add_unbeaten({"sm_90a", kSelectedFor, "GPU A"});
  has(champion(kSelectedFor, 1.9, "GPU B"));
  EXPECT_EQ(select().step, Step::rule) << "a search on this device found nothing faster";
}

TEST_F(Order, AChampionThatMayNotRunIsToldAndPassedOver) {
  BookEntry entry = champion(kSelectedFor);
  entry.record.contract = "other";
  Champions one = book({entry});
  EXPECT_EQ(select(&one).step, Step::rule);
  ASSERT_EQ(refused_.size(), 1U);
  EXPECT_THAT(refused_[0], ::testing::HasSubstr("built for the kernel contract other"));
  entry = champion(kSelectedFor);
  entry.record.provenance->ratio.low = 1;
  one = book({entry});
  EXPECT_EQ(select(&one).step, Step::rule);
  EXPECT_THAT(refused_.at(0), ::testing::HasSubstr("reaches down to 1"));
  entry = champion(kSelectedFor);
  entry.record.variant = "no_such_family:a=1";
  one = book({entry});
  EXPECT_EQ(select(&one).step, Step::rule);
  EXPECT_EQ(refused_.size(), 1U);
}

// Without one setting of a variant's text, which is not the last.
std::string without(std::string text, const std::string& knob) {
  const std::size_t at = text.find(knob + "=");
  return text.erase(at, text.find(',', at) + 1 - at);
}

// Today's rule for a knob that a text leaves out is not what the binary was built with.
TEST_F(Order, ABinaryThatDoesNotSayHowItWasBuiltIsNotRun) {
  const Family& family = *rule(kSelectedFor).family;
  const std::string knob = family.knobs().front().name;
  BookEntry entry = champion(kSelectedFor);
  entry.record.variant = without(entry.record.variant, knob);
  const Champions one = book({entry});
  EXPECT_EQ(select(&one).step, Step::rule);
  ASSERT_EQ(refused_.size(), 1U);
  EXPECT_THAT(refused_[0], ::testing::HasSubstr("does not say what " + knob + " its binary was built with"));
  entry.record.provenance.reset();
  has(entry);
  expect_error(ErrorCode::programs, "does not say what " + knob, [&] { (void)select(); });
}

TEST_F(Order, NeighboursKeepToTheRule) {
  const Champions near = book({champion(kNear)});
  EXPECT_EQ(select(&near).step, Step::neighbour);
  const Champions far = book({champion(kFar)});
  EXPECT_EQ(select(&far).step, Step::rule);
  BookEntry entry = champion(kNear);
  entry.record.provenance->base = "another default";
  const Champions other_base = book({entry});
  EXPECT_EQ(select(&other_base).step, Step::rule);
  const Champions two = book({champion(kNear, 1.1), champion("b3h10l512d64:fp16", 1.3)});
  EXPECT_EQ(select(&two).record->workload, "b3h10l512d64:fp16") << "the nearest, 30 heads to 32";
  const Champions equal = book({champion(kNear, 1.3, "GPU B"), champion(kNear, 1.1, "GPU A")});
  EXPECT_EQ(select(&equal).record->provenance->device, "GPU A");
}

TEST_F(Order, AnUnbeatenEntryAsNearStopsANeighbour) {
  const Champions near = book({champion(kNear)});
  writer_.add_unbeaten({"sm_90a", kFar, "GPU B"});
  EXPECT_EQ(select(&near).step, Step::neighbour) << "one that is too far says nothing";
  writer_.add_unbeaten({"sm_90a", kNear, "GPU B"});
  EXPECT_EQ(select(&near).step, Step::rule);
}

}  // namespace
}  // namespace heed::dispatch
