/// What an endpoint of chat completions sends back, as one object or as a stream of chunks:
/// https://platform.openai.com/docs/api-reference/chat
#pragma once

#include <string>

#include "models/http.hpp"
#include "models/model.hpp"

namespace heed::models {

/// The reply in a body that came with status 200. Fields that are not known are left out.
/// @throws Error(model) where the body holds none: no JSON, an error, no choices, no text, or a stream that broke off
Reply chat_reply(const HttpReply& reply);

/// The sentence in the body of a refusal, as OpenAI, vLLM, llama.cpp and FastAPI put it there; else the first line of
/// the body. At most 300 bytes.
std::string refusal_of(const HttpReply& reply);

}  // namespace heed::models
