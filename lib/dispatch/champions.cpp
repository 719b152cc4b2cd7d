#include "dispatch/champions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/text.hpp"
#include "dispatch/architecture.hpp"
#include "dispatch/contract.hpp"
#include "dispatch/neighbour.hpp"
#include "variant/renames.hpp"

namespace heed::dispatch {
namespace {

// Numbers that no program depends on: the scale, and those of a softcap, of dropout and of a norm.
Workload without_scale(Workload workload) {
  workload.scale.reset();
  if (workload.softcap != 0) workload.softcap = 1;
  if (workload.dropout != 0) workload.dropout = 0.5;
  if (workload.out_norm) workload.out_norm->eps = OutNorm{}.eps;
  return reduced(workload);
}

std::optional<Workload> read_workload(const std::string& text) {
  try {
    return without_scale(parse_workload(text));
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The first knob of its family that a variant's text does not name; empty where it names all.
std::string knob_left_out(std::string_view text, const Family& family) {
  const std::vector<std::string> settings = split(text.substr(text.find(':') + 1), ',');
  const auto found = std::find_if(family.knobs().begin(), family.knobs().end(), [&](const Knob& knob) {
    return std::none_of(settings.begin(), settings.end(),
                        [&](const std::string& setting) { return setting.starts_with(knob.name + "="); });
  });
  return found == family.knobs().end() ? "" : found->name;
}

// The id of a champion's base by today's names; the stored one where its config was not stored, or is no config of
// today: a knob that came later had no value in what was measured.
std::string id_of_base(const ProgramRecord& record, const Workload& workload, const DeviceFacts& device) {
  const Provenance& p = *record.provenance;
  if (p.base_config.empty()) return p.base;
  try {
    const std::string text = with_current_names(p.base_config);
    const Variant base = parse_variant(text, workload, device);
    return knob_left_out(text, *base.family).empty() ? base.id() : p.base;
  } catch (const Error&) {
    return p.base;
  }
}

bool differs(const TensorStrides& own, const TensorStrides& asked, const Workload& w) {
  return (w.batch > 1 && own.batch != asked.batch) || (w.heads > 1 && own.head != asked.head) ||
         (w.len_q > 1 && own.row != asked.row);
}

}  // namespace

std::optional<std::string> cannot_run(const Variant& variant, const Wanted& wanted, const DeviceFacts& device) {
  const Workload& w = wanted.workload;
  if (auto why = variant.family->refuses(w, device)) return why;
  if (!variant.runs(w)) return "it is built for other problems";
  if (auto why = program_is_illegal(variant, w, device)) return why;
  if (!wanted.o_strides || variant.specialization.o_layout != OutputLayout::dense) return std::nullopt;
  if (const auto own = variant.plan(w, device).o_strides; own && differs(*own, *wanted.o_strides, w))
    return "it writes dense outputs alone, and the problem's has other strides";
  return std::nullopt;
}

Variant built_variant(std::string_view text, const Workload& workload, const DeviceFacts& device) {
  const std::string current = with_current_names(text);
  Variant variant = parse_variant(current, workload, device);
  if (const std::string missing = knob_left_out(current, *variant.family); !missing.empty())
    throw Error(ErrorCode::programs,
                fmt::format("{} does not say what {} its binary was built with; build it anew", text, missing));
  return variant;
}

Champions::Champions(std::shared_ptr<const ProgramFile> file, const DeviceFacts& device)
    : file_(std::move(file)), device_(device) {
  for (const ProgramRecord& record : file_->records())
    if (record.provenance && record.arch == device_.arch)
      if (const auto workload = read_workload(record.workload)) entries_.push_back({&record, *workload});
  for (const UnbeatenRecord& record : file_->unbeaten())
    if (record.arch == device_.arch)
      if (const auto workload = read_workload(record.workload)) unbeaten_.push_back({*workload, record.device});
}

std::optional<Champions::Found> Champions::admitted(const Entry& entry, const Wanted& wanted, std::string& why) const {
  const ProgramRecord& record = *entry.record;
  why = lacks_evidence(*record.provenance);
  if (why.empty() && record.contract != kernel_contract(record.workload))
    why = fmt::format("it was built for the kernel contract {}, this library's is {}", record.contract,
                      kernel_contract(record.workload));
  if (!why.empty()) return std::nullopt;
  try {
    Variant variant = built_variant(record.variant, entry.workload, device_);
    if (const auto reason = cannot_run(variant, wanted, device_)) {
      why = *reason;
      return std::nullopt;
    }
    return Found{&record, std::move(variant), file_.get()};
  } catch (const Error& error) {
    why = error.what();
    return std::nullopt;
  }
}

std::optional<Champions::Found> Champions::of(const Wanted& wanted, std::vector<std::string>& refused) const {
  const Workload workload = without_scale(wanted.workload);
  bool may_be_of_another = true;
  for (const Unbeaten& one : unbeaten_)
    if (one.workload == workload && one.device == device_.name) may_be_of_another = false;
  for (const bool own : {true, false}) {
    if (!own && !may_be_of_another) break;
    for (const Entry& entry : entries_) {
      if (entry.workload != workload || (entry.record->provenance->device == device_.name) != own) continue;
      std::string why;
      if (auto found = admitted(entry, wanted, why)) return found;
      refused.push_back(fmt::format("{}'s champion of this workload is not used: {}", file_->name(), why));
    }
  }
  return std::nullopt;
}

std::optional<Champions::Neighbour> Champions::nearest(const Wanted& wanted, const std::string& base) const {
  std::optional<Neighbour> best;
  for (const Entry& entry : entries_) {
    const auto distance = neighbour_distance(entry.workload, wanted.workload);
    if (!distance || id_of_base(*entry.record, entry.workload, device_) != base) continue;
    std::string why;
    auto found = admitted(entry, wanted, why);
    if (!found || found->variant.specialization != Specialization{}) continue;
    best = nearer(std::move(best),
                  Neighbour{std::move(*found), *distance, entry.record->provenance->device == device_.name});
  }
  return best;
}

bool Champions::is_unbeaten_within(const Workload& workload, double distance) const {
  for (const Unbeaten& one : unbeaten_)
    if (const auto d = neighbour_distance(one.workload, workload); d && *d <= distance) return true;
  return false;
}

std::optional<Champions::Neighbour> nearer(std::optional<Champions::Neighbour> a,
                                           std::optional<Champions::Neighbour> b) {
  if (!a || !b) return a ? a : b;
  const auto rank = [](const Champions::Neighbour& n) {
    return std::tuple(n.distance, !n.is_of_device, -n.found.record->provenance->ratio.low);
  };
  return rank(*b) < rank(*a) ? b : a;
}

}  // namespace heed::dispatch
