/// Everything that was sent to models and received from them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "store/store.hpp"

namespace heed::store {

/// A prompt and what became of it.
struct ExchangeRecord {
  std::int64_t id = 0;
  std::int64_t run = 0;
  int generation = 0;
  int place = 0;          ///< which of the generation's trials it is for
  std::string purpose;    ///< "first", "again" (edits did not apply), "repair" (the build or the gate refused)
  std::string model;      ///< that was asked
  nlohmann::json prompt;  ///< messages with roles
  nlohmann::json reply;   ///< text, model, tokens, usage as received, latency, cost; null where there is none; beside a
                          ///< failure what came in place of a reply, which may have cost something
  std::string failure;    ///< why there is no reply; empty where there is one, and where it is awaited
  std::string created;    ///< UTC, when the reply was there; before that when the prompt was sent
  [[nodiscard]] bool is_awaited() const { return reply.is_null() && failure.empty(); }
};

std::int64_t add_exchange(Store& store, const ExchangeRecord& exchange);
/// What became of a prompt that add_exchange kept: its reply or failure.
void end_exchange(Store& store, const ExchangeRecord& exchange);
/// Of a run, in the order in which they came. @throws Error(store) for rows that no Heed has written
std::vector<ExchangeRecord> exchanges(Store& store, std::int64_t run);

}  // namespace heed::store
