// Endpoints as they behave: streamed and whole replies, refusals, servers that are busy, slow, gone or broken.
#include "models/chat_client.hpp"

#include "models/scripted_server.hpp"

namespace heed::models {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Conversation kChatPrompt = {{Role::system, "You write kernels."}, {Role::user, "Make it faster: \xc3\xa9"}};

nlohmann::json completion(const std::string& text, const std::string& finish = "stop") {
  return {
      {"model", "tiny-1"},
      {"choices", {{{"index", 0}, {"message", {{"role", "assistant"}, {"content", text}}}, {"finish_reason", finish}}}},
      {"usage", {{"prompt_tokens", 12}, {"completion_tokens", 5}, {"prompt_tokens_details", {{"cached_tokens", 4}}}}}};
}

Endpoint endpoint_at(const std::string& url) {
  Endpoint endpoint;
  endpoint.url = url;
  endpoint.model = "tiny";
  endpoint.limit_s = 20;
  endpoint.retry = {.most_attempts = 3, .first_wait_s = 0.01, .longest_wait_s = 2};
  return endpoint;
}

std::string failure_of(Endpoint endpoint) {
  try {
    (void)ChatClient(std::move(endpoint)).ask(kChatPrompt);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::model);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

std::string failure_of(ScriptedReply reply) {
  const ScriptedServer server({std::move(reply)});
  Endpoint endpoint = endpoint_at(server.url());
  endpoint.retry.most_attempts = 1;
  return failure_of(std::move(endpoint));
}

TEST(ChatClient, AWholeReply) {
  const ScriptedServer server({json_reply(200, completion("use wider tiles"))});
  Endpoint endpoint = endpoint_at(server.url());
  endpoint.streams = false;
  endpoint.temperature = 0.5;
  endpoint.extra = {{"top_p", 0.9}};
  const Reply reply = ChatClient(endpoint).ask(kChatPrompt);
  EXPECT_EQ(reply.text, "use wider tiles");
  EXPECT_EQ(reply.model, "tiny-1");
  EXPECT_EQ(reply.usage.prompt_tokens, 12);
  EXPECT_EQ(reply.usage.completion_tokens, 5);
  EXPECT_EQ(reply.usage.cached_tokens, 4);
  EXPECT_EQ(reply.attempts, 1);
  EXPECT_FALSE(reply.is_cut_off);
  EXPECT_GT(reply.latency_s, 0);
  EXPECT_THAT(server.requests().at(0), HasSubstr("POST /v1/chat/completions HTTP/1.1"));
  EXPECT_THAT(server.requests().at(0), Not(HasSubstr("Authorization")));
  const nlohmann::json body = server.body(0);
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["messages"], nlohmann::json(kChatPrompt));
  EXPECT_EQ(body["max_tokens"], 16384);
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["top_p"], 0.9);
  EXPECT_FALSE(body.contains("stream"));
}

TEST(ChatClient, AStreamInPieces) {
  const nlohmann::json usage = {{"choices", nlohmann::json::array()},
                                {"usage", {{"prompt_tokens", 7}, {"completion_tokens", 3}}}};
  const nlohmann::json last = {{"choices", {{{"delta", nlohmann::json::object()}, {"finish_reason", "stop"}}}}};
  ScriptedReply streamed =
      stream_reply({"use ", "wider\n", "tiles"},
                   ": a comment\n\ndata: " + last.dump() + "\n\ndata: " + usage.dump() + "\n\ndata: [DONE]\n\n");
  streamed.between_s = 0.01;
  const ScriptedServer server({streamed});
  const Reply reply = ChatClient(endpoint_at(server.url() + "/chat/completions")).ask(kChatPrompt);
  EXPECT_EQ(reply.text, "use wider\ntiles");
  EXPECT_EQ(reply.usage.prompt_tokens, 7);
  EXPECT_EQ(server.body(0)["stream"], true);
  EXPECT_EQ(server.body(0)["stream_options"]["include_usage"], true);
}

TEST(ChatClient, ABusyServerIsAskedAgain) {
  const ScriptedServer server({json_reply(429, {{"error", {{"message", "slow down"}}}}, "Retry-After: 0.2\r\n"),
                               json_reply(500, {{"detail", "out of memory"}}), json_reply(200, completion("yes"))});
  std::vector<std::string> waits;
  const auto begin = std::chrono::steady_clock::now();
  const Reply reply =
      ChatClient(endpoint_at(server.url()), [&](const std::string& text) { waits.push_back(text); }).ask(kChatPrompt);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200)) << "the server's wish";
  EXPECT_EQ(reply.text, "yes");
  EXPECT_EQ(reply.attempts, 3);
  EXPECT_EQ(reply.lost, 0);
  ASSERT_EQ(waits.size(), 2U);
  EXPECT_THAT(waits[0], HasSubstr("status 429: slow down"));
  EXPECT_THAT(waits[1], HasSubstr("status 500: out of memory"));
}

