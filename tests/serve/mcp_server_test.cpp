// The protocol, as a client and as garbage speaks it.
#include "serve/mcp_server.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>

#include "testing.hpp"

namespace heed::serve {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

McpServer server() {
  McpServer made("heed", "1", "Judge sources.");
  made.add(Tool{.name = "double",
                .description = "Twice a number",
                .input_schema = {{"type", "object"},
                                 {"properties", {{"x", {{"type", "number"}}}, {"why", {{"type", "string"}}}}},
                                 {"required", {"x"}}},
                .call = [](const Json& arguments) -> Json {
                  if (arguments["x"] == 13) throw Error(ErrorCode::usage, "13 is no number to double");
                  return {{"twice", 2 * arguments["x"].get<double>()}};
                }});
  made.add(Resource{.uri = "heed://contract",
                    .name = "contract",
                    .description = "What kernels keep to",
                    .mime_type = "text/plain",
                    .read = [] { return std::string("O = softmax(QK)V"); }});
  return made;
}

Json ask(McpServer& to, const Json& message) {
  const std::optional<Json> answer = to.answer(message.dump());
  EXPECT_TRUE(answer) << message.dump();
  return answer.value_or(Json::object());
}

Json request(const std::string& method, const Json& params = Json::object()) {
  return {{"jsonrpc", "2.0"}, {"id", 7}, {"method", method}, {"params", params}};
}

TEST(McpServer, AConversation) {
  McpServer made = server();
  const Json hello =
      ask(made, request("initialize", {{"protocolVersion", "2025-03-26"}, {"capabilities", Json::object()}}));
  EXPECT_EQ(hello["id"], 7);
  EXPECT_EQ(hello["result"]["protocolVersion"], "2025-03-26");
  EXPECT_EQ(hello["result"]["serverInfo"]["name"], "heed");
  EXPECT_EQ(ask(made, request("initialize", {{"protocolVersion", "2099-01-01"}}))["result"]["protocolVersion"],
            "2025-11-25");
  EXPECT_FALSE(made.answer(R"({"jsonrpc": "2.0", "method": "notifications/initialized"})"));
  EXPECT_EQ(ask(made, request("ping"))["result"], Json::object());
  EXPECT_EQ(ask(made, request("tools/list"))["result"]["tools"][0]["name"], "double");
  const Json result = ask(made, request("tools/call", {{"name", "double"}, {"arguments", {{"x", 4}}}}))["result"];
  EXPECT_EQ(result["structuredContent"]["twice"], 8);
  EXPECT_EQ(Json::parse(result["content"][0]["text"].get<std::string>())["twice"], 8);
  EXPECT_EQ(result["isError"], false);
  EXPECT_EQ(ask(made, request("resources/list"))["result"]["resources"][0]["uri"], "heed://contract");
  EXPECT_EQ(ask(made, request("resources/read", {{"uri", "heed://contract"}}))["result"]["contents"][0]["text"],
            "O = softmax(QK)V");
}

TEST(McpServer, ErrorsOfATool) {
  McpServer made = server();
  const Json result = ask(made, request("tools/call", {{"name", "double"}, {"arguments", {{"x", 13}}}}))["result"];
  EXPECT_EQ(result["isError"], true);
  EXPECT_EQ(result["content"][0]["text"], "13 is no number to double");
}

TEST(McpServer, Garbage) {
  McpServer made = server();
  const auto code = [&](const std::string& line) { return made.answer(line).value()["error"]["code"].get<int>(); };
  EXPECT_EQ(code("{"), -32700);
  EXPECT_EQ(code("\xff\xfe"), -32700);
  EXPECT_EQ(code("[]"), -32600);
  EXPECT_EQ(code("3"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc": "1.0", "id": 1, "method": "ping"})"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc": "2.0", "id": 1})"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc": "2.0", "id": {}, "method": "ping"})"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc": "2.0", "id": 1, "method": "tools/explode"})"), -32601);
  EXPECT_EQ(code(R"({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": 3})"), -32602);
  EXPECT_EQ(code(request("initialize").dump()), -32602);
  EXPECT_EQ(code(request("tools/call").dump()), -32602);
  EXPECT_EQ(code(request("tools/call", {{"name", "dubble"}}).dump()), -32602);
  EXPECT_EQ(code(request("tools/call", {{"name", "double"}}).dump()), -32602) << "x is missing";
  EXPECT_EQ(code(request("tools/call", {{"name", "double"}, {"arguments", {{"x", "4"}}}}).dump()), -32602);
  EXPECT_EQ(code(request("tools/call", {{"name", "double"}, {"arguments", {{"x", 4}, {"y", 4}}}}).dump()), -32602);
  EXPECT_EQ(code(request("tools/call", {{"name", "double"}, {"arguments", 3}}).dump()), -32602);
  EXPECT_EQ(code(request("resources/read", {{"uri", "heed://nothing"}}).dump()), -32002);
  EXPECT_FALSE(made.answer(R"({"jsonrpc": "2.0", "id": 1, "result": {}})")) << "an answer to nothing";
}

TEST(McpServer, WholeNumbersHaveTheRangeOfTheirSchema) {
  McpServer made = server();
  std::int64_t got = 0;
  made.add(Tool{.name = "list",
                .description = "Some",
                .input_schema = {{"properties",
                                  {{"most", {{"type", "integer"}, {"minimum", 1}, {"maximum", 1000}}},
                                   {"any", {{"type", "integer"}}}}}},
                .call = [&](const Json& arguments) -> Json {
                  got = arguments.value("most", arguments.value("any", std::int64_t{0}));
                  return {{"got", got}};
                }});
  const auto error = [&](const std::string& arguments) {
    const Json answer =
        made.answer(R"({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list", "arguments": )" +
                    arguments + "}}")
            .value();
    if (!answer.contains("error")) return answer.dump();
    EXPECT_EQ(answer["error"]["code"], -32602) << arguments;
    return answer["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(error(R"({"most": 1000000000000})"),
              HasSubstr("\"most\" of list is 1000000000000; it is a whole number from 1 to 1000"));
  EXPECT_THAT(error(R"({"most": -5})"), HasSubstr("is -5; it is a whole number from 1 to 1000"));
  EXPECT_THAT(error(R"({"most": 2.5})"), HasSubstr("is 2.5; it is a whole number"));
  EXPECT_THAT(error(R"({"any": 9223372036854775808})"),
              HasSubstr("is 9223372036854775808; it is a whole number from -9223372036854775808 to "
                        "9223372036854775807"));
  for (const std::int64_t good : {1, 1000}) {
    (void)ask(made, request("tools/call", {{"name", "list"}, {"arguments", {{"most", good}}}}));
    EXPECT_EQ(got, good);
  }
}

TEST(McpServer, TooManyLevelsAreNoMessage) {
  McpServer made = server();
  const std::string deep = R"({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": )" +
                           std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}}";
  EXPECT_EQ(made.answer(deep).value()["error"]["code"], -32700);
}

