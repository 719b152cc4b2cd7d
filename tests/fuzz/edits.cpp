// Replies as edits, edits on sources, and what they are refused for before they are built.
#include "fuzz.hpp"
#include "source/apply.hpp"
#include "source/diff.hpp"
#include "source/refusals.hpp"
#include "source/tokens.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const heed::Family& family = heed::find_family("fwd_cpu");
  heed::fuzz::refuses_or_reads([&] {
    const heed::Overlay overlay = heed::source::apply(heed::source::parse_edits(text), family);
    (void)heed::source::refusal_of(overlay);
    // What the store keeps must come back as it was.
    heed::fuzz::require(heed::source::overlay_of_diff(heed::source::diff_of(overlay, family), family) == overlay,
                        "an overlay comes back from its diff");
  });
  heed::fuzz::refuses_or_reads([&] { (void)heed::source::refusal_of({{{"cpu/rows.hpp", text}}}); });
  heed::fuzz::refuses_or_reads([&] { (void)heed::source::tokens_digest({{{"cpu/rows.hpp", text}}}); });
  return 0;
}
