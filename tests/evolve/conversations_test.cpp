// Conversations that are under way together: replies in any order, failures, and ends that nobody waits for.
#include "evolve/conversations.hpp"

#include <latch>

#include "base/files.hpp"
#include "models/chat_client.hpp"
#include "models/command_model.hpp"
#include "models/mailbox.hpp"
#include "models/scripted_server.hpp"
#include "process/interrupt.hpp"
#include "testing.hpp"

namespace heed::evolve {
namespace {

propose::Written reply_of(const std::string& text) {
  propose::Written written;
  written.reply = text;
  return written;
}

void take_all(Conversations& conversations) {
  while (conversations.under_way() > 0) {
    conversations.take_ended();
    std::this_thread::yield();
  }
}

// Each of the first two ends only while the other one is under way, the second before the first.
TEST(Conversations, OverlapAndEndInAnyOrder) {
  Conversations conversations(2);
  std::vector<std::string> ended;
  const auto note = [&](propose::Written written) { ended.push_back(written.reply); };
  std::latch both(2);
  std::latch second_is_over(1);
  conversations.begin(
      [&] {
        both.arrive_and_wait();
        second_is_over.wait();
        return reply_of("first");
      },
      note);
  EXPECT_TRUE(conversations.has_room());
  conversations.begin(
      [&] {
        both.arrive_and_wait();
        return reply_of("second");
      },
      note);
  EXPECT_FALSE(conversations.has_room());
  EXPECT_THROW(conversations.begin([] { return reply_of("third"); }, note), Error);
  while (ended.empty()) conversations.take_ended();
  EXPECT_EQ(ended, std::vector<std::string>{"second"});
  EXPECT_TRUE(conversations.has_room());
  conversations.begin([] { return reply_of("third"); },
                      [&](propose::Written written) {
                        note(std::move(written));
                        second_is_over.count_down();
                      });
  take_all(conversations);
  EXPECT_EQ(ended, (std::vector<std::string>{"second", "third", "first"}));
}

TEST(Conversations, WhatOneThrowsIsThrownWhereRepliesAreTaken) {
  Conversations conversations(3);
  int ended = 0;
  const auto count = [&](const propose::Written&) { ++ended; };
  conversations.begin([]() -> propose::Written { throw Error(ErrorCode::interrupted, "interrupted by the user"); },
                      count);
  take_all(conversations);
  EXPECT_EQ(ended, 0) << "whoever interrupted knows";
  conversations.begin([]() -> propose::Written { throw Error(ErrorCode::usage, "no prompt fits the window"); }, count);
  testing_support::expect_error(ErrorCode::usage, "no prompt fits", [&] { take_all(conversations); });
  conversations.begin([] { return reply_of("after it"); }, count);
  take_all(conversations);
  EXPECT_EQ(ended, 1);
}

// An endpoint that is silent, a mailbox that is waited for without end, a program that sleeps.
TEST(Conversations, ThoseThatNobodyWaitsForEnd) {
  const testing_support::TemporaryFolder folder;
  models::ScriptedServer server({{.pieces = {}, .between_s = 0, .before_s = 600}});
  models::Endpoint silent;
  silent.url = server.url();
  silent.model = "tiny";
  models::ChatClient endpoint(silent);
  models::Mailbox mailbox(folder.path(), 0);
  models::CommandModel command("sleep 600", 600);
  const models::Conversation prompt = {{models::Role::user, "Make it faster."}};
  Conversations conversations(3);
  std::atomic<int> interrupted_ones{0};
  int ended = 0;
  for (models::Model* model : std::vector<models::Model*>{&endpoint, &mailbox, &command})
    conversations.begin(
        [&, model] {
          try {
            return reply_of(model->ask(prompt).text);
          } catch (const Error& error) {
            interrupted_ones += error.code() == ErrorCode::interrupted ? 1 : 0;
            throw;
          }
        },
        [&](const propose::Written&) { ++ended; });
  while (server.requests().empty() || std::filesystem::is_empty(folder.path())) std::this_thread::yield();
  conversations.stop();
  EXPECT_EQ(interrupted_ones, 3);
  EXPECT_EQ(conversations.under_way(), 0U);
  EXPECT_EQ(ended, 0);
  EXPECT_FALSE(interrupted()) << "the rest of the process goes on";
  conversations.begin([] { return reply_of("later"); }, [&](const propose::Written&) { ++ended; });
  take_all(conversations);
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace heed::evolve
