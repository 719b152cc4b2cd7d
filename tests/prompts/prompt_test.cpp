// Prompts: what they tell, and what they leave out when there is no room.
#include "prompts/prompt.hpp"

#include <fmt/format.h>

#include "testing.hpp"

namespace heed::prompts {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Task task() {
  Task task;
  task.device = "a device";
  task.workload = "b1h8l512d64:fp16";
  task.problem = "1 batch of 8 heads";
  task.family = "fwd_x, for tests";
  task.floor_us = 1.5;
  task.floor_bound = "tensor cores";
  task.base_us = 4;
  task.parent = {.trial = 7,
                 .config = "fwd_x:m=64",
                 .ratio = 1.25,
                 .low = 1.2,
                 .high = 1.3,
                 .us = 3.2,
                 .what = "wider tiles",
                 .diff = {}};
  task.profile = "Shared memory bounds it.";
  task.sources = {{"kernels/shared.cuh", "shared\n", 2},
                  {"kernels/x.cuh", "int x[2] = {{1}, {2}};\n", 1},
                  {"kernels/edited.cuh", "edited\n", 0}};
  task.solutions = {{.trial = 3,
                     .config = "fwd_x:m=128",
                     .ratio = 1.1,
                     .low = 1.0,
                     .high = 1.2,
                     .us = 3.6,
                     .what = "taller",
                     .diff = "--- a\n+++ b\n"}};
  task.failures = {"an edit that did not compile"};
  task.insights = {"unrolling by 4 paid here"};
  return task;
}

std::string text_of(Preset preset, const Task& what, const PromptLimits& limits = {}) {
  const models::Conversation prompt = first_prompt({}, preset, what, limits);
  EXPECT_EQ(prompt.size(), 2U);
  EXPECT_EQ(prompt[0].role, models::Role::system);
  EXPECT_EQ(prompt[1].role, models::Role::user);
  EXPECT_LE(models::estimated_tokens(prompt), limits.window_tokens - limits.reply_tokens);
  return prompt[1].text;
}

TEST(Prompt, EachPresetTellsWhatThePaperSays) {
  const std::string free = text_of(Preset::free, task());
  const std::string insight = text_of(Preset::insight, task());
  const std::string full = text_of(Preset::full, task());
  for (const std::string& text : {free, insight, full}) {
    EXPECT_THAT(text, HasSubstr("- Problem: 1 batch of 8 heads (`b1h8l512d64:fp16`)"));
    EXPECT_THAT(text, HasSubstr("trial 7, `fwd_x:m=64`, 1.250 [1.200, 1.300] times as fast as the base, 3.2 us"));
    EXPECT_THAT(text, HasSubstr("1.5 us (tensor cores)"));
    EXPECT_THAT(text, HasSubstr("Shared memory bounds it."));
    EXPECT_THAT(text, HasSubstr("- an edit that did not compile"));
    EXPECT_THAT(text, HasSubstr("<file path=\"kernels/x.cuh\">\nint x[2] = {{1}, {2}};\n</file>"));
    EXPECT_THAT(text, HasSubstr("<<<<<<< SEARCH"));
    EXPECT_THAT(text, Not(HasSubstr("Not shown")));
    EXPECT_LT(text.find("kernels/edited.cuh"), text.find("kernels/x.cuh"));
    EXPECT_LT(text.find("kernels/x.cuh"), text.find("kernels/shared.cuh"));
  }
  EXPECT_THAT(free, Not(HasSubstr("unrolling by 4")));
  EXPECT_THAT(free, Not(HasSubstr("taller")));
  EXPECT_THAT(insight, HasSubstr("- unrolling by 4 paid here"));
  EXPECT_THAT(insight, Not(HasSubstr("taller")));
  EXPECT_THAT(full, HasSubstr("- unrolling by 4 paid here"));
  EXPECT_THAT(full, HasSubstr("trial 3, `fwd_x:m=128`: 1.100 [1.000, 1.200] times as fast as the base, 3.6 us. "
                              "taller\n```diff\n--- a\n+++ b\n```"));
}

TEST(Prompt, SectionsThatAreEmptyLeaveNoTitle) {
  Task bare = task();
  bare.profile.clear();
  bare.solutions.clear();
  bare.failures.clear();
  bare.insights.clear();
  bare.parent.trial = -1;
  const std::string text = text_of(Preset::full, bare);
  for (const char* title : {"What bounds it", "Insights", "Good solutions", "What failed"})
    EXPECT_THAT(text, Not(HasSubstr(title)));
  EXPECT_THAT(text, Not(HasSubstr("\n\n\n")));
  EXPECT_THAT(text, HasSubstr("the base, `fwd_x:m=64`, 3.2 us"));
}

TEST(Prompt, PromptsThatAreSentAtOnceDifferAtTheirEnd) {
  // Equal ones would be one file of a mailbox, and one answer.
  Task second = task();
  second.request = 2;
  second.requests = 3;
  Task third = second;
  third.request = 3;
  const std::string alone = text_of(Preset::full, task());
  EXPECT_THAT(alone, Not(HasSubstr("sent at once")));
  EXPECT_THAT(text_of(Preset::full, second), HasSubstr("This is request 2 of 3"));
  EXPECT_EQ(text_of(Preset::full, second).compare(0, alone.size(), alone), 0);
  EXPECT_NE(text_of(Preset::full, second), text_of(Preset::full, third));
}

TEST(Prompt, WhatIsTooLongIsLeftOutWhole) {
  Task large = task();
  large.sources[0].text = std::string(30'000, 's').append("\n");  // 10,000 tokens
  large.solutions.push_back(large.solutions[0]);
  large.solutions[0].diff = std::string(30'000, 'd');
  large.solutions[1].trial = 4;
  const std::string text = text_of(Preset::full, large, {.window_tokens = 11'000, .reply_tokens = 1000});
  EXPECT_THAT(text, Not(HasSubstr("sss")));
  EXPECT_THAT(text, HasSubstr("not to be edited: kernels/shared.cuh (1 lines)."));
  EXPECT_THAT(text, HasSubstr("kernels/x.cuh"));
  EXPECT_THAT(text, Not(HasSubstr("ddd")));
  EXPECT_THAT(text, HasSubstr("trial 4")) << "a shorter one behind it";
}

TEST(Prompt, AWindowWithoutRoomIsRefused) {
  try {
    (void)first_prompt({}, Preset::free, task(), {.window_tokens = 1500, .reply_tokens = 1400});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_THAT(error.what(),
                HasSubstr("window of 1500 tokens, 1400 of them for the reply, has no room for a source file"));
  }
}

TEST(Prompt, ConversationsGoOn) {
  const models::Conversation asked = {{models::Role::system, "s"}, {models::Role::user, "u"}};
  const models::Conversation again = again_prompt({}, asked, "reply", "line 3 stands nowhere");
  ASSERT_EQ(again.size(), 4U);
  EXPECT_EQ(again[2], (models::Message{models::Role::assistant, "reply"}));
  EXPECT_THAT(again[3].text, HasSubstr("could not be applied: line 3 stands nowhere"));
  const models::Conversation repair = repair_prompt({}, asked, "reply", "build_failed", "error: {{x}}");
  EXPECT_THAT(repair[3].text, HasSubstr("refused (build_failed)"));
  EXPECT_THAT(repair[3].text, HasSubstr("error: {{x}}"));
}

// The first one as full of sources as it may be, replies and reasons as long as they may be.
TEST(Prompt, SecondTriesAndRepairsKeepToTheWindow) {
  const PromptLimits limits{.window_tokens = 16'000, .reply_tokens = 2000};
  Task large = task();
  for (int i = 0; i < 40; ++i) large.sources.push_back({fmt::format("kernels/f{}.cuh", i), std::string(900, 'f'), 2});
  const models::Conversation first = first_prompt({}, Preset::full, large, limits);
  EXPECT_THAT(first[1].text, HasSubstr("Not shown"));
  const std::string reply(6000, 'r');  // 2000 tokens
  const std::string reason(20'000, 'w');
  const std::int64_t most = limits.window_tokens - limits.reply_tokens;
  const models::Conversation again = again_prompt({}, first, reply, reason, limits);
  ASSERT_EQ(again.size(), 4U);
  EXPECT_EQ(again[2].text, reply) << "there is room for it";
  EXPECT_LE(models::estimated_tokens(again), most);
  const models::Conversation repair = repair_prompt({}, again, reply, "build_failed", reason, limits);
  ASSERT_EQ(repair.size(), 4U) << "without the try before";
  EXPECT_EQ(repair[1], first[1]);
  EXPECT_EQ(repair[2].text, reply);
  EXPECT_THAT(repair[3].text, HasSubstr("refused (build_failed)"));
  EXPECT_LE(models::estimated_tokens(repair), most);
  // A model that wrote more than it was told: the end of its reply is left out.
  const models::Conversation cut = again_prompt({}, first, std::string(60'000, 'r'), "line 3", limits);
  EXPECT_LE(models::estimated_tokens(cut), most);
  EXPECT_GT(models::estimated_tokens(cut), most - 10);
  EXPECT_THAT(cut[3].text, HasSubstr("line 3"));
}

TEST(Prompt, PresetsByName) {
  for (const Preset preset : {Preset::free, Preset::insight, Preset::full})
    EXPECT_EQ(parse_preset(to_string(preset)), preset);
  EXPECT_THROW(parse_preset("fulll"), Error);
}

TEST(Template, PlacesAreFilledOnce) {
  EXPECT_EQ(filled("a {{x}} b{{ y }}\n", {{"x", "1"}, {"y", "{{x}}"}}, "t"), "a 1 b{{x}}\n");
  EXPECT_EQ(filled("a\n\n{{x}}\n\nb", {{"x", ""}}, "t"), "a\n\nb\n") << "an empty section and the line behind it";
  EXPECT_EQ(filled("{{x}}\nb", {{"x", "two\nlines\n"}}, "t"), "two\nlines\nb\n");
}

TEST(Template, PlacesThatAreNone) {
  const auto failure = [](std::string_view text) {
    try {
      (void)filled(text, {{"device", ""}}, "full");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(failure("a\nb {{devise}}"),
              HasSubstr("full.md, line 2: nothing is known as {{devise}}; did you mean \"device\"?"));
  EXPECT_THAT(failure("{{device"), HasSubstr("ends with }}"));
}

TEST(Template, AFolderMayHoldSomeOfThem) {
  const testing_support::TemporaryFolder folder;
  write_file_atomically(folder.path() / "system.md", "Be brief about {{family}}.", ErrorCode::internal);
  const Templates templates(folder.path());
  const models::Conversation prompt = first_prompt(templates, Preset::free, task(), {});
  EXPECT_EQ(prompt[0].text, "Be brief about fwd_x, for tests.\n");
  EXPECT_THAT(prompt[1].text, HasSubstr("# Task"));
  EXPECT_THROW(Templates(folder.path() / "none"), Error);
}

}  // namespace
}  // namespace heed::prompts
