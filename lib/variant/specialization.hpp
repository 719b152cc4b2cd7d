/// Specialization as knobs: its names, values and help, for texts, lists and searches.
#pragma once

#include <string>
#include <vector>

#include "kernels/attention/specialization.hpp"
#include "variant/knob.hpp"

namespace heed {

/// The knobs of a specialization with the values that a family supports; none where it supports none.
std::vector<Knob> specialization_knobs(const SpecializationSupport& has);
/// One value for each of these knobs.
Config specialization_values(const Specialization& specialization, const SpecializationSupport& has);
/// @param values as specialization_values has them
Specialization specialization_of(const Config& values, const SpecializationSupport& has);
/// As C++ with designated fields: "{.specialize = heed::Specialize::shape, ...}".
std::string literal(const Specialization& specialization);

}  // namespace heed
