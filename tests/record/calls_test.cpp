// The calls that a model made, as the Python package writes them.
#include "record/calls.hpp"

#include <nlohmann/json.hpp>

#include "testing.hpp"

namespace heed::record {
namespace {

using nlohmann::json;

json row(const std::string& workload, const std::string& form = "", int calls = 3, double seconds = 0.5) {
  return {{"workload", workload}, {"form", form}, {"calls", calls}, {"seconds", seconds}};
}
json document(const std::vector<json>& rows) {
  return {{"schema", 1}, {"what", "calls"}, {"device", "cpu"}, {"torch", "2.9"}, {"rows", rows}};
}
RecordedCalls parsed(const json& content) {
  return parse_calls(content.dump(), "calls.json");
}
void expect_refused(const std::string& words, const json& content, ErrorCode code = ErrorCode::usage) {
  testing_support::expect_error(code, words, [&] { (void)parsed(content); });
}

TEST(Calls, RowsOfOneWorkloadAreOne) {
  // A mask that hides nothing is none.
  const RecordedCalls recorded = parsed(document({row("b1h8l512d64:fp32"), row("b2h4l16d64:fp32", "", 1, 0),
                                                  row("b1h8l512d64:fp32:window=600/600", "", 2, 0.25)}));
  EXPECT_EQ(recorded.device, "cpu");
  ASSERT_EQ(recorded.calls.size(), 2U);
  EXPECT_EQ(to_string(recorded.calls[0].workload), "b1h8l512d64:fp32");
  EXPECT_EQ(recorded.calls[0].calls, 5);
  EXPECT_DOUBLE_EQ(recorded.calls[0].seconds, 0.75);
  EXPECT_EQ(recorded.calls[1].seconds, 0);
  EXPECT_TRUE(recorded.others.empty());
}

TEST(Calls, OthersAreListedWithTheirReason) {
  const RecordedCalls recorded = parsed(document({row("b1h8l512d64:fp32", "attn_mask bool"), row(""),
                                                  row("", "3-dimensional"), row("b1h8l512d64:fp32", "dropout")}));
  EXPECT_TRUE(recorded.calls.empty());
  ASSERT_EQ(recorded.others.size(), 4U);
  EXPECT_EQ(recorded.others[0].reason, "has attn_mask bool");
  EXPECT_EQ(recorded.others[0].workload, "b1h8l512d64:fp32");
  EXPECT_EQ(recorded.others[1].reason, "no form of attention");
  EXPECT_EQ(recorded.others[2].reason, "no form of attention: 3-dimensional");
  EXPECT_EQ(recorded.others[3].reason, "has dropout");
}

TEST(Calls, WhatMayBeMissing) {
  json content = document({{{"workload", "b1h8l512d64:fp32"}, {"calls", 1}}});
  content.erase("device");
  const RecordedCalls recorded = parsed(content);
  EXPECT_EQ(recorded.device, "");
  EXPECT_EQ(recorded.calls.at(0).seconds, 0);
  EXPECT_TRUE(parsed(document({})).calls.empty());
}

TEST(Calls, OtherFilesAreRefused) {
  testing_support::expect_error(ErrorCode::usage, "calls.json is no JSON; heed.record(\"calls.json\")",
                                [] { (void)parse_calls("{", "calls.json"); });
  json content = document({});
  expect_refused("holds no calls of a model", json::array());
  expect_refused("holds no calls of a model", json{{"what", "champions"}, {"schema", 1}, {"rows", json::array()}});
  content["rows"] = 3;
  expect_refused("holds no calls of a model", content);
  content = document({});
  content["schema"] = 2;
  expect_refused("is of schema 2; this Heed reads schema 1", content);
  content.erase("schema");
  expect_refused("is of schema null", content);
}

TEST(Calls, RowsThatCannotBeAreNamed) {
  const auto with = [](const char* key, const json& value) {
    json changed = row("b1h8l512d64:fp32");
    changed[key] = value;
    return document({row("b2h4l16d64:fp32"), changed});
  };
  expect_refused("row 2 has null where the text \"workload\" belongs", with("workload", nullptr));
  expect_refused("row 2 has 7 where the text \"form\" belongs", with("form", 7));
  for (const json& calls :
       {json(nullptr), json(-1), json(0), json(1.5), json("3"), json(1e30), json(18446744073709551615U)})
    expect_refused("calls.json: row 2 has " + calls.dump() + " where the number of calls", with("calls", calls));
  for (const json& seconds : {json(-0.5), json("1"), json(true)})
    expect_refused("row 2 has " + seconds.dump() + " where the time of the calls", with("seconds", seconds));
  expect_refused("row 2: ", with("workload", "b0h8l512d64"), ErrorCode::invalid_workload);
  expect_refused("row 2: ", with("workload", "banana"), ErrorCode::invalid_workload);
  expect_refused("row 1 is no object", document({json("b1h8l512d64")}));
}

}  // namespace
}  // namespace heed::record
