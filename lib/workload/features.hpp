/// A workload's features: the text, the part of them that kernels are built for, and the lengths of entries.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"
#include "kernels/attention/features.hpp"

namespace heed {

/// A member of Features with the word for it in sentences, in the order of the members.
struct FeatureName {
  std::string_view name;
  bool Features::*member;
  std::string_view words;
};
inline constexpr FeatureName kFeatureNames[] = {
    {"softcap", &Features::softcap, "a softcap"},
    {"bias", &Features::bias, "biases or a mask tensor"},
    {"alibi", &Features::alibi, "ALiBi slopes"},
    {"sinks", &Features::sinks, "attention sinks"},
    {"lengths", &Features::lengths, "lengths of batch entries"},
    {"pages", &Features::pages, "paged keys and values"},
    {"blocks", &Features::blocks, "lists of blocks of keys"},
    {"prefix", &Features::prefix, "prefixes that all rows see"},
    {"dropout", &Features::dropout, "dropout"},
    {"relative", &Features::relative, "tables of relative-position biases"},
    {"out_norm", &Features::out_norm, "norms of output rows"},
    {"out_gate", &Features::out_gate, "output gates"},
};

inline constexpr Features kAllFeatures = {.softcap = true,
                                          .bias = true,
                                          .alibi = true,
                                          .sinks = true,
                                          .lengths = true,
                                          .pages = true,
                                          .blocks = true,
                                          .prefix = true,
                                          .dropout = true,
                                          .relative = true,
                                          .out_norm = true,
                                          .out_gate = true};

/// What a program must be built with to run a workload.
Features features_of(const Workload& workload);
/// Whether programs with the features `has` run problems with `wanted`.
bool covers(const Features& has, const Features& wanted);
int count_of(const Features& features);
/// Those of `features` that `others` are without.
Features without(const Features& features, const Features& others);
/// A workload that needs these features too, with any values for those that it lacks: a program's launch plan and its
/// legality are of what it was built for, whatever a launch uses of it.
Workload with_features(const Workload& workload, const Features& features);
/// "softcap_sinks", "" for none.
std::string to_string(const Features& features);
/// "a softcap and attention sinks".
std::string words_of(const Features& features);

/// What a workload's text says of its features, each with its colon: ":softcap=50:sinks".
std::string features_text(const Workload& workload);
/// Reads a part of a workload's text if it is a feature. @return false where it is none
/// @throws Error(invalid_workload) where it is given twice or cannot be read; `whole` is the text
bool parse_feature(std::string_view whole, std::string_view part, Workload& workload);
/// What is wrong with the features; "" for nothing.
std::string wrong_features(const Workload& workload);

BiasElement element_of(BiasDtype dtype);
/// The dtype of the same numbers. @throws Error(internal) for boolean
Dtype dtype_of(BiasDtype dtype);

/// The sizes of a bias: 1 in a dimension in which all scores share it.
struct BiasSizes {
  std::int64_t batch, head, row, key;
  [[nodiscard]] std::int64_t count() const { return batch * head * row * key; }
};
BiasSizes bias_sizes(const Workload& workload);

/// Queries and keys of one entry of the batch.
struct EntryLengths {
  std::int64_t len_q = 0;
  std::int64_t len_k = 0;
  bool operator==(const EntryLengths&) const = default;
};
/// The lengths that a workload stands for where entries have their own, as the workload does not list them: spread
/// evenly from len / batch to len, in a fixed random order. Those of the workload where they have none.
std::vector<EntryLengths> lengths_of(const Workload& workload);
/// The keys that all rows of each entry see, as the workload does not list them: spread evenly up to the most, in a
/// fixed random order. Empty where it has no prefix.
std::vector<std::int32_t> prefix_lengths_of(const Workload& workload);
/// One entry as a workload of its own, without the features whose values it would need: a batch of 1 of these lengths,
/// which may be 0.
Workload entry_of(const Workload& workload, const EntryLengths& lengths);

}  // namespace heed
