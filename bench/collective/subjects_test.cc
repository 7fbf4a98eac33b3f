#include "bench/collective/subjects.h"

#include <unistd.h>

#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail::bench::collective {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> names(const std::vector<SubjectCommand>& commands) {
  std::vector<std::string> result;
  for (const auto& command : commands) result.push_back(command.of.subject + ": " + command.of.variant);
  return result;
}

std::string line(const SubjectCommand& command, size_t process = 0) {
  return fmt::format("{}", fmt::join(command.processes.at(process), " "));
}

TEST(SubjectCommands, MusterComesFirstInEachMemoryAndAlgorithm) {
  Settings settings = {.programs = "/bin"};
  EXPECT_THAT(names(subjects(settings, 2, 2)), ElementsAre("muster: arena", "muster: heap"));
  EXPECT_EQ(line(subjects(settings, 2, 2)[0]),
            "/bin/muster run --workers 2 --no-tune -- /bin/muster_bench_rank DIR --memory arena");
  settings.algorithms = {"ring", "direct"};
  settings.flags = {"--segment", "64K"};
  const auto commands = subjects(settings, 2, 2);
  EXPECT_THAT(names(commands), ElementsAre("muster: arena ring", "muster: arena direct", "muster: heap ring",
                                           "muster: heap direct"));
  EXPECT_THAT(line(commands[3]), HasSubstr("DIR --memory heap --algorithm direct --segment 64K"));
}

TEST(SubjectCommands, AnotherBuildIsStartedInTheSameWay) {
  const Settings settings = {
      .memory = {"arena"}, .flags = {"--segment", "64K"}, .programs = "/bin", .baseline = "/old"};
  const auto commands = subjects(settings, 2, 2);
  EXPECT_THAT(names(commands), ElementsAre("muster: arena", "baseline: arena"));
  EXPECT_EQ(
      line(commands[1]),
      "/old/muster run --workers 2 --no-tune -- /old/muster_bench_rank DIR --memory arena --segment 64K");
}

TEST(SubjectCommands, OverTcpNobodySharesMemory) {
  const Settings settings = {.tcp = true, .peers = {"openmpi", "mpich"}, .programs = "/bin"};
  const auto commands = subjects(settings, 2, 2);
  EXPECT_THAT(names(commands),
              ElementsAre("muster: tcp", "openmpi: tcp", "openmpi: tcp, heap kept", "mpich: ucx tcp"));
  EXPECT_THAT(line(commands[0]), HasSubstr("--shared-memory off"));
  EXPECT_THAT(line(commands[1]), HasSubstr("--mca btl tcp,self"));
  EXPECT_EQ(commands[3].variables.at("MPIR_CVAR_NOLOCAL"), "1");
}

TEST(SubjectCommands, MoreRanksThanCoresYieldAndSaySo) {
  const Settings settings = {.peers = {"openmpi", "mpich"}, .memory = {"heap"}, .programs = "/bin"};
  const auto oversubscribed = subjects(settings, 4, 2);
  EXPECT_THAT(names(oversubscribed),
              ElementsAre("muster: heap", "openmpi: vader cma, yielding",
                          "openmpi: vader cma, heap kept, yielding", "openmpi: vader copy, yielding",
                          "openmpi: vader copy, heap kept, yielding", "mpich: default, spinning"));
  EXPECT_THAT(line(oversubscribed[1]), HasSubstr("mpi_yield_when_idle 1"));
  EXPECT_THAT(line(subjects(settings, 2, 2)[1]), Not(HasSubstr("yield")));
}

TEST(SubjectCommands, EveryRankOfGlooIsAProcess) {
  const auto gloo = subjects({.peers = {"gloo"}, .memory = {"heap"}, .programs = "/bin"}, 3, 4)[1];
  ASSERT_EQ(gloo.processes.size(), 3u);
  EXPECT_EQ(line(gloo, 2), "/bin/peer_gloo DIR 2 3");
}

TEST(Sizes, AreRoundedUpToWholeElementsOfEveryRank) {
  EXPECT_EQ(round_up("allreduce", 8, 3), 8);
  EXPECT_EQ(round_up("broadcast", 6, 3), 8);
  EXPECT_EQ(round_up("allgather", 8, 3), 12);
  EXPECT_EQ(round_up("reducescatter", 1024, 3), 1032);
  EXPECT_EQ(round_up("alltoall", 48, 3), 48);
}

class ChoosePeers : public ::testing::Test {
 protected:
  ChoosePeers() {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "peer_gloo");
  }
  ~ChoosePeers() override { std::filesystem::remove_all(folder); }

  std::vector<std::string> choose(const std::vector<std::string>& named) const {
    return choose(named, folder);
  }
  static std::vector<std::string> choose(const std::vector<std::string>& named,
                                         const std::filesystem::path& programs,
                                         const std::string& search_path = "/usr/bin") {
    Surroundings surroundings = {.environment = {}, .programs = programs};
    surroundings.environment.set("PATH", search_path);
    return choose_from(peers(surroundings), named);
  }

  std::string message_of(const std::string& peer) const {
    try {
      choose({peer});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "chosen";
  }

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("choose_peers.{}", getpid());
};

TEST_F(ChoosePeers, TakesThoseThatAreBuiltWhenNoneIsNamed) {
  EXPECT_THAT(choose({}), ElementsAre("gloo"));
  EXPECT_THAT(choose({}, "/nowhere"), IsEmpty());
  EXPECT_THAT(choose({"gloo", "gloo"}), ElementsAre("gloo"));
}

TEST_F(ChoosePeers, SaysWhatIsMissing) {
  EXPECT_THAT(message_of("mpich"), HasSubstr("Install mpich and libmpich-dev (scripts/bootstrap bench)"));
  EXPECT_THAT(message_of("glo"), HasSubstr("is not one of gloo, openmpi, mpich; did you mean gloo?"));
}

TEST_F(ChoosePeers, AnMpiNeedsItsLauncherToo) {
  std::ofstream(folder / "peer_mpich");
  EXPECT_THAT(choose({}, folder, "/nowhere"), ElementsAre("gloo"));
}

}  // namespace
}  // namespace muster::detail::bench::collective
