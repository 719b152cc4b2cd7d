#include "dispatch/contract.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "base/digest.hpp"
#include "kernels/attention/features.hpp"
#include "variant/params_fields.hpp"

namespace heed::dispatch {

const std::string& kernel_contract() {
  static const std::string contract = [] {
    Digester digester;
    for_each_params_field(
        [&](std::string_view name, std::size_t offset) { digester.add(name).add(fmt::format("{}", offset)); });
    digester.add(fmt::format("{} {} {}", sizeof(FeatureParams), sizeof(TensorStrides), sizeof(TensorMap)));
    for (const std::size_t offset :
         {offsetof(TensorMaps, q), offsetof(TensorMaps, k), offsetof(TensorMaps, v), offsetof(TensorMaps, o)})
      digester.add(fmt::format("{}", offset));
    return digester.hex().substr(0, 16);
  }();
  return contract;
}

}  // namespace heed::dispatch