// Nobody reads what a judgement comes to.
TEST(McpServer, AnAnswerWhoseClientIsGoneIsGivenUp) {
  for (const bool reads : {false, true}) {
    std::atomic<bool> gone = false;
    std::atomic<bool> asked = false;
    McpServer made = server();
    made.add(Tool{.name = "judge",
                  .description = "Takes long",
                  .input_schema = {{"properties", Json::object()}},
                  .call = [&](const Json&) -> Json {
                    asked = true;
                    for (int i = 0; i < (reads ? 100 : 30'000) && !gone; ++i)
                      std::this_thread::sleep_for(std::chrono::milliseconds(10));
                    return Json::object();
                  }});
    int requests[2];
    int answers[2];
    ASSERT_EQ(::pipe(requests), 0);
    ASSERT_EQ(::pipe(answers), 0);
    std::thread client([&] {
      const std::string line = request("tools/call", {{"name", "judge"}}).dump() + "\n";
      EXPECT_EQ(::write(requests[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
      while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ::close(requests[1]);
      if (!reads) ::close(answers[0]);
    });
    std::ostringstream output;
    made.run(requests[0], output, {.output = answers[1], .on_gone = [&] { gone = true; }});
    client.join();
    EXPECT_EQ(gone, !reads) << "a client without further requests may wait for its answer";
    ::close(requests[0]);
    ::close(answers[1]);
    if (reads) ::close(answers[0]);
  }
}

TEST(McpServer, LinesThatComeInPiecesAndTooLongOnes) {
  McpServer made = server();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::thread client([&] {
    const auto send = [&](const std::string& text) {
      for (std::size_t at = 0; at < text.size();) {
        const ssize_t count = ::write(ends[1], text.data() + at, text.size() - at);
        if (count <= 0) break;
        at += static_cast<std::size_t>(count);
      }
    };
    const std::string ping = request("ping").dump() + "\n";
    send(ping.substr(0, 9));
    send(ping.substr(9) + "\n" + ping);
    send(std::string(17 << 20, 'x'));
    send("\n" + ping + "{\n");
    ::close(ends[1]);
  });
  std::ostringstream output;
  made.run(ends[0], output);
  client.join();
  ::close(ends[0]);
  const std::vector<std::string> lines = split(output.str(), '\n');
  ASSERT_EQ(lines.size(), 6U);
  for (const std::size_t good : {0U, 1U, 3U}) EXPECT_EQ(Json::parse(lines[good])["result"], Json::object());
  EXPECT_THAT(lines[2], HasSubstr("at most 16 MiB"));
  EXPECT_THAT(lines[4], HasSubstr("no JSON"));
}

}  // namespace
}  // namespace heed::serve
