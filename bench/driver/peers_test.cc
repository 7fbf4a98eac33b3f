#include "bench/driver/peers.h"

#include <unistd.h>

#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::detail::bench {
namespace {

using ::testing::ElementsAre;

class Peers : public ::testing::Test {
 protected:
  Peers() { std::filesystem::create_directories(folder); }
  ~Peers() override { std::filesystem::remove_all(folder); }

  std::string add(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    return folder / name;
  }

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("bench_peers.{}", getpid());
};

TEST_F(Peers, ThePythonThatHasTorchIsTaken) {
  const std::string without = add("without", "#!/bin/sh\nexit 1\n");
  const std::string with = add("with", "#!/bin/sh\nexit 0\n");
  EXPECT_EQ(find_torch_python({folder / "none", without, with}), with);
  EXPECT_EQ(find_torch_python({without, add("no_program", "")}), "");
}

TEST(PythonCandidates, BeginWithTheOneOfTheSystem) {
  EXPECT_THAT(python_candidates("/opt/bin:/usr/bin::/bin"),
              ElementsAre("/usr/bin/python3", "/opt/bin/python3", "/bin/python3"));
}

}  // namespace
}  // namespace muster::detail::bench
