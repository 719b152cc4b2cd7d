#include "dispatch/contract.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "base/digest.hpp"
#include "heed/heed.hpp"
#include "kernels/attention/features.hpp"
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
    static const FeatureParams params{};
    const auto add = [&](std::string_view name, const auto& field) {
      digester.add(name).add(
          fmt::format("{}", reinterpret_cast<const char*>(&field) - reinterpret_cast<const char*>(&params)));
    };
    add("bias", params.bias);
    add("bias_batch", params.bias_batch);
    add("bias_head", params.bias_head);
    add("bias_row", params.bias_row);
    add("bias_key", params.bias_key);
    add("alibi_slopes", params.alibi_slopes);
    add("alibi_batch", params.alibi_batch);
    add("sinks", params.sinks);
    add("cu_seqlens_q", params.cu_seqlens_q);
    add("cu_seqlens_k", params.cu_seqlens_k);
    add("seqused_k", params.seqused_k);
    add("page_table", params.page_table);
    add("page_table_batch", params.page_table_batch);
    add("lse_batch", params.lse_batch);
    add("lse_head", params.lse_head);
    add("page_size", params.page_size);
    add("pages", params.pages);
    add("bias_element", params.bias_element);
    add("aligned_to_the_end", params.aligned_to_the_end);
    add("softcap", params.softcap);
    digester.add(fmt::format("{}", sizeof(FeatureParams)));
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
