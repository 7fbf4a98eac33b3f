// A member against a real coordinator in the same process, and against coordinators that misbehave.

#include "muster/cluster/member.h"

#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/cluster/coordinator.grpc.pb.h"
#include "muster/cluster/coordinator_protocol.h"
#include "muster/cluster/coordinator_stream.h"
#include "muster/cluster/coordinator_test.h"
#include "muster/net/secret.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ThreadCluster;

class MemberTest : public CoordinatorFixture {
 protected:
  // What a call throws, which must be an error of this type.
  template <typename E, typename Function>
  static std::string message_of(Function function) {
    try {
      function();
    } catch (const E& error) {
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }
};

TEST_F(MemberTest, ItEntersAndIsKnownToTheOthersAsItSays) {
  start(workers(1));
  auto mine = options("worker", 0);
  mine.incarnation = 3;
  Member member(mine, soon());
  const auto tasks = member.wait_assembled(soon());
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].task, TaskName::of("worker", 0));
  EXPECT_EQ(tasks[0].address, "127.0.0.1:1000");
  EXPECT_EQ(tasks[0].incarnation, 3);
  EXPECT_EQ(tasks[0].pid, getpid());
  EXPECT_EQ(member.find(TaskName::of("worker", 0), soon()).incarnation, 3);
  member.leave(soon());
}

TEST_F(MemberTest, ATaskThatIsInTheJobIsRefusedASecondTime) {
  start(workers(2));
  Member member(options("worker", 0), soon());
  member.put("key", "the coordinator has heard of it", soon());
  EXPECT_THAT(message_of<Refused>([&] { Member second(options("worker", 0), soon()); }),
              HasSubstr("refused /job:worker/task:0: /job:worker/task:0 has already entered the job"));
  member.put("key", "the first is still a member", soon());
}

TEST_F(MemberTest, AnAbortedJobRefusesWhoComesLater) {
  start(workers(2));
  coordinator->abort("no more disk", std::nullopt);
  EXPECT_THAT(message_of<Refused>([&] { Member late(options("worker", 0), soon()); }),
              HasSubstr("the job was aborted: no more disk"));
}

TEST_F(MemberTest, EveryWaitEndsAtItsDeadlineAndSaysWhatWasMissing) {
  start(workers(2));
  Member member(options("worker", 0), soon());
  const auto shortly = [] { return Deadline::after(20ms); };
  EXPECT_THAT(message_of<DeadlineExceeded>([&] { member.wait_assembled(shortly()); }),
              HasSubstr("not all tasks entered the job in time"));
  EXPECT_THAT(message_of<DeadlineExceeded>([&] { member.get("weights", shortly()); }),
              HasSubstr("nobody put the key 'weights'"));
  EXPECT_THAT(message_of<DeadlineExceeded>([&] { member.barrier("start", shortly()); }),
              HasSubstr("still missing worker/1, which has not entered the job"));
  EXPECT_THAT(message_of<DeadlineExceeded>([&] { member.gather("values", "mine", shortly()); }),
              HasSubstr("barrier 'values' did not complete"));
  EXPECT_THAT(message_of<DeadlineExceeded>([&] { member.wait_finished(shortly()); }),
              HasSubstr("the workers did not finish in time"));
  EXPECT_FALSE(member.finished());
  member.put("key", "a deadline does not end the membership", soon());
}

TEST_F(MemberTest, AValueThatIsPutAgainReplacesTheOld) {
  start(workers(1));
  Member member(options("worker", 0), soon());
  member.put("key", "old", soon());
  member.put("key", "new", soon());
  EXPECT_EQ(member.get("key", soon()), "new");
}

TEST_F(MemberTest, AMistakeIsAnErrorOfTheCallAlone) {
  start({{"ps", {0}}, {"worker", {0}}});
  Member member(options("worker", 0), soon());
  EXPECT_THAT(message_of<InvalidArgument>([&] { member.barrier("servers", soon(), "ps"); }),
              HasSubstr("/job:worker/task:0 is not among the tasks of barrier 'servers'"));
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { member.exited(TaskName::of("ps", 0), "was killed", soon()); }),
      HasSubstr("only launchers"));
  member.barrier("workers", soon(), "worker");
}

