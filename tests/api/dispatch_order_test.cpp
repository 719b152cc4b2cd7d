// Which program a problem gets: each step of the order, and what is wrong with a book that was named or was not.
#include <sys/stat.h>

#include "api/plan.hpp"
#include "dispatch/champion_entries.hpp"
#include "dispatch/covering.hpp"
#include "testing.hpp"

namespace heed::api {
namespace {

using dispatch::Step;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::champion;
using testing_support::EnvironmentVariable;
using testing_support::expect_error;
using testing_support::Found;
using testing_support::TemporaryFolder;

constexpr const char* kShape = "b1h8l512d64:fp16";

class DispatchOrder : public ::testing::Test {
 protected:
  DispatchOrder() : device_(dispatch::representative_gpu("sm_90a")) {
    device_.name = "NVIDIA H100";
    options_.programs = folder_.file("heed.programs");
    options_.book = "";
    rule_ = variant_of(kShape);
    write_programs({});
  }

  // The text of the default, or of another family's for the same problem.
  [[nodiscard]] std::string variant_of(const std::string& shape, const std::string& family = {}) const {
    const Workload w = parse_workload(shape);
    const Family& f = family.empty() ? default_family(w, device_) : find_family(family);
    return describe(make_variant(f, f.default_config(w, device_), w));
  }
  [[nodiscard]] std::string id_of_default(const std::string& shape) const {
    const Workload w = parse_workload(shape);
    const Family& f = default_family(w, device_);
    return make_variant(f, f.default_config(w, device_), w).id();
  }
  [[nodiscard]] Found found(const std::string& shape, const std::string& image) const {
    return {.workload = shape, .variant = variant_of(shape, "fwd_sm80"), .base = id_of_default(shape), .image = image};
  }

  void write_programs(const std::vector<Found>& champions, const std::vector<dispatch::UnbeatenRecord>& unbeaten = {}) {
    dispatch::ProgramFileWriter writer("5555555555555555");
    dispatch::ProgramRecord rule;
    rule.arch = "sm_90a";
    rule.workload = kShape;
    rule.variant = rule_;
    rule.origin = "rule";
    writer.add(rule, "rule");
    for (const Found& one : champions) {
      const dispatch::BookEntry entry = champion(one);
      writer.add(entry.record, entry.image);
    }
    for (const dispatch::UnbeatenRecord& one : unbeaten) writer.add_unbeaten(one);
    write_file_atomically(options_.programs, writer.bytes(), ErrorCode::internal);
  }
  // @return its path
  std::string write_book(const std::vector<dispatch::BookEntry>& entries) {
    // Not by Book::merge, which refuses some of what is to be read here.
    dispatch::ProgramFileWriter writer("5555555555555555");
    for (const dispatch::BookEntry& entry : entries) writer.add(entry.record, entry.image);
    const std::string path = folder_.file("book" + std::to_string(++books_));
    write_file_atomically(path, writer.bytes(), ErrorCode::internal);
    return path;
  }

  [[nodiscard]] Choice choose(const std::string& shape = kShape) const {
    const Workload w = parse_workload(shape);
    const heed_problem dense = problem_of(w, DeviceKind::cuda);
    return decide(read_problem(&dense), options_, device_).choice;
  }

