#include "variant/specialization.hpp"

#include "base/check.hpp"

namespace heed {
namespace {

const KnobTable<Specialization>& specialization_table() {
  static const KnobTable<Specialization> knobs = [] {
    using enum Bound;
    using S = Specialization;
    KnobTable<S> t;
    t.add("specialize", &S::specialize,
          "what the program is compiled for: any launch, the shape of the workload as constants, or also that all Q "
          "tiles are whole")
        .acts_on({latency, launch, issue})
        .known_with(static_cast<int>(Specialize::shape));
    t.add("prune", &S::prune, "a program for one shape leaves out the code that launches of the shape never reach")
        .acts_on({latency, issue});
    t.add("o_layout", &S::o_layout, "O by the strides of a launch, or dense, with strides as constants")
        .acts_on({latency, issue})
        .known_with(static_cast<int>(OutputLayout::dense));
    return t;
  }();
  return knobs;
}

// Of the values of knob `index`, in their order, how many are supported.
std::size_t supported_values(const SpecializationSupport& has, std::size_t index) {
  const bool some[] = {has.shape, has.shape && has.prune, has.shape && has.dense_output};
  if (!some[index]) return 0;
  return index == 0 && !has.whole_tiles ? static_cast<std::size_t>(Specialize::whole_tiles)
                                        : specialization_table().knobs()[index].values.size();
}

}  // namespace

std::vector<Knob> specialization_knobs(const SpecializationSupport& has) {
  std::vector<Knob> knobs;
  for (std::size_t i = 0; i < specialization_table().knobs().size(); ++i)
    if (const std::size_t count = supported_values(has, i); count > 0) {
      Knob& knob = knobs.emplace_back(specialization_table().knobs()[i]);
      knob.values.resize(count);
      knob.names.resize(count);
    }
  return knobs;
}

Config specialization_values(const Specialization& specialization, const SpecializationSupport& has) {
  const Config all = specialization_table().config_of(specialization);
  Config values;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (supported_values(has, i) > 0) values.push_back(all[i]);
  return values;
}

Specialization specialization_of(const Config& values, const SpecializationSupport& has) {
  Config all = specialization_table().config_of({});
  std::size_t next = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (supported_values(has, i) > 0) all[i] = values.at(next++);
  HEED_CHECK(next == values.size());
  return specialization_table().aggregate_of(all);
}

std::string literal(const Specialization& specialization) {
  return specialization_table().render(specialization_table().config_of(specialization));
}

}  // namespace heed
