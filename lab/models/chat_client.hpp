/// A language model behind an OpenAI-compatible endpoint of chat completions: vLLM, SGLang, llama.cpp, Ollama,
/// `transformers serve` and hosted services speak it. https://platform.openai.com/docs/api-reference/chat/create
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "models/model.hpp"
#include "models/retry.hpp"
#include "models/secret.hpp"

namespace heed::models {

struct Endpoint {
  std::string url;    ///< as clients of OpenAI take it, "http://localhost:8000/v1", or whole with /chat/completions
  std::string model;  ///< a name that the endpoint knows
  Secret key;
  double limit_s = 600;  ///< for a reply
  std::int64_t reply_tokens = 16384;
  std::optional<double> temperature;  ///< the model's own where none is given
  bool streams = true;  ///< asks for the reply in pieces: a connection that went dead is seen in two minutes
  nlohmann::json extra = nlohmann::json::object();  ///< further fields of a request, e.g. {"reasoning_effort": "high"}
  RetryPolicy retry;
};

class ChatClient final : public Model {
 public:
  /// @param on_wait is told what a wait is for: "429 from ..., again in 4 s"
  /// @throws Error(usage) for an endpoint without address or model
  explicit ChatClient(Endpoint endpoint, std::function<void(const std::string&)> on_wait = nullptr);

  [[nodiscard]] const std::string& name() const override { return endpoint_.model; }
  /// A field that the endpoint refuses by name (max_tokens by newer models, stream_options by small servers) is given
  /// in another way, or left out, from then on.
  Reply ask(const Conversation& conversation) override;

 private:
  [[nodiscard]] HttpRequest request_for(const Conversation& conversation) const;
  /// Whether the refusal names a field that can do without. It is left out from now on.
  bool leaves_out_what(const std::string& refusal);
  [[nodiscard]] std::string sentence_for(const HttpReply& reply) const;
  /// @param known of the reply by now: attempts, those that were lost, time
  [[nodiscard]] Reply reply_in(const HttpReply& answer, const Reply& known) const;
  /// What went wrong for good: with what came where the prompt may have cost something.
  [[noreturn]] void give_up(const HttpReply& answer, const Reply& known) const;
  [[nodiscard]] Reply completed(Reply reply, const Reply& known) const;

  Endpoint endpoint_;
  std::string url_;
  std::function<void(const std::string&)> on_wait_;
  mutable std::mutex mutex_;
  std::set<std::string> refused_;  // fields
  Random random_;
};

}  // namespace heed::models
