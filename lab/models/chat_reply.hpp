/// What an endpoint of chat completions sends back, as one object or as a stream of chunks:
/// https://platform.openai.com/docs/api-reference/chat
#pragma once

#include <string>

#include "models/http.hpp"
#include "models/model.hpp"
#include "models/secret.hpp"

namespace heed::models {

/// The reply in a body that came with status 200. Fields that are not known are left out, and so is the key wherever a
/// server quotes it.
/// @throws Error(model) where the body holds none: no JSON, an error, no choices, no text, or a stream that broke off
Reply chat_reply(const HttpReply& reply, const Secret& key);

/// What a body that is no reply, or only a part of one, has all the same: usage, model, text; the body itself where it
/// has no text.
Reply received_of(const HttpReply& reply, const Secret& key);

/// Whether it is a stream that was closed before its reply ended, in the middle of an event or behind one.
bool ends_early(const HttpReply& reply);

/// The sentence in the body of a refusal, as OpenAI, vLLM, llama.cpp and FastAPI put it there; else the first line of
/// the body. At most 300 bytes, without the key.
std::string refusal_of(const HttpReply& reply, const Secret& key);

}  // namespace heed::models