TEST(ChatClient, AfterTheLastAttemptTheSentenceSaysSo) {
  const ScriptedServer server({json_reply(503, {}), json_reply(503, {}), json_reply(503, {{"message", "full"}})});
  EXPECT_THAT(failure_of(endpoint_at(server.url())), HasSubstr("status 503: full (3 attempts)"));
}

// A stream that is closed in good order before it has ended: between two events, or in the middle of one.
TEST(ChatClient, AStreamThatEndsEarlyIsAskedForAgain) {
  for (const char* end : {"", "data: {\"choi"}) {
    const ScriptedServer server(
        {stream_reply({"use "}, end), stream_reply({}, ""), json_reply(200, completion("yes"))});
    std::vector<std::string> waits;
    const Reply reply =
        ChatClient(endpoint_at(server.url()), [&](const std::string& text) { waits.push_back(text); }).ask(kChatPrompt);
    EXPECT_EQ(reply.text, "yes");
    EXPECT_EQ(reply.attempts, 3);
    EXPECT_EQ(reply.lost, 2) << "which may have been charged for";
    ASSERT_EQ(waits.size(), 2U);
    EXPECT_THAT(waits[0], HasSubstr("broke off: the stream ended before the reply did"));
  }
}

TEST(ChatClient, AStreamThatEndsEarlyAndWasChargedForIsNot) {
  const nlohmann::json usage = {{"choices", nlohmann::json::array()},
                                {"usage", {{"prompt_tokens", 7}, {"completion_tokens", 3}}}};
  const ScriptedServer server(
      {stream_reply({"use "}, "data: " + usage.dump() + "\n\n"), json_reply(200, completion("yes"))});
  try {
    (void)ChatClient(endpoint_at(server.url())).ask(kChatPrompt);
    ADD_FAILURE() << "no error";
  } catch (const UnusableReply& error) {
    EXPECT_THAT(error.what(), HasSubstr("broke off before the reply ended"));
    EXPECT_EQ(error.received().text, "use ");
    EXPECT_EQ(error.received().usage.completion_tokens, 3);
  }
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST(ChatClient, WhatWasLostBeforeARefusalMayHaveBeenChargedFor) {
  const ScriptedServer server({stream_reply({"use "}, ""), stream_reply({}, ""), json_reply(401, {})});
  try {
    (void)ChatClient(endpoint_at(server.url())).ask(kChatPrompt);
    ADD_FAILURE() << "no error";
  } catch (const UnusableReply& error) {
    EXPECT_THAT(error.what(), HasSubstr("asks for a key"));
    EXPECT_EQ(error.received().lost, 1) << "and the one that it stands for";
    EXPECT_EQ(error.received().attempts, 3);
  }
}

// Whether a service has the prompt.
TEST(ChatClient, APromptThatWasNotSentCostsNothing) {
  const ScriptedServer server({{.pieces = {"late"}, .before_s = 30}});
  Endpoint endpoint = endpoint_at(server.url());
  endpoint.limit_s = 0.3;
  endpoint.retry.most_attempts = 1;
  EXPECT_THROW((void)ChatClient(endpoint).ask(kChatPrompt), UnusableReply);
  endpoint.url = "http://127.0.0.1:9/v1";
  try {
    (void)ChatClient(endpoint).ask(kChatPrompt);
    ADD_FAILURE() << "no error";
  } catch (const UnusableReply& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::model);
  }
}

