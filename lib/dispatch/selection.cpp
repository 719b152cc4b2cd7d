#include "dispatch/selection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>

#include "append/append.hpp"
#include "dispatch/contract.hpp"
#include "listing/listing.hpp"
#include "merge/merge.hpp"
#include "padding/padding.hpp"
#include "quantise/quantise.hpp"
#include "workload/features.hpp"

namespace heed::dispatch {
namespace {

// How far two configs are from each other.
struct Distance {
  int of_accuracy = 0;  ///< knobs of accuracy that differ
  int knobs = 0;        ///< all that differ
  int steps = 0;        ///< between their values, of all knobs: 128 rows are nearer to 96 than to 16
  auto operator<=>(const Distance&) const = default;
};

// On a CPU but for `threads`, which a plan chooses whatever the program was cut for.
Distance distance(const Family& family, const Config& a, const Config& b) {
  const std::vector<Knob>& knobs = family.knobs();
  Distance far;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (family.device() == DeviceKind::cpu && knobs[i].name == "threads")) continue;
    ++far.knobs;
    far.of_accuracy += knobs[i].of_accuracy ? 1 : 0;
    far.steps += std::abs(knobs[i].index_of(a[i]) - knobs[i].index_of(b[i]));
  }
  return far;
}

// What a program can do beside what it is taken for.
std::string features_remark(const Variant& variant, const Workload& workload) {
  const Features spare = variant.spare_features(workload);
  return has_features(spare) ? fmt::format("; it was built with {} too", words_of(spare)) : "";
}

// What was measured of a champion; a binary of other sources is not the one that was.
std::string evidence_of(const ProgramRecord& record) {
  const Provenance& p = *record.provenance;
  return to_string(p) + (record.source_digest == p.source_digest ? "" : ", measured with other sources");
}

// The command whose file holds a program for a problem. By default it builds none for page pools in 8 bits, and beside
// quantised tensors, which are not padded, none of other head dims.
std::string build_command(const Workload& w, const DeviceFacts& device) {
  std::string command = "heed programs build";
  if (!w.quantised) return command;
  const std::optional<QuantisedTensor>& k = w.quantised->k;
  if (k && w.quantised->v && !w.quantised->q && k->dtype == w.quantised->v->dtype)
    command += fmt::format(" --page-dtypes {}", to_string(k->dtype));
  const bool is_usual = w.dim == 64 || w.dim == 128 || w.dim == 256 || (w.dim == 32 && device.kind == DeviceKind::cpu);
  return is_usual ? command : command + fmt::format(" --dims {}", w.dim);
}

}  // namespace

std::string_view to_string(Step step) {
  switch (step) {
    case Step::given:
      return "given";
    case Step::book:
      return "book";
    case Step::champion:
      return "champion";
    case Step::neighbour:
      return "neighbour";
    case Step::rule:
      return "rule";
  }
  return "";
}

std::optional<Selection> select_from_book(const Champions& book, const Wanted& wanted,
                                          std::vector<std::string>& refused) {
  auto found = book.of(wanted, refused);
  if (!found) return std::nullopt;
  return Selection{found->record, std::move(found->variant), evidence_of(*found->record), Step::book, found->file};
}

Programs::Programs(std::shared_ptr<const ProgramFile> file, const DeviceFacts& device)
    : file_(file), device_(device), champions_(std::move(file), device) {
  for (const ProgramRecord& record : file_->records()) {
    const ArchFit fit = arch_fit(record.arch, device_);
    if (fit == ArchFit::none) continue;
    if (record.contract != kernel_contract(record.workload))
      throw Error(
          ErrorCode::programs,
          fmt::format("{} holds programs for the kernel contract {}, this library's is {}; make it anew with heed "
                      "programs build",
                      file_->name(), record.contract, kernel_contract(record.workload)),
          record.variant);
    const ProgramRecord** const helper = record.variant == padding::kCopyProgram        ? &copies_
                                         : record.variant == merge::kMergeProgram       ? &merge_
                                         : record.variant == quantise::kQuantiseProgram ? &quantiser_
                                         : record.variant == listing::kListProgram      ? &lister_
                                         : record.variant == quantise::kLostProgram     ? &lost_
                                         : record.variant == append::kAppendProgram     ? &append_
                                                                                        : nullptr;
    if (helper != nullptr) {
      const ProgramRecord*& best = *helper;
      if (best == nullptr || fit > arch_fit(best->arch, device_)) best = &record;
      continue;
    }
    try {
      const DeviceFacts facts = facts_for(record.arch, device_);
      entries_.push_back({&record, built_variant(record.variant, parse_workload(record.workload), facts), fit, facts});
    } catch (const Error& error) {
      throw Error(ErrorCode::programs,
                  fmt::format("{} holds a program that this library does not know: {}", file_->name(), error.what()),
                  record.variant);
    }
  }
}

