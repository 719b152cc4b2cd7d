/// What a run may spend on models, and has spent.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "models/model.hpp"

namespace heed::models {

struct SpendingLimits {
  std::optional<std::int64_t> tokens;  ///< of prompts and replies together
  std::optional<double> money;         ///< in the currency of the table of prices
};

/// Sums over exchanges. Replies whose tokens nobody counted are taken at estimated_tokens; a reply without a price adds
/// nothing to the money and makes its sum a lower bound, which `text` says.
class Spending {
 public:
  /// @throws Error(usage) for a limit that is not positive: it allows no prompt
  explicit Spending(SpendingLimits limits);

  /// What earlier processes of the run, or a reply, took.
  void add(const Conversation& conversation, const Reply& reply);
  /// Before a prompt is sent: none, or a sentence that says which limit leaves no room for it and a reply. Replies that
  /// are under way, in other threads, are not seen.
  /// @param reply_tokens that the model may write at most; counted as a quarter, since few replies are that long
  [[nodiscard]] std::optional<std::string> refuses(const Conversation& conversation, std::int64_t reply_tokens) const;

  [[nodiscard]] std::int64_t tokens() const;
  /// "12 replies, 48,210 tokens, at least 0.12 USD (3 replies of unknown price)".
  [[nodiscard]] std::string text(const std::string& currency) const;

 private:
  SpendingLimits limits_;
  mutable std::mutex mutex_;
  std::int64_t tokens_ = 0;
  double money_ = 0;
  int replies_ = 0;
  int unknown_ = 0;
};

}  // namespace heed::models
