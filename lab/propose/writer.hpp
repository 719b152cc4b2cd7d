/// Asks models for edits of a kernel's sources and applies them.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "models/spending.hpp"
#include "prompts/prompt.hpp"
#include "propose/panel.hpp"
#include "store/exchanges.hpp"
#include "variant/family.hpp"

namespace heed::propose {

/// Where exchanges are kept: in the store, or in a test.
class ExchangeLog {
 public:
  virtual ~ExchangeLog() = default;
  /// What was kept of a prompt, with its reply where one came that can be used. A process that goes on with a run takes
  /// the reply, or asks the same prompt again: the base's time, which prompts tell, would be another.
  virtual std::optional<store::ExchangeRecord> find(int generation, int place, const std::string& purpose) = 0;
  /// Before a prompt is sent, and again when a reply or a failure is there. One that is kept for the first time gets
  /// its id. May be called from several threads, one at a time.
  virtual void keep(store::ExchangeRecord& exchange) = 0;
};

/// Edits, or why there are none.
struct Written {
  enum class Ending {
    edits,
    unusable,       ///< a reply without edits or cut off, or edits that do not apply or are refused before a build;
                    ///< twice
    no_reply,       ///< the model failed
    out_of_budget,  ///< no prompt was sent: the limits leave no room
  };
  Ending ending = Ending::no_reply;
  std::shared_ptr<const Overlay> overlay;  ///< where there are edits
  std::string insight;                     ///< the proposer's sentence
  std::string failure;                     ///< why there are none
  std::string model;
  models::Conversation asked;  ///< what the reply answers
  std::string reply;
  bool is_cut_off = false;  ///< the reply, at its limit of tokens: none of its edits are taken
  double seconds = 0;       ///< waited for replies
};

class Writer {
 public:
  /// All must outlive it.
  Writer(const record::ModelOptions& options, const Panel& panel, models::Spending& spending, ExchangeLog& log);

  /// Edits of the parent's sources. Edits that cannot be read or do not apply are told why and written once more.
  /// May be called from several threads. @throws Error(interrupted); Error(usage) where no prompt fits the window
  Written write(const prompts::Task& task, const Variant& parent, int generation, int place);
  /// Once more, after a build error or a failed gate. @param refused whose overlay was built
  Written repair(const Written& refused, const Variant& parent, const std::string& outcome, const std::string& reason,
                 int generation, int place);

 private:
  /// Asks, or takes the answer that is known. @return whether there is a reply in `written`
  bool ask(models::Conversation conversation, int generation, int place, const std::string& purpose, Written& written);
  void take_edits(const Variant& parent, Written& written) const;
  /// Takes the edits of a reply; where there are none, tells why and asks once more.
  Written take_or_ask_again(Written written, const Variant& parent, int generation, int place,
                            const std::string& purpose);

  const record::ModelOptions& options_;
  const Panel& panel_;
  models::Spending& spending_;
  ExchangeLog& log_;
  prompts::Templates templates_;
  std::mutex mutex_;
};

/// The log of a run in its store.
class RunLog final : public ExchangeLog {
 public:
  /// Reads what is there, and adds its replies to what is spent. @param prices for those without a cost
  RunLog(store::Store& store, std::int64_t run, models::Spending& spending, const models::Prices& prices = {});
  std::optional<store::ExchangeRecord> find(int generation, int place, const std::string& purpose) override;
  void keep(store::ExchangeRecord& exchange) override;

 private:
  store::Store& store_;
  std::int64_t run_;
  std::vector<store::ExchangeRecord> known_;  ///< of earlier processes
};

}  // namespace heed::propose
