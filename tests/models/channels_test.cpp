// Models that are no endpoints: programs, mailboxes, recordings.
#include <sys/resource.h>

#include <csignal>
#include <thread>

#include "base/files.hpp"
#include "models/command_model.hpp"
#include "models/mailbox.hpp"
#include "models/recording.hpp"
#include "testing.hpp"

namespace heed::models {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Conversation kPrompt = {{Role::system, "You write kernels."}, {Role::user, "Make it faster."}};

std::string failure_of(Model& model, const Conversation& prompt = kPrompt) {
  try {
    (void)model.ask(prompt);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::model);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(CommandModel, ReadsThePromptAndWritesTheReply) {
  CommandModel model("tr a-z A-Z; echo noise >&2", 20);
  EXPECT_EQ(model.name(), "tr");
  const Reply reply = model.ask(kPrompt);
  EXPECT_EQ(reply.text, "YOU WRITE KERNELS.\n\n---- USER ----\n\nMAKE IT FASTER.\n");
  EXPECT_EQ(reply.usage.prompt_tokens, std::nullopt);
}

TEST(CommandModel, ProgramsThatFail) {
  CommandModel failing("echo no key >&2; exit 3", 20);
  EXPECT_THAT(failure_of(failing), HasSubstr("ended with exit code 3: no key"));
  CommandModel missing("/no/such/program", 20);
  EXPECT_THAT(failure_of(missing), HasSubstr("exit code 127"));
  CommandModel silent("cat > /dev/null", 20);
  EXPECT_THAT(failure_of(silent), HasSubstr("wrote no reply"));
  CommandModel slow("sleep 30", 0.2);
  EXPECT_THAT(failure_of(slow), HasSubstr("took more than 0 s"));
  CommandModel killed("kill -9 $$", 20);
  EXPECT_THAT(failure_of(killed), HasSubstr("signal 9"));
  CommandModel flood("head -c 11000000 /dev/zero | tr '\\0' x", 60);
  EXPECT_THAT(failure_of(flood), HasSubstr("more than 10 MB"));
  CommandModel deaf("echo fast", 20);
  EXPECT_EQ(deaf.ask({{Role::user, std::string(3 << 20, 'x')}}).text, "fast\n") << "a program that reads nothing";
  EXPECT_THROW(CommandModel(" ", 20), Error);
}

TEST(Mailbox, WaitsForAReplyAndFindsItAgain) {
  const testing_support::TemporaryFolder folder;
  const fs::path box = folder.path() / "box";
  std::vector<std::string> waits;
  fs::path prompt;
  {
    Mailbox mailbox(box, 20, [&](const std::string& text) { waits.push_back(text); });
    std::thread person([&] {
      for (int i = 0; i < 1000 && prompt.empty(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        for (const auto& entry : fs::directory_iterator(box))
          if (entry.path().string().ends_with(".prompt.md")) prompt = entry.path();
      }
      EXPECT_EQ(read_file(prompt, ErrorCode::model), text_of(kPrompt));
      std::string reply = prompt.string();
      reply.replace(reply.rfind(".prompt.md"), 10, ".reply.md");
      write_file_atomically(reply, "use wider tiles", ErrorCode::model);
    });
    EXPECT_EQ(mailbox.ask(kPrompt).text, "use wider tiles");
    person.join();
  }
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_THAT(waits[0], HasSubstr(".reply.md"));
  EXPECT_THAT(prompt.filename().string(), ::testing::StartsWith("0001-"));
  // A run that was interrupted asks again.
  Mailbox again(box, 20);
  EXPECT_EQ(again.ask(kPrompt).text, "use wider tiles");
  EXPECT_EQ(std::distance(fs::directory_iterator(box), fs::directory_iterator{}), 2);
}

TEST(Mailbox, NobodyAnswers) {
  const testing_support::TemporaryFolder folder;
  Mailbox mailbox(folder.path(), 0.1);
  EXPECT_THAT(failure_of(mailbox), HasSubstr("no reply came to "));
  EXPECT_THAT(failure_of(mailbox, {{Role::user, "another"}}), HasSubstr("0002-"));
  write_file_atomically(folder.path() / "file", "", ErrorCode::internal);
  EXPECT_THROW(Mailbox(folder.path() / "file" / "box", 1), Error);
}

// As an unpacked archive leaves it: heed waits for a file, and says what is there.
TEST(Mailbox, AReplyThatIsAFolderIsNamed) {
  const testing_support::TemporaryFolder folder;
  const std::string digest = digest_of(kPrompt).substr(0, 12);
  fs::create_directory(folder.path() / ("0001-" + digest + ".reply.md"));
  std::vector<std::string> waits;
  Mailbox mailbox(folder.path(), 1, [&](const std::string& text) { waits.push_back(text); });
  EXPECT_THAT(failure_of(mailbox), HasSubstr("no reply came to "));
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_THAT(waits[0], HasSubstr(".reply.md is a folder or a device, and a reply is a file"));
}

struct Scripted final : Model {
  std::vector<std::string> replies;  // empty: a failure
  std::size_t asked = 0;
  std::string called = "scripted";
  [[nodiscard]] const std::string& name() const override { return called; }
  Reply ask(const Conversation&) override {
    const std::string text = replies.at(asked++);
    if (text.empty()) throw Error(ErrorCode::model, "the model is down");
    if (text == "unusable") {
      Reply received;
      received.text = "half";
      received.usage.completion_tokens = 9;
      throw UnusableReply("the stream broke off", received);
    }
    Reply reply;
    reply.text = text;
    reply.model = called;
    reply.usage.prompt_tokens = 3;
    reply.cost = 0.25;
    return reply;
  }
};

TEST(Recording, ReplaysWhatWasRecorded) {
  const testing_support::TemporaryFolder folder;
  const fs::path file = folder.path() / "recording.jsonl";
  const auto scripted = std::make_shared<Scripted>();
  scripted->replies = {"one", "", "three"};
  Recorder recorder(scripted, file);
  const Conversation other = {{Role::user, "other"}};
  EXPECT_EQ(recorder.ask(kPrompt).text, "one");
  EXPECT_EQ(failure_of(recorder), "the model is down");
  EXPECT_EQ(recorder.ask(other).text, "three");

  Replay replay(file);
  const Reply third = replay.ask(other);
  EXPECT_EQ(third.text, "three") << "by the prompt, not by the order";
  EXPECT_EQ(third.usage.prompt_tokens, 3);
  EXPECT_EQ(third.cost, 0.25);
  EXPECT_EQ(replay.other_prompts(), 0);
  EXPECT_EQ(replay.ask({{Role::user, "with another time in it"}}).text, "one") << "the first that is left";
  EXPECT_EQ(replay.other_prompts(), 1);
  EXPECT_EQ(failure_of(replay), "the model is down");
  EXPECT_THAT(failure_of(replay), HasSubstr("holds 3 replies, and all are used"));
}

TEST(Recording, LinesWithoutThePromptNameItByItsDigest) {
  const testing_support::TemporaryFolder folder;
  const fs::path file = folder.path() / "recording.jsonl";
  const auto scripted = std::make_shared<Scripted>();
  scripted->replies = {"one", "two"};
  Recorder recorder(scripted, file);
  const Conversation other = {{Role::user, "other"}};
  recorder.ask(kPrompt);
  recorder.ask(other);
  std::string slim;
  for (const std::string& line : split(read_file(file, ErrorCode::internal), '\n')) {
    if (trim(line).empty()) continue;
    nlohmann::json exchange = nlohmann::json::parse(line);
    exchange.erase("messages");
    slim += exchange.dump() + "\n";
  }
  write_file_atomically(file, slim, ErrorCode::internal);
  Replay replay(file);
  EXPECT_EQ(replay.ask(other).text, "two");
  EXPECT_EQ(replay.ask(kPrompt).text, "one");
  EXPECT_EQ(replay.other_prompts(), 0);
}

// Prompts of a run whose times are others, asked for in another order.
TEST(Recording, APromptWithoutAnEqualHasTheReplyOfItsName) {
  const testing_support::TemporaryFolder folder;
  const fs::path file = folder.path() / "recording.jsonl";
  const auto scripted = std::make_shared<Scripted>();
  scripted->replies = {"one", "two", "three"};
  Recorder recorder(scripted, file);
  const auto prompt = [](const std::string& us) { return Conversation{{Role::user, "the base takes " + us}}; };
  recorder.ask_as("generation 0, place 1, first", prompt("1 us"));
  recorder.ask_as("generation 0, place 2, first", prompt("2 us"));
  recorder.ask(prompt("3 us"));
  Replay replay(file);
  EXPECT_EQ(replay.ask_as("generation 0, place 2, first", prompt("4 us")).text, "two");
  EXPECT_EQ(replay.ask_as("generation 7, place 7, first", prompt("1 us")).text, "one") << "an equal prompt comes first";
  EXPECT_EQ(replay.ask_as("generation 0, place 2, first", prompt("4 us")).text, "three") << "what is left";
  EXPECT_EQ(replay.other_prompts(), 2);
}

TEST(Recording, WhatAFailureCostIsReplayed) {
  const testing_support::TemporaryFolder folder;
  const fs::path file = folder.path() / "recording.jsonl";
  const auto scripted = std::make_shared<Scripted>();
  scripted->replies = {"unusable"};
  Recorder recorder(scripted, file);
  EXPECT_EQ(failure_of(recorder), "the stream broke off");
  Replay replay(file);
  try {
    (void)replay.ask(kPrompt);
    ADD_FAILURE() << "no error";
  } catch (const UnusableReply& error) {
    EXPECT_STREQ(error.what(), "the stream broke off");
    EXPECT_EQ(error.received().text, "half");
    EXPECT_EQ(error.received().usage.completion_tokens, 9);
  }
}

// A limit of file sizes stands for a full disk.
TEST(Recording, AReplyThatCannotBeRecordedIsNotLost) {
  const testing_support::TemporaryFolder folder;
  const fs::path file = folder.path() / "recording.jsonl";
  const auto scripted = std::make_shared<Scripted>();
  scripted->replies = {"one", std::string(20'000, 'x'), std::string(20'000, 'y'), "unusable", "two"};
  std::vector<std::string> told;
  Recorder recorder(scripted, file, [&](const std::string& text) { told.push_back(text); });
  (void)recorder.ask(kPrompt);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit little = before;
  little.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  std::string second;
  std::string third;
  EXPECT_NO_THROW(second = recorder.ask(kPrompt).text);
  EXPECT_NO_THROW(third = recorder.ask(kPrompt).text);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(second, std::string(20'000, 'x'));
  EXPECT_EQ(third, std::string(20'000, 'y'));
  ASSERT_EQ(told.size(), 1U) << "once";
  EXPECT_THAT(told[0], HasSubstr("cannot write to the recording " + file.string() + ": File too large"));
  EXPECT_EQ(failure_of(recorder), "the stream broke off");
  EXPECT_EQ(recorder.ask(kPrompt).text, "two");
  Replay replay(file);
  EXPECT_EQ(replay.ask(kPrompt).text, "one");
  EXPECT_EQ(failure_of(replay), "the stream broke off") << "no part of a line is left";
  EXPECT_EQ(replay.ask(kPrompt).text, "two");
}

TEST(Recording, ALineThatAKillCutOff) {
  const testing_support::TemporaryFolder folder;
  const fs::path file = folder.path() / "recording.jsonl";
  const auto scripted = std::make_shared<Scripted>();
  scripted->replies = {"one", "two"};
  Recorder recorder(scripted, file);
  (void)recorder.ask(kPrompt);
  const std::string whole = read_file(file, ErrorCode::internal);
  write_file_atomically(file, whole + whole.substr(0, 30), ErrorCode::internal);
  std::vector<std::string> told;
  Replay replay(file, [&](const std::string& text) { told.push_back(text); });
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], HasSubstr("line 2 of " + file.string() + ", the last, is cut off and left out"));
  EXPECT_EQ(replay.ask(kPrompt).text, "one");
  EXPECT_THAT(failure_of(replay), HasSubstr("holds 1 replies"));
  // What comes behind it has a line of its own; a part of a line further up stays an error.
  (void)recorder.ask(kPrompt);
  const std::vector<std::string> lines = split(read_file(file, ErrorCode::internal), '\n');
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1], whole.substr(0, 30));
  EXPECT_EQ(nlohmann::json::parse(lines[2])["reply"]["content"], "two");
  testing_support::expect_error(ErrorCode::usage, "line 2 of ", [&] { const Replay again(file); });
}

TEST(Recording, FilesThatAreNone) {
  const testing_support::TemporaryFolder folder;
  EXPECT_THROW(Replay(folder.path() / "none"), Error);
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& text : std::vector<std::string>{deep, "{", "{}\n", "{\"messages\": [], \"reply\": 3}",
                                                          "{\"messages\": [{\"role\": \"x\", \"content\": \"\"}]}"}) {
    write_file_atomically(folder.path() / "file", text, ErrorCode::internal);
    try {
      const Replay replay(folder.path() / "file");
      ADD_FAILURE() << text.substr(0, 80);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_THAT(error.what(), HasSubstr("line 1 of "));
    }
  }
}

}  // namespace
}  // namespace heed::models
