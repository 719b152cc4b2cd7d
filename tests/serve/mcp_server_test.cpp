// The protocol, as a client and as garbage speaks it.
#include "serve/mcp_server.hpp"

#include <unistd.h>

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