TEST_F(MemberTest, ItsEndIsToldOnceAndLeavingIsNoEnd) {
  start(workers(2));
  std::atomic<int> ends_of_first = 0;
  std::atomic<int> ends_of_second = 0;
  auto mine = options("worker", 0);
  mine.on_ended = [&](const Member::Ended&) { ++ends_of_first; };
  auto others = options("worker", 1);
  others.on_ended = [&](const Member::Ended& ended) {
    EXPECT_EQ(ended.by, std::nullopt);
    EXPECT_FALSE(ended.died);
    EXPECT_THAT(ended.reason, HasSubstr("the job was aborted: the user stopped the job"));
    ++ends_of_second;
  };
  {
    Member first(mine, soon());
    Member second(others, soon());
    second.wait_assembled(soon());
    first.leave(soon());
    coordinator->abort("the user stopped the job", std::nullopt);
    EXPECT_THROW(second.get("never", soon()), Aborted);
    second.abort("a reason that comes too late");
    while (ends_of_second == 0) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(ends_of_first, 0);
  EXPECT_EQ(ends_of_second, 1);
}

TEST_F(MemberTest, ANewIncarnationEndsTheMembershipOfTheOld) {
  start(workers(1), FailurePolicy::kWait);
  Member old(options("worker", 0), soon());
  old.wait_assembled(soon());
  auto again = options("worker", 0);
  again.incarnation = 1;
  Member member(again, soon());
  EXPECT_THROW(old.get("never", soon()), PeerLost);
  member.leave(soon());
}

// Welcomes a member, and says nothing more.
class SilentCoordinator {
 public:
  explicit SilentCoordinator(std::chrono::milliseconds heartbeat_timeout) {
    streams_ = std::make_unique<CoordinatorStreamServer>(
        std::vector<Address>{{"127.0.0.1", 0}},
        CoordinatorStreamServer::Handler{
            .connected = [](CoordinatorStreamServer::Id, const std::string&) {},
            .received =
                [this, heartbeat_timeout](CoordinatorStreamServer::Id id, const proto::FromMember& message) {
                  proto::FromCoordinator answer;
                  if (message.has_hello()) {
                    hello_ = message.hello();
                    answer.mutable_challenge()->set_nonce("nonce");
                  } else if (message.has_proof()) {
                    auto& welcome = *answer.mutable_welcome();
                    welcome.set_proof(Secret("secret").prove(challenge_text("coordinator", hello_, "nonce")));
                    welcome.set_heartbeat_timeout_ms(heartbeat_timeout.count());
                  } else {
                    return;
                  }
                  streams_->send(id, std::move(answer));
                },
            .disconnected = [](CoordinatorStreamServer::Id) {}});
  }

  Member::Options options() const {
    return {.coordinator = {streams_->address()},
            .job_id = "test",
            .secret = "secret",
            .task = TaskName::of("worker", 0),
            .tasks = {{"worker", {0}}}};
  }

 private:
  proto::Hello hello_;  // of the one member
  std::unique_ptr<CoordinatorStreamServer> streams_;
};

TEST_F(MemberTest, ARequestThatIsNotAnsweredIsADeadlineThatNamesTheCoordinator) {
  const SilentCoordinator silent(60s);
  Member member(silent.options(), soon());
  EXPECT_THAT(
      message_of<DeadlineExceeded>([&] { member.barrier("start", Deadline::after(10ms)); }),
      AllOf(HasSubstr("barrier 'start': the coordinator at 127.0.0.1:"), HasSubstr("did not answer")));
  EXPECT_THAT(message_of<DeadlineExceeded>([&] { member.leave(Deadline::after(10ms)); }),
              HasSubstr("did not take the leave in time"));
}

TEST_F(MemberTest, ALauncherMayNameTheTaskAtFaultAndAWorkerOnlyItself) {
  for (const std::string job : {"launcher", "worker"}) {
    start(workers(2));
    auto mine = options(job, 0);
    mine.observer = job == "launcher";
    Member member(mine, soon());
    member.abort("no more disk", TaskName::of("worker", 1));
    ASSERT_TRUE(coordinator->aborted());
    EXPECT_EQ(coordinator->aborted()->by, TaskName::of("worker", job == "launcher" ? 1 : 0));
    EXPECT_EQ(coordinator->aborted()->said, job == "worker");
  }
}

TEST_F(MemberTest, AProcessThatEndsWellWithoutHavingLeftHasFailed) {
  start(workers(1));
  auto mine = options("launcher", 0);
  mine.observer = true;
  Member launcher(mine, soon());
  Member worker(options("worker", 0), soon());
  worker.wait_assembled(soon());
  EXPECT_THROW(launcher.exited(TaskName::of("worker", 0), "exited with code 0", soon()), Aborted);
  EXPECT_THAT(coordinator->aborted()->reason, HasSubstr("exited with code 0"));
  EXPECT_TRUE(coordinator->aborted()->died);
}

TEST_F(MemberTest, IsToldWhoDied) {
  start(workers(2));
  std::promise<Member::Ended> ended;
  auto mine = options("worker", 0);
  mine.on_ended = [&](const Member::Ended& how) { ended.set_value(how); };
  auto first = std::make_unique<Member>(mine, soon());
  auto second = std::make_unique<Member>(options("worker", 1), soon());
  second->wait_assembled(soon());
  second.reset();  // without leaving
  const Member::Ended how = ended.get_future().get();
  EXPECT_EQ(how.by, TaskName::of("worker", 1));
  EXPECT_TRUE(how.died);
  EXPECT_FALSE(how.said);
  EXPECT_THAT(how.reason, HasSubstr("worker/1 (host"));
}

TEST_F(MemberTest, ACoordinatorThatFallsSilentHasFailed) {
  const SilentCoordinator silent(200ms);
  std::promise<std::string> ended;
  auto mine = silent.options();
  mine.on_ended = [&](const Member::Ended& how) { ended.set_value(how.reason); };
  Member member(mine, soon());
  EXPECT_THROW(member.get("never", soon()), PeerLost);
  EXPECT_THAT(ended.get_future().get(), HasSubstr("is silent since"));
}

TEST_F(MemberTest, AWrongSecretIsRefusedWithAClearError) {
  start(workers(1));
  auto wrong = options("worker", 0);
  wrong.secret = "guess";
  try {
    Member member(wrong, soon());
    FAIL();
  } catch (const Refused& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("refused /job:worker/task:0"), HasSubstr("does not know the job's secret")));
  }
}