// What a service may charge for comes along with the failure.
TEST(ChatClient, WhatCameInPlaceOfAReplyIsKept) {
  const auto received = [](ScriptedReply reply) -> std::optional<Reply> {
    const ScriptedServer server({std::move(reply)});
    Endpoint endpoint = endpoint_at(server.url());
    endpoint.retry.most_attempts = 1;
    try {
      (void)ChatClient(std::move(endpoint)).ask(kChatPrompt);
    } catch (const UnusableReply& error) {
      EXPECT_EQ(error.code(), ErrorCode::model);
      return error.received();
    } catch (const Error&) {
      return std::nullopt;
    }
    ADD_FAILURE() << "no error";
    return std::nullopt;
  };
  for (const char* finish : {"length", "stop"}) {
    const Reply empty = received(json_reply(200, completion("", finish))).value();
    EXPECT_EQ(empty.usage.prompt_tokens, 12);
    EXPECT_EQ(empty.usage.completion_tokens, 5);
    EXPECT_EQ(empty.usage.raw["prompt_tokens_details"]["cached_tokens"], 4);
    EXPECT_EQ(empty.model, "tiny-1");
  }
  const nlohmann::json last = {{"choices", {{{"delta", nlohmann::json::object()}, {"finish_reason", "length"}}}},
                               {"usage", {{"prompt_tokens", 7}, {"completion_tokens", 16384}}}};
  EXPECT_EQ(received(stream_reply({}, "data: " + last.dump() + "\n\n"))->usage.completion_tokens, 16384);
  const nlohmann::json after = {{"usage", {{"prompt_tokens", 7}, {"completion_tokens", 2}}}};
  EXPECT_EQ(received(stream_reply({}, "data: {oops\n\ndata: " + after.dump() + "\n\n"))->usage.completion_tokens, 2);
  EXPECT_EQ(received(stream_reply({"use ", "wider"}, ""))->text, "use wider");
  EXPECT_EQ(received({.pieces = {http(200, "", "<html>gateway</html>")}})->text, "<html>gateway</html>");
  const Reply flood = received({.pieces = {http(200, "", std::string(11 << 20, 'x'))}}).value();
  EXPECT_EQ(flood.text, std::string(kMostKeptBytes, 'x'));
  EXPECT_EQ(flood.usage.prompt_tokens, std::nullopt);
  EXPECT_EQ(received({.pieces = {"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{\"choi"}})->text, "{\"choi");
  EXPECT_EQ(received(json_reply(503, {})), std::nullopt) << "services charge nothing for a refusal";
}

TEST(ChatClient, ARepliesArraysHaveLevelsAsFarAsTheyCanBeRead) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_THAT(failure_of({.pieces = {http(200, "", deep)}}), HasSubstr("is no JSON: [[["));
  EXPECT_THAT(failure_of({.pieces = {http(400, "", "{\"error\": " + deep + "}")}}), HasSubstr("status 400: "));
}

