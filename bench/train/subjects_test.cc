#include "bench/train/subjects.h"

#include <unistd.h>

#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail::bench::train {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

const Settings kSettings = {.peers = {"ddp", "ddp-installed", "loop"},
                            .floor = true,
                            .programs = "/bin",
                            .python = "/usr/bin/python3",
                            .allocator = "/lib/quick.so",
                            .tuning = {{"OMP_NUM_THREADS", "1"}}};

std::vector<std::string> names(const std::vector<SubjectCommand>& subjects) {
  std::vector<std::string> result;
  for (const auto& subject : subjects)
    result.push_back(fmt::format("{} {}", subject.of.subject, subject.workers));
  return result;
}

SubjectCommand find(const std::string& name) {
  for (const auto& subject : subjects(kSettings, models()[0], "adam", {1, 2})) {
    if (names({subject}).front() == name) return subject;
  }
  throw std::out_of_range(name);
}

std::string line(const SubjectCommand& subject, size_t process = 0) {
  return fmt::format("{}", fmt::join(subject.processes.at(process), " "));
}

TEST(TrainSubjects, ComeWithTheNumbersOfWorkersThatTheyHave) {
  EXPECT_THAT(names(subjects(kSettings, models()[0], "adam", {1, 2})),
              ElementsAre("muster 1", "muster 2", "ddp 1", "ddp 2", "ddp-installed 2", "loop 1", "alone 2"));
  EXPECT_THAT(names(subjects({.peers = {"loop"}}, models()[0], "sgd", {2, 4})),
              ElementsAre("muster 2", "muster 4"));
}

TEST(TrainSubjects, AnotherBuildIsStartedInTheSameWay) {
  const auto commands =
      subjects({.programs = "/bin", .baseline = "/old", .strategies = {"allreduce", "ps-async"}}, models()[0],
               "sgd", {2});
  EXPECT_THAT(names(commands), ElementsAre("muster 2", "baseline 2", "ps-async 2", "baseline ps-async 2"));
  EXPECT_THAT(line(commands[3]), AllOf(HasSubstr("/old/muster run --workers 2 --strategy ps-async"),
                                       HasSubstr("-- /old/muster_bench_train DIR")));
}

TEST(TrainSubjects, MusterIsStartedAsAUserWould) {
  EXPECT_EQ(
      line(find("muster 2")),
      "/bin/muster run --workers 2 -- /bin/muster_bench_train DIR --model a --optimizer adam --batch 64");
}

TEST(TrainSubjects, EveryWorkerOfAPeerIsAProcess) {
  const auto ddp = find("ddp 2");
  ASSERT_EQ(ddp.processes.size(), 2u);
  EXPECT_EQ(line(ddp, 1), "/usr/bin/python3 /bin/peer_train_ddp.py DIR 1 2 a adam 64 best");
  const auto alone = find("alone 2");
  ASSERT_EQ(alone.processes.size(), 2u);
  EXPECT_EQ(line(alone, 1), "/bin/peer_train_loop DIR 1 a adam 64");
}

TEST(TrainSubjects, AllAreTunedAlikeButTheOneAsInstalled) {
  for (const char* name : {"muster 1", "muster 2", "ddp 1", "ddp 2", "loop 1", "alone 2"})
    EXPECT_THAT(find(name).variables, Contains(Pair("OMP_NUM_THREADS", "1"))) << name;
  EXPECT_THAT(find("ddp 1").variables, Contains(Pair("LD_PRELOAD", "/lib/quick.so")));
  const auto installed = find("ddp-installed 2");
  EXPECT_THAT(line(installed), HasSubstr(" default"));
  EXPECT_THAT(installed.variables, IsEmpty());
  EXPECT_THAT(installed.without,
              AllOf(Contains("OMP_NUM_THREADS"), Contains("OPENBLAS_CORETYPE"), Contains("LD_PRELOAD")));
}

class TrainPeers : public ::testing::Test {
 protected:
  TrainPeers() {
    std::filesystem::create_directories(folder);
    add("peer_train_ddp.py", "");
  }
  ~TrainPeers() override { std::filesystem::remove_all(folder); }

  std::string add(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    return folder / name;
  }

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("train_peers.{}", getpid());
};

TEST_F(TrainPeers, SayWhatIsMissing) {
  EXPECT_THAT(choose_from(peers({.environment = {}, .programs = folder}, "/usr/bin/python3"), {}),
              ElementsAre("ddp", "ddp-installed"));
  EXPECT_THAT(choose_from(peers({.environment = {}, .programs = folder}, ""), {}), IsEmpty());
  try {
    choose_from(peers({.environment = {}, .programs = folder}, ""), {"ddp"});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "--peers: ddp can't run: no python3 here has torch. Install python3-torch (scripts/bootstrap)");
  }
}

}  // namespace
}  // namespace muster::detail::bench::train