std::pair<const Programs::Entry*, int> Programs::nearest(const Family& family, const Wanted& wanted) const {
  std::map<std::string_view, Config> named;  // by architecture
  const Entry* best = nullptr;
  std::tuple<int, int, int, int> fewest;  // knobs of accuracy, features to spare, knobs, steps between their values
  for (const Entry& entry : entries_) {
    const Variant& v = entry.variant;
    if (v.family != &family || cannot_run(v, wanted, entry.device)) continue;
    Config& rule = named[entry.device.arch];
    if (rule.empty()) rule = family.default_config(wanted.workload, entry.device);
    const Distance far = distance(family, v.config, rule);
    const std::tuple differ = {far.of_accuracy, count_of(v.spare_features(wanted.workload)),
                               far.knobs + (v.specialization == Specialization{} ? 0 : 1), far.steps};
    if (best != nullptr && (entry.fit < best->fit || (entry.fit == best->fit && differ >= fewest))) continue;
    best = &entry;
    fewest = differ;
  }
  return {best, std::get<2>(fewest)};
}

Selection Programs::select(const Wanted& wanted, const Champions* book, std::vector<std::string>& refused) const {
  if (auto found = champions_.of(wanted, refused))
    return {found->record, std::move(found->variant), "champion of this workload, " + evidence_of(*found->record),
            Step::champion, file_.get()};
  if (auto chosen = by_neighbour(wanted, book)) return std::move(*chosen);
  return by_rule(wanted);
}

std::optional<Selection> Programs::by_neighbour(const Wanted& wanted, const Champions* book) const {
  const Workload& w = wanted.workload;
  const Family& own = default_family(w, device_);  // throws where none runs it
  const std::string base = make_variant(own, own.default_config(w, device_), w).id();
  std::optional<Champions::Neighbour> best = champions_.nearest(wanted, base);
  if (book != nullptr) best = nearer(book->nearest(wanted, base), std::move(best));
  if (!best || champions_.is_unbeaten_within(w, best->distance)) return std::nullopt;
  const ProgramRecord& record = *best->found.record;
  return Selection{&record, std::move(best->found.variant),
                   fmt::format("tuned neighbour {}, {}", record.workload, evidence_of(record)), Step::neighbour,
                   best->found.file};
}

Selection Programs::by_rule(const Wanted& wanted) const {
  const Workload& workload = wanted.workload;
  const Family& own = default_family(workload, device_);  // throws where none runs it
  std::vector<const Family*> order = {&own};
  for (const Family* family : searched_families(workload, device_))
    if (family != &own) order.push_back(family);
  for (const Family* family : order) {
    if (family->refuses(workload, device_)) continue;
    const auto [best, differ] = nearest(*family, wanted);
    if (best == nullptr) continue;
    const std::string why = differ == 0
                                ? fmt::format("the rule of {} names it for this problem", family->name())
                                : fmt::format("of {}'s programs it is nearest to what the rule names, {} knobs differ",
                                              family->name(), differ);
    return {best->record, best->variant,
            why + features_remark(best->variant, workload) + fit_remark(best->record->arch, device_), Step::rule,
            file_.get()};
  }
  // Those of the problem's element type and head dim first, a few of them: a whole file has hundreds.
  constexpr std::size_t kMostNamed = 6;
  const std::string wanted_problem = to_string(problem_of(workload));
  const std::string nearest_kind = wanted_problem.substr(0, wanted_problem.find('_', wanted_problem.find('_') + 1));
  std::set<std::pair<bool, std::string>> there;
  for (const Entry& entry : entries_) {
    const std::string problem = to_string(entry.variant.problem);
    there.emplace(!problem.starts_with(nearest_kind), problem);
  }
  std::vector<std::string> named;
  for (const auto& [is_far, problem] : there)
    if (named.size() < kMostNamed) named.push_back(problem);
  const std::size_t unnamed = there.size() - named.size();
  std::set<std::string> others;
  for (const ProgramRecord& record : file_->records()) others.insert(record.arch);
  throw Error(
      ErrorCode::unsupported,
      fmt::format(
          "{} holds no program for {} on {}; {} makes a file that does. For that architecture this one has {}",
          file_->name(), wanted_problem,
          device_.level.empty() ? device_.arch : fmt::format("{} (CPU levels to {})", device_.arch, device_.level),
          build_command(workload, device_),
          !there.empty()
              ? fmt::format("{}{}", fmt::join(named, ", "),
                            unnamed == 0 ? "" : fmt::format(" and {} other{}", unnamed, unnamed == 1 ? "" : "s"))
          : others.empty() ? "none"
                           : fmt::format("none: it was built for {}", fmt::join(others, ", "))),
      to_string(workload));
}

Selection Programs::find(const Variant& variant) const {
  const Entry* best = nullptr;
  const auto rank = [](const Entry& e) { return std::pair(e.fit, -count_of(e.variant.problem.features)); };
  for (const Entry& entry : entries_) {
    const Variant& v = entry.variant;
    Problem problem = v.problem;
    problem.features = variant.problem.features;
    if (v.family == variant.family && v.specialization == variant.specialization && problem == variant.problem &&
        covers(v.problem.features, variant.problem.features) && (best == nullptr || rank(entry) > rank(*best)) &&
        distance(*variant.family, v.config, variant.config).knobs == 0)
      best = &entry;
  }
  if (best != nullptr)
    return {best->record, best->variant, "it was asked for" + fit_remark(best->record->arch, device_), Step::given,
            file_.get()};
  throw Error(ErrorCode::unsupported,
              fmt::format("{} holds no program of {}; build it with heed build and give its image", file_->name(),
                          describe(variant)),
              describe(variant));
}

}  // namespace heed::dispatch
