/// The models that a run asks, made from its options.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/prices.hpp"
#include "models/several_models.hpp"
#include "record/model_options.hpp"

namespace heed::propose {

class Panel {
 public:
  /// Reads the key, prices and recordings; sends nothing.
  /// @param on_wait is told what is waited for, and what is the matter with a recording, from whichever thread waits
  /// @throws Error(usage) for a missing key, file or price, and as record::expect_sound does
  Panel(const record::ModelOptions& options, std::uint64_t seed, std::function<void(const std::string&)> on_wait);

  /// Which model answers a prompt of a place: a function of the seed, generation and place alone.
  [[nodiscard]] models::Model& model_for(int generation, int place) const;
  [[nodiscard]] const models::Prices& prices() const { return prices_; }
  /// "qwen3-coder, gpt-oss=2 at http://localhost:8000/v1", for messages.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::vector<models::WeightedModel> models_;
  models::Prices prices_;
  std::uint64_t seed_;
  std::string text_;
};

}  // namespace heed::propose
