// Variants with edited sources: their unit, their id, what the store keeps of them.
#include <algorithm>

#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "jit/artifact.hpp"
#include "source/stored.hpp"
#include "source/whole.hpp"
#include "testing.hpp"

namespace heed::source {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

Variant edited(const std::string& path, const std::string& text) {
  const Workload workload = parse_workload("b1h2l64d64:fp32");
  Variant variant = parse_variant("fwd_cpu", workload, cpu_facts());
  variant.overlay = std::make_shared<const Overlay>(Overlay{{{path, text}}});
  return variant;
}

std::string rows_with(const std::string& line) {
  return std::string(compile::device_file("cpu/rows.hpp")) + line + "\n";
}

TEST(SourceVariant, NamesTheDigestOfItsTexts) {
  const Variant one = edited("cpu/rows.hpp", rows_with("// 1"));
  const Variant two = edited("cpu/rows.hpp", rows_with("// 2"));
  EXPECT_THAT(one.id(), EndsWith("+src:" + one.overlay->digest().substr(0, 8)));
  EXPECT_NE(one.id(), two.id());
  EXPECT_FALSE(one.is_as_carried());
  Variant plain = one;
  plain.overlay.reset();
  EXPECT_EQ(plain.id().find("+src:"), std::string::npos);
  EXPECT_TRUE(plain.is_as_carried());
  EXPECT_EQ(one.unit(), plain.unit());
}

TEST(SourceVariant, AnEditedEntryStandsInTheUnit) {
  const Variant variant = edited(std::string(Overlay::kEntry), "// another entry\n");
  EXPECT_THAT(variant.unit(), EndsWith("// another entry\n"));
  EXPECT_EQ(variant.unit().find("heed_forward"), std::string::npos);
}

TEST(SourceVariant, AsksTheCompilerForItsOwnTextsAndNoAtomics) {
  const Workload workload = parse_workload("b1h2l64d64:fp32");
  const Variant variant = edited("cpu/rows.hpp", rows_with("// 1"));
  const jit::BuildRequest request = jit::request_for(variant, workload, cpu_facts());
  EXPECT_EQ(request.overlay, variant.overlay);
  EXPECT_FALSE(request.semaphores);
}

TEST(SourceVariant, AnEditedSourceMayIncludeAnother) {
  const Overlay overlay{{{"cpu/rows.hpp", "#include \"cpu/tiles.hpp\"\n"}}};
  EXPECT_EQ(compile::included_by("#include \"cpu/rows.hpp\"\n").count("cpu/tiles.hpp"), 0U);
  EXPECT_EQ(compile::included_by("#include \"cpu/rows.hpp\"\n", &overlay).count("cpu/tiles.hpp"), 1U);
  EXPECT_EQ(compile::device_file("cpu/rows.hpp", &overlay), overlay.files.at("cpu/rows.hpp"));
}

TEST(SourceVariant, IsWhatTheStoreKept) {
  const Variant variant = edited("cpu/rows.hpp", rows_with("inline int more() { return 1; }"));
  const nlohmann::json kept = stored(variant, "One function more.");
  EXPECT_EQ(kept["insight"], "One function more.");
  EXPECT_THAT(kept["diff"].get<std::string>(), HasSubstr("+inline int more() { return 1; }\n"));
  Variant plain = variant;
  plain.overlay.reset();
  const Variant again = with_stored(plain, kept);
  EXPECT_EQ(again.id(), variant.id());
  EXPECT_TRUE(is_as_stored(again, kept));
  EXPECT_FALSE(is_as_stored(plain, kept));
  EXPECT_TRUE(stored(plain, "").is_null());
  EXPECT_TRUE(is_as_stored(with_stored(plain, nullptr), nullptr));
  testing_support::expect_error(ErrorCode::store, "hold no \"diff\"",
                                [&] { (void)with_stored(plain, nlohmann::json{{"diff", 3}}); });
}

TEST(SourceVariant, AsOneFile) {
  const std::string whole = whole_unit(edited("cpu/rows.hpp", rows_with("inline int more() { return 1; }")));
  EXPECT_EQ(whole.find("#include \""), std::string::npos);
  EXPECT_EQ(whole.find("#pragma once"), std::string::npos);
  EXPECT_THAT(whole, HasSubstr("inline int more() { return 1; }"));
  EXPECT_THAT(whole, HasSubstr("// ---- cpu/rows.hpp\n"));
  EXPECT_EQ(whole.find("// ---- kernels/contract.hpp"), whole.rfind("// ---- kernels/contract.hpp"));
}

}  // namespace
}  // namespace heed::source