TEST(ChatClient, AWaitThatIsTooLongIsNoWait) {
  const ScriptedServer server({json_reply(429, {}, "Retry-After: 3600\r\n"), json_reply(200, completion("yes"))});
  EXPECT_THAT(failure_of(endpoint_at(server.url())),
              HasSubstr("answered with status 429 and asks to wait 3600 s, longer than the 2 s that heed waits"));
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST(ChatClient, KeysAreSentAndNeverPrinted) {
  const testing_support::EnvironmentVariable key("HEED_TEST_KEY", "sk-very-secret");
  const ScriptedServer server(
      {json_reply(401, {{"error", {{"message", "Incorrect API key provided: sk-very-secret."}}}}),
       json_reply(200, completion("the key is sk-very-secret"))});
  Endpoint endpoint = endpoint_at(server.url());
  endpoint.key = Secret::from_environment("HEED_TEST_KEY");
  const std::string why = failure_of(endpoint);
  EXPECT_THAT(why, HasSubstr("refused the key in environment variable HEED_TEST_KEY (status 401)"));
  EXPECT_THAT(why, HasSubstr("Incorrect API key provided: [key]."));
  EXPECT_THAT(why, Not(HasSubstr("sk-very")));
  EXPECT_EQ(ChatClient(endpoint).ask(kChatPrompt).text, "the key is [key]");
  EXPECT_THAT(server.requests().at(0), HasSubstr("Authorization: Bearer sk-very-secret\r\n"));
}

TEST(ChatClient, KeysAreInNothingThatIsStored) {
  const testing_support::EnvironmentVariable key("HEED_TEST_KEY", "sk-very-secret");
  nlohmann::json told = completion("yes");
  told["model"] = "tiny for sk-very-secret";
  told["usage"]["of"] = {"key sk-very-secret", {{"sk-very-secret", 3}}};
  nlohmann::json empty = told;
  empty["choices"][0]["message"]["content"] = "";
  const ScriptedServer server({json_reply(200, told), json_reply(200, empty),
                               json_reply(400, {{"error", std::string(290, '-') + "sk-very-secret"}})});
  Endpoint endpoint = endpoint_at(server.url());
  endpoint.key = Secret::from_environment("HEED_TEST_KEY");
  ChatClient client(endpoint);
  const Reply reply = client.ask(kChatPrompt);
  EXPECT_EQ(reply.model, "tiny for [key]");
  EXPECT_EQ(reply.usage.raw["of"], (nlohmann::json{"key [key]", {{"[key]", 3}}}));
  EXPECT_EQ(reply.usage.raw["prompt_tokens"], 12);
  try {
    (void)client.ask(kChatPrompt);
    ADD_FAILURE() << "no error";
  } catch (const UnusableReply& error) {
    EXPECT_THAT(nlohmann::json(error.received()).dump(), Not(HasSubstr("very")));
  }
  EXPECT_THAT(failure_of(endpoint), Not(HasSubstr("sk-very"))) << "cut through its middle";
}

TEST(ChatClient, AKeyThatIsAskedFor) {
  EXPECT_THAT(failure_of(json_reply(401, {})), HasSubstr("asks for a key (status 401); name its environment variable"));
}

TEST(ChatClient, FieldsThatAServerRefusesByNameAreLeftOut) {
  const ScriptedServer server(
      {json_reply(400, {{"error", {{"message", "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."}}}}),
       json_reply(422, {{"detail", {{{"loc", {"body", "stream_options"}}, {"msg", "extra fields"}}}}}),
       json_reply(200, completion("yes")), json_reply(200, completion("again")),
       json_reply(400, {{"error", "no max_tokens"}})});
  ChatClient client(endpoint_at(server.url()));
  EXPECT_EQ(client.ask(kChatPrompt).text, "yes");
  EXPECT_EQ(client.ask(kChatPrompt).text, "again");
  for (const std::size_t n : {2U, 3U}) {
    EXPECT_EQ(server.body(n)["max_completion_tokens"], 16384);
    EXPECT_FALSE(server.body(n).contains("max_tokens"));
    EXPECT_FALSE(server.body(n).contains("stream_options"));
  }
  EXPECT_THROW(client.ask(kChatPrompt), Error) << "a field is left out once";
}

TEST(ChatClient, RepliesThatAreNone) {
  EXPECT_THAT(failure_of({.pieces = {http(200, "", "<html>gateway</html>")}}), HasSubstr("is no JSON: <html>gateway"));
  EXPECT_THAT(failure_of({.pieces = {http(200, "", "")}}), HasSubstr("empty reply"));
  EXPECT_THAT(failure_of(json_reply(200, {{"choices", nlohmann::json::array()}})), HasSubstr("holds no choices"));
  EXPECT_THAT(failure_of(json_reply(200, completion(" \n"))), HasSubstr("holds no text"));
  EXPECT_THAT(failure_of(json_reply(200, completion("", "length"))), HasSubstr("used up its tokens"));
  EXPECT_THAT(failure_of(json_reply(200, {{"error", {{"message", "no such model"}}}})),
              HasSubstr("error: no such model"));
  EXPECT_THAT(failure_of(json_reply(200, {{"choices", {{{"message", 3}}}}, {"usage", {{"prompt_tokens", 1e300}}}})),
              HasSubstr("holds no text"));
  EXPECT_THAT(failure_of(json_reply(404, {{"error", "unknown"}})), HasSubstr("no model tiny (status 404): unknown"));
  EXPECT_THAT(failure_of(stream_reply({"use "}, "")), HasSubstr("broke off: the stream ended before the reply did"));
  EXPECT_THAT(failure_of(stream_reply({}, "data: {oops\n\n")), HasSubstr("event that is no JSON: {oops"));
  EXPECT_THAT(failure_of({.pieces = {"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{\"choi"}}),
              HasSubstr("broke off"));
  EXPECT_THAT(failure_of({.pieces = {http(200, "", std::string(11 << 20, 'x'))}}), HasSubstr("more than 10 MB"));
}

TEST(ChatClient, ARequestThatNobodyAnswersTimesOut) {
  const ScriptedServer server({{.pieces = {"late"}, .before_s = 30}});
  Endpoint endpoint = endpoint_at(server.url());
  endpoint.limit_s = 0.3;
  endpoint.retry.most_attempts = 1;
  EXPECT_THAT(failure_of(endpoint), HasSubstr("sent no whole reply within 0 s; allow more with --reply-limit"));
}

TEST(ChatClient, AnEndpointThatIsNotThere) {
  Endpoint endpoint = endpoint_at("http://127.0.0.1:9/v1");
  endpoint.retry.most_attempts = 2;
  EXPECT_THAT(failure_of(endpoint), HasSubstr("127.0.0.1:9/v1/chat/completions cannot be reached"));
  EXPECT_THROW(ChatClient(endpoint_at("ftp://somewhere")), Error);
  EXPECT_THROW(ChatClient(endpoint_at("localhost:8000")), Error);
  endpoint.model.clear();
  EXPECT_THROW(ChatClient{endpoint}, Error);
}

TEST(ChatClient, ACutOffReplyIsStillOne) {
  const ScriptedServer server({json_reply(200, completion("half a pat", "length"))});
  const Reply reply = ChatClient(endpoint_at(server.url())).ask(kChatPrompt);
  EXPECT_TRUE(reply.is_cut_off);
  EXPECT_EQ(reply.text, "half a pat");
}

}  // namespace
}  // namespace heed::models
