#include "bench/ps/subjects.h"

#include <unistd.h>

#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/driver/numbers.h"

namespace muster::detail::bench::ps {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const Case kCase = {.transport = "shm", .workers = 2, .servers = 1, .variables = 1, .bytes = 4096};

std::vector<std::string> shapes(const std::vector<Case>& all) {
  std::vector<std::string> result;
  for (const auto& each : all)
    result.push_back(fmt::format("{} {}x{} {}x{}", each.transport, each.workers, each.servers, each.variables,
                                 format_size(each.bytes)));
  return result;
}

TEST(Cases, OneVariableHasEachSizeAndSeveralHaveFourKibibytes) {
  EXPECT_THAT(shapes(cases({{"shm"}, {1}, {1}, {1, 1000}, {1 << 20, 16 << 20}})),
              ElementsAre("shm 1x1 1x1M", "shm 1x1 1000x4K", "shm 1x1 1x4M", "shm 1x1 1x16M"));
  EXPECT_THAT(shapes(cases({{"shm"}, {1}, {1}, {1}, {6}})), ElementsAre("shm 1x1 1x8"));
}

TEST(Cases, ComeInTheOrderOfTransportsWorkersAndServers) {
  EXPECT_THAT(shapes(cases({{"tcp", "shm"}, {1, 2}, {1, 2}, {1}, {4096}})),
              ElementsAre("tcp 1x1 1x4K", "tcp 1x2 1x4K", "tcp 2x1 1x4K", "tcp 2x2 1x4K", "shm 1x1 1x4K",
                          "shm 1x2 1x4K", "shm 2x1 1x4K", "shm 2x2 1x4K"));
}

class PsSubjects : public ::testing::Test {
 protected:
  PsSubjects() {
    std::filesystem::create_directories(folder);
    for (const char* name : {"peer_ps_floor", "peer_ps_grpc", "peer_ps_torch_rpc.py"}) add(name, "");
  }
  ~PsSubjects() override { std::filesystem::remove_all(folder); }

  std::string add(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    return folder / name;
  }

  std::vector<std::string> names(const Case& of) const {
    std::vector<std::string> result;
    for (const auto& subject : subjects(settings, of)) result.push_back(subject.of.subject);
    return result;
  }

  SubjectCommand find(const std::string& name, const Case& of) const {
    for (const auto& subject : subjects(settings, of)) {
      if (subject.of.subject == name) return subject;
    }
    throw std::out_of_range(name);
  }

  /// Without the folder.
  std::string line(const SubjectCommand& subject, size_t process = 0) const {
    auto text = fmt::format("{}", fmt::join(subject.processes.at(process), " "));
    const std::string prefix = folder.string() + "/";
    for (size_t at = 0; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
    return text;
  }

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("ps_subjects.{}", getpid());
  const Settings settings = {.peers = {"grpc-unary", "grpc-stream", "torch-rpc"},
                             .programs = folder,
                             .python = "/usr/bin/python3",
                             .allocator = "/lib/quick.so"};
};

TEST_F(PsSubjects, TheFloorIsThatOfOneWorkerAndOneServer) {
  EXPECT_THAT(names(kCase), ElementsAre("muster", "grpc-unary", "grpc-stream", "torch-rpc"));
  const Case one = {.transport = "tcp", .variables = 1000, .bytes = 4096};
  EXPECT_THAT(names(one), ElementsAre("muster", "grpc-unary", "grpc-stream", "torch-rpc", "floor"));
  EXPECT_EQ(line(find("floor", one)), "peer_ps_floor DIR 0 1 0 1000 4096");
  EXPECT_EQ(find("floor", one).servers, 0);
}

TEST_F(PsSubjects, AnotherBuildIsStartedInTheSameWay) {
  const auto commands = subjects({.programs = "/bin", .baseline = "/old"}, kCase);
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[1].of.subject, "baseline");
  EXPECT_EQ(fmt::format("{}", fmt::join(commands[1].processes.at(0), " ")),
            "/old/muster run --workers 2 --ps 1 --strategy none --no-tune -- /old/muster_bench_ps DIR "
            "--variables 1 --bytes 4096");
}

TEST_F(PsSubjects, MusterIsStartedAsAUserWould) {
  EXPECT_EQ(line(find("muster", kCase)),
            "muster run --workers 2 --ps 1 --strategy none --no-tune -- muster_bench_ps DIR --variables 1 "
            "--bytes 4096");
  Case tcp = kCase;
  tcp.transport = "tcp";
  EXPECT_THAT(line(find("muster", tcp)), HasSubstr("--bytes 4096 --shared-memory off"));
}

TEST_F(PsSubjects, EveryRankOfAPeerIsAProcessAndServersComeLast) {
  const auto grpc = find("grpc-stream", kCase);
  EXPECT_EQ(grpc.workers, 2);
  EXPECT_EQ(grpc.servers, 1);
  ASSERT_EQ(grpc.processes.size(), 3u);
  EXPECT_EQ(line(grpc, 2), "peer_ps_grpc stream unix DIR 2 2 1 1 4096");
  EXPECT_EQ(line(find("torch-rpc", kCase), 0), "/usr/bin/python3 peer_ps_torch_rpc.py shm DIR 0 2 1 1 4096");
  EXPECT_THAT(find("torch-rpc", kCase).variables, Contains(Pair("LD_PRELOAD", "/lib/quick.so")));
}

TEST_F(PsSubjects, OverTcpNobodySharesMemoryOrSpins) {
  Case tcp = kCase;
  tcp.transport = "tcp";
  EXPECT_THAT(line(find("grpc-unary", tcp)), HasSubstr("unary tcp DIR"));
  EXPECT_THAT(line(find("torch-rpc", tcp)), HasSubstr("tcp DIR"));
  EXPECT_FALSE(find("torch-rpc", tcp).spins);
  EXPECT_TRUE(find("torch-rpc", kCase).spins);
}

TEST_F(PsSubjects, PeersSayWhatIsMissing) {
  const auto with = add("with", "#!/bin/sh\nexit 0\n");
  const auto without = add("without", "#!/bin/sh\nexit 1\n");
  EXPECT_THAT(choose_from(peers({.environment = {}, .programs = folder}, with), {}),
              ElementsAre("grpc-unary", "grpc-stream", "torch-rpc"));
  EXPECT_THAT(peers({.environment = {}, .programs = folder}, without)[2].missing,
              HasSubstr("is built without TensorPipe"));
  EXPECT_THAT(peers({.environment = {}, .programs = folder}, "")[2].missing,
              HasSubstr("no python3 here has torch"));
  std::filesystem::remove(folder / "peer_ps_grpc");
  EXPECT_THAT(choose_from(peers({.environment = {}, .programs = folder}, with), {}),
              ElementsAre("torch-rpc"));
  EXPECT_THAT(peers({.environment = {}, .programs = folder}, with)[0].missing,
              HasSubstr("there is no peer_ps_grpc in"));
}

}  // namespace
}  // namespace muster::detail::bench::ps
