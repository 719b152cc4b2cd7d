#include "dispatch/contract.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "base/digest.hpp"
#include "heed/heed.hpp"
#include "variant/params_fields.hpp"

namespace heed::dispatch {

namespace {

bool has_features(std::string_view workload) {
  try {
    return parse_workload(workload).has_features();
  } catch (const Error&) {
    return false;
  }
}

std::string contract_of(bool with_features) {
  Digester digester;
  for_each_params_field(
      [&](std::string_view name, std::size_t offset) { digester.add(name).add(fmt::format("{}", offset)); });
  digester.add(fmt::format("{} {} {}", sizeof(ForwardParams), sizeof(TensorStrides), sizeof(TensorMap)));
  for (const std::size_t offset :
       {offsetof(TensorMaps, q), offsetof(TensorMaps, k), offsetof(TensorMaps, v), offsetof(TensorMaps, o)})
    digester.add(fmt::format("{}", offset));
  if (with_features) {
    for_each_feature_field(
        [&](std::string_view name, std::size_t offset) { digester.add(name).add(fmt::format("{}", offset)); });
    digester.add(fmt::format("{}", sizeof(FeatureParams)));
    // What a number means counts as where it lies does: to a program from before full blocks, one is a block outside of
    // the keys, so that their rows see nothing.
    digester.add(fmt::format("{} {}", kLeastBlock, kFullBlock));
  }
  return digester.hex().substr(0, 16);
}

}  // namespace

const std::string& kernel_contract(std::string_view workload) {
  static const std::string plain = contract_of(false);
  static const std::string with_features = contract_of(true);
  return has_features(workload) ? with_features : plain;
}

}  // namespace heed::dispatch
