// heed_options, read and checked.
#include <fmt/format.h>

#include <cstdlib>

#include "api/plan.hpp"
#include "quantise/modes.hpp"

namespace heed::api {
namespace {

constexpr int kMostThreads = 4096;

[[noreturn]] void refuse_option(const std::string& text, std::string value = {}) {
  throw Error(ErrorCode::usage, text, std::move(value));
}

bool is_debug_in_environment() {
  const char* const named = std::getenv("HEED_DEBUG");
  const std::string_view text = named == nullptr ? "" : named;
  if (text.empty() || text == "0") return false;
  if (text == "1") return true;
  refuse_option(fmt::format("HEED_DEBUG is \"{}\"; give 1 for checks of each run, or 0 for none", text),
                std::string(text));
}

}  // namespace

Options read_options(const heed_options* given) {
  Options options;
  options.debug = is_debug_in_environment();
  if (given == nullptr) return options;
  if (given->struct_size != sizeof(heed_options))
    refuse_option(fmt::format("heed_options has {} bytes; this library reads {}: set it with heed_options_init",
                              given->struct_size, sizeof(heed_options)),
                  std::to_string(given->struct_size));
  for (const std::uint64_t word : given->reserved)
    if (word != 0) refuse_option("reserved fields of heed_options must be 0", std::to_string(word));
  if (given->threads < 0) refuse_option("the number of threads must not be negative", std::to_string(given->threads));
  if (given->threads > kMostThreads)
    refuse_option(
        fmt::format("{} threads were asked for; at most {} share a plan's work", given->threads, kMostThreads),
        std::to_string(given->threads));
  options.threads = given->threads;
  if (given->debug != 0 && given->debug != 1)
    refuse_option(fmt::format("debug is {}; give 1 for checks of each run, or 0 for none", given->debug),
                  std::to_string(given->debug));
  options.debug = options.debug || given->debug == 1;
  if (given->build < HEED_BUILD_OFF || given->build > HEED_BUILD_WAIT)
    refuse_option(fmt::format("{} is no heed_build", given->build), std::to_string(given->build));
  options.build = given->build;
  if (given->listing < HEED_LIST_AUTO || given->listing > HEED_LIST_ALWAYS)
    refuse_option(
        fmt::format("{} is no heed_listing; give HEED_LIST_AUTO, HEED_LIST_OFF or HEED_LIST_ALWAYS", given->listing),
        std::to_string(given->listing));
  options.listing = given->listing;
  if (given->parallel_for == nullptr && given->parallel_context != nullptr)
    refuse_option("parallel_context is given without parallel_for, whose first argument it is");
  options.parallel_for = {given->parallel_for, given->parallel_context};
  if (given->precision != nullptr && given->precision[0] != '\0')
    options.precision = quantise::find_mode(given->precision).name;
  if (given->l2 != HEED_L2_DEFAULT && given->l2 != HEED_L2_KEEP_KV)
    refuse_option(fmt::format("{} is no heed_l2", given->l2), std::to_string(given->l2));
  options.keeps_kv = given->l2 == HEED_L2_KEEP_KV;
  if (given->programs != nullptr) options.programs = given->programs;
  if (given->book != nullptr) options.book = given->book;
  if (given->variant != nullptr && std::string_view(given->variant) != "auto") options.variant = given->variant;
  if (given->image != nullptr) options.image = {static_cast<const char*>(given->image), given->image_bytes};
  if ((given->image == nullptr) != (given->image_bytes == 0))
    refuse_option("an image has an address and a number of bytes; one of them is 0");
  if (!options.image.empty() && options.variant.empty())
    refuse_option("an image needs the text of the variant that it is of");
  return options;
}

}  // namespace heed::api
