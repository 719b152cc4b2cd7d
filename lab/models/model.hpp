/// Whatever answers a prompt with text: a language model behind an API, a program, a person with a folder of files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"

namespace heed::models {

enum class Role { system, user, assistant };
std::string_view to_string(Role role);

struct Message {
  Role role = Role::user;
  std::string text;
  bool operator==(const Message&) const = default;
};
using Conversation = std::vector<Message>;

/// Tokens as the model's own service counts them; nothing where it does not say.
struct Usage {
  std::optional<std::int64_t> prompt_tokens;
  std::optional<std::int64_t> completion_tokens;
  std::optional<std::int64_t> cached_tokens;  ///< of the prompt's, read from a cache
  nlohmann::json raw;                         ///< as received; null where nothing was
};

struct Reply {
  std::string text;
  std::string model;  ///< that answered, as it calls itself
  Usage usage;
  double latency_s = 0;     ///< of the attempt that succeeded
  int attempts = 1;         ///< requests that were sent, failed ones included
  int lost = 0;             ///< of them before the last, those that a service may have charged for: a reply broke off
  bool is_cut_off = false;  ///< the model stopped at a limit of tokens
  std::optional<double> cost;  ///< in the currency of the table of prices; nothing where the price is unknown
};

/// Bytes of a reply that are taken, whoever writes it; a patch is far smaller.
inline constexpr std::size_t kMostReplyBytes = 10 << 20;

/// Of what came in place of a reply this much is kept.
inline constexpr std::size_t kMostKeptBytes = 8 << 10;

/// A prompt was sent, and what came back cannot be used: its service may have charged for it all the same.
class UnusableReply final : public Error {
 public:
  /// @param received what is known of it: usage, model, and of its text, or of its bytes, at most kMostKeptBytes
  UnusableReply(const std::string& message, Reply received, std::string value = {});
  [[nodiscard]] const Reply& received() const { return received_; }

 private:
  Reply received_;
};

class Model {
 public:
  virtual ~Model() = default;
  /// For messages and the store, e.g. "qwen3-coder".
  [[nodiscard]] virtual const std::string& name() const = 0;
  /// Waits for an answer. May be called from several threads.
  /// @throws Error(model) with what went wrong and what would help, as UnusableReply where the prompt may have cost
  /// something; Error(interrupted)
  virtual Reply ask(const Conversation& conversation) = 0;
  /// The same for a prompt that has a name in its run, equal in a run that repeats it whatever was measured:
  /// "generation 2, place 3, first". Recordings keep the name and find replies by it.
  virtual Reply ask_as(const std::string& name, const Conversation& conversation) {
    (void)name;
    return ask(conversation);
  }
};

/// 32 hexadecimal digits over roles and texts.
std::string digest_of(const Conversation& conversation);

/// One text of a conversation, for readers that know no roles: the first message as it is, each later one below a line
/// that names its role.
std::string text_of(const Conversation& conversation);

/// An estimate of how many tokens a text has, where nobody counted: one for three bytes, meant to be on the high side,
/// so that a budget is kept rather than exceeded.
std::int64_t estimated_tokens(std::string_view text);
std::int64_t estimated_tokens(const Conversation& conversation);

void to_json(nlohmann::json& json, const Message& message);
/// @throws Error(invalid_input) for what is no message
void from_json(const nlohmann::json& json, Message& message);
void to_json(nlohmann::json& json, const Reply& reply);
/// @throws Error(invalid_input) for what is no reply
void from_json(const nlohmann::json& json, Reply& reply);

}  // namespace heed::models
