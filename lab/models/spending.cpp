#include "models/spending.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "heed/heed.hpp"
#include "models/retry.hpp"

namespace heed::models {
namespace {

constexpr std::int64_t kExpectedShare = 4;  // of the tokens that a reply may have
constexpr double kLookEvery_s = 0.05;       // at the replies that leave room for a prompt

}  // namespace

Spending::Spending(SpendingLimits limits) : limits_(limits) {
  if (limits.tokens && *limits.tokens <= 0)
    throw Error(ErrorCode::usage,
                fmt::format("a limit of {} tokens allows no prompt; leave it out, or allow some", *limits.tokens),
                std::to_string(*limits.tokens));
  if (limits.money && !(*limits.money > 0))
    throw Error(ErrorCode::usage,
                fmt::format("a limit of {} allows no prompt; leave it out, or allow some", *limits.money),
                fmt::format("{}", *limits.money));
}

void Spending::add(const Conversation& conversation, const Reply& reply, const Prices& prices,
                   const std::string& model) {
  Usage taken = reply.usage;
  if (!taken.prompt_tokens) taken.prompt_tokens = estimated_tokens(conversation);
  if (!taken.completion_tokens) taken.completion_tokens = estimated_tokens(reply.text);
  Usage lost;
  lost.prompt_tokens = *taken.prompt_tokens;
  lost.completion_tokens = 0;
  const double estimate =
      (reply.cost ? 0 : prices.cost(model, taken).value_or(0)) + reply.lost * prices.cost(model, lost).value_or(0);
  const std::lock_guard lock(mutex_);
  replies_ += 1 + reply.lost;
  tokens_ += *taken.prompt_tokens + *taken.completion_tokens + reply.lost * *lost.prompt_tokens;
  money_ += reply.cost.value_or(0);
  estimated_money_ += estimate;
  unknown_ += reply.lost + (reply.cost ? 0 : 1);
}

std::optional<std::string> Spending::refuses(const Conversation& conversation, std::int64_t reply_tokens) const {
  const std::lock_guard lock(mutex_);
  return refusal_of(estimated_tokens(conversation) + reply_tokens / kExpectedShare);
}

std::optional<std::string> Spending::refusal_of(std::int64_t next, double priced) const {
  if (limits_.tokens && tokens_ + next > *limits_.tokens)
    return fmt::format("{} of {} tokens are used, and the next prompt with a reply takes about {}", tokens_,
                       *limits_.tokens, next);
  if (limits_.money) {
    const double each = std::max(money_of_a_reply(), priced);
    if (money_spent() + each > *limits_.money || money_spent() >= *limits_.money)
      return fmt::format("{}{:.4f} of {:.4f} is spent, and the next prompt with a reply costs about {:.4f}",
                         estimated_money_ > 0 ? "about " : "", money_spent(), *limits_.money, each);
  }
  return std::nullopt;
}

Spending::Held Spending::hold(const Conversation& conversation, std::int64_t reply_tokens, const Prices& prices,
                              const std::string& model) {
  Usage expected;
  expected.prompt_tokens = estimated_tokens(conversation);
  expected.completion_tokens = reply_tokens / kExpectedShare;
  const std::int64_t tokens = *expected.prompt_tokens + *expected.completion_tokens;
  const double priced = prices.cost(model, expected).value_or(0);
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (std::optional<std::string> refusal = refusal_of(tokens, priced)) return {*this, std::move(refusal)};
      const double money = std::max(money_of_a_reply(), priced);
      const bool has_room = (!limits_.tokens || tokens_ + held_tokens_ + tokens <= *limits_.tokens) &&
                            (!limits_.money || money_spent() + held_money_ + money <= *limits_.money);
      if (held_ == 0 || has_room) {
        ++held_;
        held_tokens_ += tokens;
        held_money_ += money;
        return {*this, tokens, money};
      }
    }
    sleep_for(kLookEvery_s);
  }
}

Spending::Held::~Held() {
  if (refusal_) return;
  const std::lock_guard lock(of_.mutex_);
  --of_.held_;
  of_.held_tokens_ -= tokens_;
  of_.held_money_ -= money_;
}

std::int64_t Spending::tokens() const {
  const std::lock_guard lock(mutex_);
  return tokens_;
}

std::string Spending::text(const std::string& currency) const {
  const std::lock_guard lock(mutex_);
  std::string text = fmt::format("{} {}, {} tokens", replies_, replies_ == 1 ? "reply" : "replies", tokens_);
  if (replies_ == 0) return text;
  if (unknown_ == replies_) return text + ", cost unknown";
  text += fmt::format(", {}{:.4f} {}", unknown_ > 0 ? "at least " : "", money_, currency);
  if (unknown_ > 0) text += fmt::format(" ({} of unknown price)", unknown_);
  return text;
}

}  // namespace heed::models
