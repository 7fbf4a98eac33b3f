#include "muster/base/text.h"

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

using std::chrono::milliseconds;

TEST(EditDistance, CountsInsertDeleteReplaceAndSwap) {
  EXPECT_EQ(edit_distance("worker", "worker"), 0);
  EXPECT_EQ(edit_distance("worker", "workers"), 1);
  EXPECT_EQ(edit_distance("wroker", "worker"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Suggestion, NamesTheNearestAndOnlyWhenNear) {
  const std::vector<std::string> known = {"MUSTER_TASK", "MUSTER_SECRET"};
  EXPECT_EQ(suggestion("MUSTER_TAKS", known), "; did you mean MUSTER_TASK?");
  EXPECT_EQ(suggestion("qqqqqqqq", known), "");
  EXPECT_EQ(suggestion("--lr", {"--ps"}), "");
  EXPECT_EQ(suggestion("--sp", {"--ps"}), "; did you mean --ps?");
}

TEST(ParseInteger, TakesWholeNumbersOnly) {
  EXPECT_EQ(parse_integer("-17"), -17);
  for (const char* bad : {"", "1x", " 1", "1.0", "99999999999999999999"})
    EXPECT_FALSE(parse_integer(bad)) << bad;
}

TEST(ParseDuration, TakesUnitsAndRejectsTheRest) {
  EXPECT_EQ(parse_duration("250ms"), milliseconds(250));
  EXPECT_EQ(parse_duration("1.5s"), milliseconds(1500));
  EXPECT_EQ(parse_duration("10"), milliseconds(10000));
  EXPECT_EQ(parse_duration("5m"), milliseconds(300000));
  for (const char* bad : {"", "s", "-1s", "10 s", "10x", "nan", "inf", "1e300"})
    EXPECT_FALSE(parse_duration(bad)) << bad;
}

TEST(FormatDuration, ReadsBackAsTheSame) {
  for (int ms : {0, 1, 250, 1000, 90000, 300000, 7200000}) {
    EXPECT_EQ(parse_duration(format_duration(milliseconds(ms))), milliseconds(ms));
  }
}

TEST(FormatBytes, UsesTheUnitThatReadsBest) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1000), "1000 B");
  EXPECT_EQ(format_bytes(65536), "64 KiB");
  EXPECT_EQ(format_bytes(3 << 19), "1.5 MiB");
  EXPECT_EQ(format_bytes(size_t{1} << 50), "1024 TiB");
}

TEST(ParseBytes, TakesPowersOf1024AndNothingElse) {
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("64K"), 65536U);
  EXPECT_EQ(parse_bytes("25M"), 25U << 20);
  for (const char* text : {"", "K", "-1", "1.5M", "1MB", "64 K", "9999999999G"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
}

TEST(FirstColumns, CountsWhatIsSeen) {
  EXPECT_EQ(first_columns("hello", 5), "hello");
  EXPECT_EQ(first_columns("hello", 3), "hel");
  EXPECT_EQ(first_columns("\x1b[33mworker |\x1b[0m 50%", 6), "\x1b[33mworker\x1b[0m");
  EXPECT_EQ(first_columns("\xc3\xa4\xc3\xb6\xc3\xbc", 2), "\xc3\xa4\xc3\xb6");
  EXPECT_EQ(first_columns("ab\x1b[", 1), "a\x1b[");
}

TEST(Text, AShellTakesAQuotedWordAsItIs) {
  EXPECT_EQ(shell_quoted("--data=/a/b.c"), "--data=/a/b.c");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("two words"), "'two words'");
  EXPECT_EQ(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_quoted("~"), "'~'");
}

}  // namespace
}  // namespace muster::detail
