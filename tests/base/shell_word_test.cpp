#include "process/shell_word.hpp"

#include "testing.hpp"

namespace heed {
namespace {

TEST(ShellWord, IsQuotedWhereItMustBe) {
  EXPECT_EQ(shell_word("/tmp/a.db"), "/tmp/a.db");
  EXPECT_EQ(shell_word("my runs/a.db"), "'my runs/a.db'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace heed