TEST_F(MemberTest, ATaskThatWasRefusedAsTooSlowBeginsAgain) {
  std::unique_ptr<CoordinatorStreamServer> streams;
  const auto refuse = [&](CoordinatorStreamServer::Id id, const proto::FromMember&) {
    proto::FromCoordinator message;
    message.mutable_refusal()->set_reason(id < 3 ? "it was slow" : "it came three times");
    message.mutable_refusal()->set_kind(id < 3 ? proto::Refusal::TOO_SLOW : proto::Refusal::FINAL);
    streams->send(id, std::move(message));
    streams->close(id);
  };
  streams = std::make_unique<CoordinatorStreamServer>(
      std::vector<Address>{{"127.0.0.1", 0}},
      CoordinatorStreamServer::Handler{.connected = [](CoordinatorStreamServer::Id, const std::string&) {},
                                       .received = refuse,
                                       .disconnected = [](CoordinatorStreamServer::Id) {}});
  try {
    Member member({.coordinator = {streams->address()},
                   .job_id = "test",
                   .secret = "secret",
                   .task = TaskName::of("worker", 0),
                   .tasks = workers(1)},
                  soon());
    FAIL();
  } catch (const Refused& error) {
    EXPECT_THAT(error.what(), HasSubstr("it came three times"));
  }
}

