// Launch plans as JSON: what is read is written back as the same text.
#include "fuzz.hpp"
#include "worker/protocol.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return 0;
  try {
    const nlohmann::json written = heed::worker::plan_to_json(heed::worker::plan_from_json(json));
    heed::fuzz::require(heed::worker::plan_to_json(heed::worker::plan_from_json(written)) == written,
                        "a plan is read as it was written");
  } catch (const nlohmann::json::exception&) {  // not a plan
  } catch (const heed::Error&) {
  }
  return 0;
}
