#include "muster/find_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::string& name) {
  try {
    find_program(name, "/usr/bin:/bin");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "found";
}

TEST(FindProgram, LooksInPathThenBesideMuster) {
  EXPECT_THAT(find_program("sh", "/nonexistent:/usr/bin:/bin"), HasSubstr("/bin/sh"));
  EXPECT_EQ(find_program("/bin/sh", ""), "/bin/sh");
  EXPECT_THAT(find_program("muster_launcher_test", ""), HasSubstr("/muster_launcher_test"));
}

TEST(FindProgram, SaysWhatIsWrong) {
  EXPECT_THAT(message_of("no-such-program"), HasSubstr("neither in PATH nor beside muster"));
  EXPECT_THAT(message_of("./no-such-program"), HasSubstr("does not exist"));
  EXPECT_THAT(message_of("/etc/passwd"), HasSubstr("not an executable file"));
  EXPECT_THAT(message_of("/tmp/"), HasSubstr("not an executable file"));
}

}  // namespace
}  // namespace muster::detail
