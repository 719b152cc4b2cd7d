#include "store/exchanges.hpp"

#include <fmt/format.h>

#include "heed/heed.hpp"
#include "json/text.hpp"

namespace heed::store {
namespace {

constexpr const char* kExchangeColumns = "id, run, generation, place, purpose, model, prompt, reply, failure, created";

}  // namespace

std::int64_t add_exchange(Store& store, const ExchangeRecord& e) {
  Database& database = store.database();
  database.prepare(fmt::format("INSERT INTO exchanges ({}) VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kExchangeColumns))
      .add(e.run)
      .add(e.generation)
      .add(e.place)
      .add(e.purpose)
      .add(e.model)
      .add(json_text(e.prompt))
      .add(json_text(e.reply))
      .add(e.failure)
      .add(e.created)
      .run();
  return database.last_id();
}

void end_exchange(Store& store, const ExchangeRecord& e) {
  store.database()
      .prepare("UPDATE exchanges SET reply = ?, failure = ?, created = ? WHERE id = ?")
      .add(json_text(e.reply))
      .add(e.failure)
      .add(e.created)
      .add(e.id)
      .run();
}

std::vector<ExchangeRecord> exchanges(Store& store, std::int64_t run) {
  Database& database = store.database();
  Statement row = database.prepare(fmt::format("SELECT {} FROM exchanges WHERE run = ? ORDER BY id", kExchangeColumns));
  row.add(run);
  std::vector<ExchangeRecord> all;
  while (row.step()) {
    ExchangeRecord e;
    e.id = row.integer(0);
    e.run = row.integer(1);
    e.generation = static_cast<int>(row.integer(2));
    e.place = static_cast<int>(row.integer(3));
    e.purpose = row.text(4);
    e.model = row.text(5);
    e.prompt = parse_json(row.text(6));
    e.reply = parse_json(row.text(7));
    e.failure = row.text(8);
    e.created = row.text(9);
    if (!e.prompt.is_array() || (!e.reply.is_object() && !e.reply.is_null()))
      throw Error(ErrorCode::store,
                  fmt::format("the database {} is damaged: exchange {} holds no conversation", database.path(), e.id),
                  database.path());
    all.push_back(std::move(e));
  }
  return all;
}

}  // namespace heed::store
