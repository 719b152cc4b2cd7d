/// What a run may spend on models, and has spent.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "models/model.hpp"
#include "models/prices.hpp"

namespace heed::models {

struct SpendingLimits {
  std::optional<std::int64_t> tokens;  ///< of prompts and replies together
  std::optional<double> money;         ///< in the currency of the table of prices
};

/// Sums over exchanges. Replies whose tokens nobody counted are taken at estimated_tokens, and at the price of as many,
/// so that limits hold for them; so are attempts before a reply that were lost, as replies without a text. Of money
/// `text` tells what is known: the price of a reply without a cost is an estimate of the limit's alone, and makes the
/// sum that is told a lower bound.
class Spending {
 public:
  /// @throws Error(usage) for a limit that is not positive: it allows no prompt
  explicit Spending(SpendingLimits limits);

  /// What earlier processes of the run, or a reply, took. @param prices and @param model: of a reply without a cost
  void add(const Conversation& conversation, const Reply& reply, const Prices& prices = {},
           const std::string& model = {});
  /// None, or a sentence that says which limit leaves no room for a prompt and a reply. Replies that are under way, in
  /// other threads, are not seen.
  /// @param reply_tokens that the model may write at most; counted as a quarter, since few replies are that long
  [[nodiscard]] std::optional<std::string> refuses(const Conversation& conversation, std::int64_t reply_tokens) const;

  /// Room for a prompt and its reply, held until the end of the scope.
  class Held {
   public:
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    /// Why there is no room; none where there is.
    [[nodiscard]] const std::optional<std::string>& refusal() const { return refusal_; }

   private:
    friend class Spending;
    Held(Spending& of, std::optional<std::string> refusal) : of_(of), refusal_(std::move(refusal)) {}
    Held(Spending& of, std::int64_t tokens, double money) : of_(of), tokens_(tokens), money_(money) {}
    Spending& of_;
    std::optional<std::string> refusal_;
    std::int64_t tokens_ = 0;
    double money_ = 0;
  };
  /// Before a prompt is sent: refused as `refuses` does. Where what other threads hold leaves no room, it waits until
  /// they have their replies: what these really take decides. @throws Error(interrupted)
  [[nodiscard]] Held hold(const Conversation& conversation, std::int64_t reply_tokens, const Prices& prices,
                          const std::string& model);

  [[nodiscard]] std::int64_t tokens() const;
  /// "12 replies, 48,210 tokens, at least 0.12 USD (3 replies of unknown price)".
  [[nodiscard]] std::string text(const std::string& currency) const;

 private:
  [[nodiscard]] std::optional<std::string> refusal_of(std::int64_t next_tokens, double priced = 0) const;
  /// With estimates for replies without a cost.
  [[nodiscard]] double money_spent() const { return money_ + estimated_money_; }
  [[nodiscard]] double money_of_a_reply() const { return replies_ > 0 ? money_spent() / replies_ : 0; }

  SpendingLimits limits_;
  mutable std::mutex mutex_;
  std::int64_t tokens_ = 0;
  double money_ = 0;
  double estimated_money_ = 0;  ///< of replies without a cost
  int replies_ = 0;
  int unknown_ = 0;
  int held_ = 0;  ///< prompts under way, and what they are expected to take
  std::int64_t held_tokens_ = 0;
  double held_money_ = 0;
};

}  // namespace heed::models