  TemporaryFolder folder_;
  DeviceFacts device_;
  Options options_;
  std::string rule_;
  int books_ = 0;
};

TEST_F(DispatchOrder, ABooksChampionComesFirst) {
  write_programs({found(kShape, "champion")});
  options_.book = write_book({champion(found(kShape, "book"))});
  const Choice choice = choose();
  EXPECT_EQ(*choice.image, "book");
  EXPECT_EQ(choice.step, Step::book);
  EXPECT_EQ(choice.origin, "book " + *options_.book);
  EXPECT_EQ(choice.reason, "run 12 trial 7: 1.13 [1.12, 1.14] over its base on NVIDIA H100");
  EXPECT_EQ(*choose(std::string(kShape) + ":scale=0.3").image, "book") << "a scale is a parameter of the launch";
  // No file of programs is asked for then.
  options_.programs = "/no/such/file";
  EXPECT_EQ(*choose().image, "book");
}

TEST_F(DispatchOrder, AProgramsChampionComesSecond) {
  write_programs({found(kShape, "champion")});
  options_.book = write_book({champion(found("b1h8l512d64:bf16", "book"))});
  const Choice choice = choose();
  EXPECT_EQ(*choice.image, "champion");
  EXPECT_EQ(choice.step, Step::champion);
  EXPECT_EQ(choice.origin, options_.programs);
  EXPECT_THAT(choice.reason, StartsWith("champion of this workload, run 12 trial 7: "));
}

TEST_F(DispatchOrder, TheDevicesOwnChampionComesBeforeAnothers) {
  Found other = found(kShape, "of another");
  other.device = "NVIDIA H200";
  options_.book = write_book({champion(other), champion(found(kShape, "own"))});
  EXPECT_EQ(*choose().image, "own");
  device_.name = "NVIDIA GH200";
  EXPECT_EQ(*choose().image, "of another") << "the first of its architecture";
  other.arch = "sm_80";
  options_.book = write_book({champion(other)});
  EXPECT_EQ(*choose().image, "rule") << "of another architecture";
}

TEST_F(DispatchOrder, ADeviceWhoseDefaultIsUnbeatenTakesNoOthersChampion) {
  Found other = found(kShape, "of another");
  other.device = "NVIDIA H200";
  write_programs({other}, {{"sm_90a", kShape, "NVIDIA H100"}});
  EXPECT_EQ(*choose().image, "rule");
  write_programs({other}, {{"sm_90a", kShape, "NVIDIA A100"}});
  EXPECT_EQ(*choose().image, "of another");
}

TEST_F(DispatchOrder, ANeighbourComesThirdWhereTheRuleAllowsIt) {
  const std::string near = "b1h8l512k520d64:fp16";
  const std::string far = "b1h8l512k1100d64:fp16";
  Found neighbour = found(near, "neighbour");
  neighbour.base = id_of_default(kShape);
  options_.book = write_book({champion(neighbour)});
  Choice choice = choose();
  EXPECT_EQ(*choice.image, "neighbour");
  EXPECT_EQ(choice.step, Step::neighbour);
  EXPECT_EQ(choice.origin, *options_.book);
  EXPECT_THAT(choice.reason, StartsWith("tuned neighbour b1h8l512k520d64:fp16, run 12 trial 7: "));
  options_.book = "";
  write_programs({neighbour});
  EXPECT_EQ(choose().step, Step::neighbour) << "of the programs, too";

  const auto falls_to_rule = [&](const char* why, const Found& one,
                                 const std::vector<dispatch::UnbeatenRecord>& unbeaten = {}) {
    write_programs({one}, unbeaten);
    EXPECT_EQ(choose().step, Step::rule) << why;
  };
  Found changed = neighbour;
  changed.workload = far;
  falls_to_rule("further than a factor 2 of keys", changed);
  changed = neighbour;
  changed.base = "fwd_base.0";
  falls_to_rule("never measured against this default", changed);
  changed = neighbour;
  changed.variant = variant_of(near, "fwd_sm90_split");
  changed.variant.replace(changed.variant.find("specialize=none"), 15, "specialize=shape");
  falls_to_rule("built for its own shape", changed);
  falls_to_rule("this workload's default is unbeaten", neighbour, {{"sm_90a", kShape, "NVIDIA H200"}});
  falls_to_rule("one as near is unbeaten", neighbour, {{"sm_90a", "b1h8l512k505d64:fp16", "NVIDIA H200"}});
  write_programs({neighbour}, {{"sm_90a", "b1h8l512k700d64:fp16", "NVIDIA H200"}});
  EXPECT_EQ(choose().step, Step::neighbour) << "an unbeaten one further away says nothing";
}

// An id of before names changed says nothing any more; the config of the base still does, if it names every knob.
TEST_F(DispatchOrder, ANeighboursBaseIsKnownByItsConfig) {
  Found neighbour = found("b1h8l512k520d64:fp16", "neighbour");
  neighbour.base = "fwd_earlier_fp16_d64.m1g1.01234567";
  const auto step_with = [&](const std::string& config) {
    neighbour.base_config = config;
    write_programs({neighbour});
    return choose().step;
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = rule_;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_EQ(step_with(""), Step::rule);
  EXPECT_EQ(step_with(rule_), Step::neighbour);
  // fwd_sm90_split was fwd_sm90, and its knob kv_groups key_groups.
  std::string earlier = with("kv_groups=", "key_groups=");
  EXPECT_EQ(step_with(earlier.replace(0, earlier.find(':'), "fwd_sm90")), Step::neighbour);
  EXPECT_EQ(step_with(with("cluster=2", "cluster=1")), Step::rule) << "another base";
  EXPECT_EQ(step_with(with("cluster=2,", "")), Step::rule) << "nothing says what it was measured with";
  EXPECT_EQ(step_with(with("cluster=2", "cluster=no")), Step::rule);
  EXPECT_EQ(step_with("fwd_none:a=1"), Step::rule);
}

TEST_F(DispatchOrder, TheNearestNeighbourIsTaken) {
  const std::string base = id_of_default(kShape);
  const auto at = [&](const char* shape, const char* image, const char* device = "NVIDIA H100", double low = 1.12) {
    Found one = found(shape, image);
    one.base = base;
    one.device = device;
    one.low = low;
    return one;
  };
  write_programs({at("b1h8l512k700d64:fp16", "far"), at("b1h8l512k520d64:fp16", "near")});
  EXPECT_EQ(*choose().image, "near");
  write_programs({at("b1h8l512k520d64:fp16", "another", "NVIDIA H200", 1.5), at("b1h8l512k520d64:fp16", "own")});
  EXPECT_EQ(*choose().image, "own");
  options_.book = write_book({champion(at("b1h8l512k516d64:fp16", "book"))});
  EXPECT_EQ(*choose().image, "book");
}

TEST_F(DispatchOrder, TheRuleComesLast) {
  const Choice choice = choose();
  EXPECT_EQ(*choice.image, "rule");
  EXPECT_EQ(choice.step, Step::rule);
  EXPECT_THAT(choice.reason, HasSubstr("names it for this problem"));
}

TEST_F(DispatchOrder, WhatABookHoldsAndCannotRunIsTold) {
  const auto passed_over = [&](const std::string& words, const dispatch::BookEntry& entry) {
    options_.book = write_book({entry});
    const Choice choice = choose();
    EXPECT_EQ(*choice.image, "rule");
    EXPECT_THAT(choice.reason, AllOf(HasSubstr("champion of this workload is not used"), HasSubstr(words)));
  };
  dispatch::BookEntry entry = champion(found(kShape, "book"));
  entry.record.contract = "00";
  passed_over("it was built for the kernel contract 00", entry);
  entry = champion(found(kShape, "book"));
  entry.record.variant = "fwd_none:a=1";
  passed_over("unknown family", entry);
  entry.record.variant = "fwd_cpu";
  passed_over("CPU", entry);
  entry = champion(found(kShape, "book"));
  entry.record.provenance->ratio.low = 0.99;
  passed_over("reaches down to 1", entry);
}

// Where no program runs the workload either.
TEST_F(DispatchOrder, ARefusalTellsOfTheChampionThatCouldNotBeTaken) {
  const std::string shape = "b1h8l512d128:bf16";
  dispatch::BookEntry of_another_contract = champion(found(shape, "book"));
  of_another_contract.record.contract = "00";
  options_.book = write_book({of_another_contract});
  const std::string told =
      "; " + *options_.book + "'s champion of this workload is not used: it was built for the kernel contract 00";
  expect_error(ErrorCode::unsupported, "holds no program for bf16_d128", [&] { (void)choose(shape); });
  expect_error(ErrorCode::unsupported, told, [&] { (void)choose(shape); });
  // Nor is there a file of programs.
  options_.programs = "/no/such/file";
  expect_error(ErrorCode::programs, "/no/such/file", [&] { (void)choose(shape); });
  expect_error(ErrorCode::programs, told, [&] { (void)choose(shape); });
}

TEST_F(DispatchOrder, OtherSourcesThanWereMeasuredAreTold) {
  dispatch::BookEntry entry = champion(found(kShape, "book"));
  entry.record.source_digest = "6666666666666666";
  options_.book = write_book({entry});
  EXPECT_THAT(choose().reason, HasSubstr("measured with other sources"));
}

// What the environment names counts as named.
class DefaultBook : public DispatchOrder {
 protected:
  DefaultBook() {
    options_.book.reset();
    std::filesystem::create_directory(folder_.path() / "heed");
    path_ = folder_.file("heed/book.heed");
  }
  void lay(const std::string& bytes) const { write_file_atomically(path_, bytes, ErrorCode::internal); }
  [[nodiscard]] std::string whole() {
    return read_file(write_book({champion(found(kShape, "book"))}), ErrorCode::internal);
  }

  EnvironmentVariable no_name_{"HEED_BOOK", std::nullopt};
  EnvironmentVariable data_home_{"XDG_DATA_HOME", folder_.path().string()};
  std::string path_;
};

TEST_F(DefaultBook, IsTakenWhereItIsThere) {
  EXPECT_EQ(*choose().image, "rule") << "there is none, and that is no error";
  EXPECT_THAT(choose().reason, Not(HasSubstr("book")));
  lay(whole());
  EXPECT_EQ(*choose().image, "book") << "one that appears is found by the process that asked before";
  ::chmod(path_.c_str(), 0444);
  EXPECT_EQ(*choose().image, "book");
  options_.book = "";
  EXPECT_EQ(*choose().image, "rule");
}

TEST_F(DefaultBook, LiesInTheHomeAndWithoutAHomeThereIsNone) {
  const EnvironmentVariable no_data("XDG_DATA_HOME", std::nullopt);
  {
    const EnvironmentVariable home("HOME", folder_.path().string());
    std::filesystem::create_directories(folder_.path() / ".local/share/heed");
    write_file_atomically(folder_.path() / ".local/share/heed/book.heed", whole(), ErrorCode::internal);
    EXPECT_EQ(*choose().image, "book");
  }
  for (const std::optional<std::string>& home :
       {std::optional<std::string>(), std::optional<std::string>("/proc/self")}) {
    const EnvironmentVariable other("HOME", home);
    EXPECT_EQ(*choose().image, "rule");
    EXPECT_THAT(choose().reason, Not(HasSubstr("book")));
  }
}

TEST_F(DefaultBook, ADamagedOneKeepsNoProgramFromRunning) {
  std::string bytes = whole();
  lay(bytes.substr(0, 100));
  EXPECT_EQ(*choose().image, "rule");
  EXPECT_THAT(choose().reason, AllOf(HasSubstr("; the book is not used: "), HasSubstr(path_), HasSubstr("truncated")));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // of an image: the index is whole
  lay(bytes);
  EXPECT_EQ(*choose().image, "rule");
  EXPECT_THAT(choose().reason, AllOf(HasSubstr("; the book is not used: "), HasSubstr("altered")));
  // Nothing else runs this one: the refusal tells of the book, too.
  lay(bytes.substr(0, 100));
  expect_error(ErrorCode::unsupported, "the book is not used", [&] { (void)choose("b1h8l512d128:bf16"); });
}

TEST_F(DefaultBook, ANamedOneThatCannotBeReadIsAnError) {
  const auto refused = [&](const std::string& words) {
    expect_error(ErrorCode::programs, words, [&] { (void)choose(); });
  };
  std::optional<EnvironmentVariable> environment;
  for (const bool by_environment : {false, true}) {
    const auto name = [&](const std::string& path) {
      environment.reset();
      if (by_environment)
        environment.emplace("HEED_BOOK", path);
      else
        options_.book = path;
    };
    options_.book.reset();
    name(folder_.file("nowhere"));
    refused("nowhere");
    lay(whole().substr(0, 100));
    name(path_);
    refused("truncated");
    name(options_.programs);
    refused("is no book");
    std::string bytes = whole();
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    lay(bytes);
    name(path_);
    refused("altered");
  }
  environment.reset();
  environment.emplace("HEED_BOOK", "");
  EXPECT_EQ(*choose().image, "rule") << "an empty name stands for none";
}

}  // namespace
}  // namespace heed::api