// Takes every proof, and can't give one of its own.
class Impostor final : public proto::CoordinatorService::Service {
  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<proto::FromCoordinator, proto::FromMember>* stream) override {
    proto::FromMember incoming;
    proto::FromCoordinator challenge;
    challenge.mutable_challenge()->set_nonce("nonce");
    proto::FromCoordinator welcome;
    welcome.mutable_welcome()->set_proof(std::string(32, 'x'));
    stream->Read(&incoming);
    stream->Write(challenge);
    stream->Read(&incoming);
    stream->Write(welcome);
    while (stream->Read(&incoming)) continue;
    return grpc::Status::OK;
  }
};

TEST_F(MemberTest, ACoordinatorThatDoesNotKnowTheSecretIsNotTrusted) {
  Impostor service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  start(workers(1));
  auto member = options("worker", 0);
  member.coordinator = {{"127.0.0.1", port}};
  try {
    Member entered(member, soon());
    FAIL();
  } catch (const Refused& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not know the job's secret itself"));
  }
  server->Shutdown(std::chrono::system_clock::now());
}

TEST_F(MemberTest, AMemberMayComeBeforeTheCoordinator) {
  start(workers(1));
  const Address address = coordinator->address();
  auto early = options("worker", 0);
  coordinator.reset();
  auto entering = std::async(std::launch::async, [&] {
    Member member(early, soon());
    member.leave(soon());
  });
  coordinator.emplace(
      Coordinator::Options{.listen = {address}, .job_id = "test", .secret = "secret", .tasks = workers(1)});
  EXPECT_NO_THROW(entering.get());
}

TEST_F(MemberTest, NoCoordinatorInTimeIsADeadlineThatSaysWhere) {
  start(workers(1));
  auto lonely = options("worker", 0);
  coordinator.reset();
  try {
    Member member(lonely, Deadline::after(300ms));
    FAIL();
  } catch (const DeadlineExceeded& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("/job:worker/task:0"), HasSubstr(lonely.coordinator.front().to_string())));
  }
}

TEST_F(MemberTest, OfSeveralAddressesTheOneThatServesTheJobIsFound) {
  start(workers(1));
  Coordinator other({.listen = {{"127.0.0.1", 0}}, .job_id = "other", .secret = "x", .tasks = workers(1)});
  auto mine = options("worker", 0);
  mine.coordinator = {other.address(), coordinator->address()};
  Member member(mine, soon());
  EXPECT_NO_THROW(member.leave(soon()));
}

TEST_F(MemberTest, AnAbortReachesEveryPendingAndLaterCall) {
  start(workers(3));
  std::atomic<int> told = 0;
  const auto errors = ThreadCluster(3, 60s).run([&](int rank) {
    auto mine = options("worker", rank);
    mine.on_ended = [&](const Member::Ended& ended) {
      EXPECT_THAT(ended.reason, HasSubstr("no more disk"));
      EXPECT_EQ(ended.by, TaskName::of("worker", 2));
      EXPECT_FALSE(ended.died);
      EXPECT_TRUE(ended.said);
      ++told;
    };
    Member member(mine, soon());
    member.wait_assembled(soon());
    if (rank == 2) {
      member.abort("no more disk");
    } else {
      EXPECT_THROW(member.get("never", Deadline::never()), Aborted);
    }
    EXPECT_THROW(member.barrier("later", soon()), Aborted);
    while (told < 3) std::this_thread::sleep_for(1ms);
    member.put("x", "y", soon());
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("the job was aborted: worker/2"));
  EXPECT_EQ(told, 3);
  EXPECT_EQ(coordinator->aborted()->by, TaskName::of("worker", 2));
}

TEST_F(MemberTest, MembersNoticeThatTheCoordinatorIsGone) {
  start(workers(1));
  Member member(options("worker", 0), soon());
  auto waiting = std::async(std::launch::async, [&] { member.get("never", Deadline::never()); });
  member.barrier("here", soon());
  coordinator.reset();
  EXPECT_THROW(waiting.get(), PeerLost);
  EXPECT_THROW(member.barrier("later", soon()), PeerLost);
}

}  // namespace
}  // namespace muster::detail
