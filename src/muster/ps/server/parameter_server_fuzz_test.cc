#include <fcntl.h>

#include <limits>
#include <random>

#include "muster/ps/server/parameter_server_fault_test.h"
#include "muster/shm/arena.h"
#include "muster/testing/fuzz.h"

namespace muster::detail {
namespace {

using namespace testing;

constexpr int kLeast = 20;  // attacks, and pushes

constexpr muster::detail::testing::Setup kSetup = {.servers = 1, .shared = true};
constexpr int kFuzzWorkers = 4;  // of which worker 0 is honest

// Who lies can't replace this incarnation.
constexpr int kNewest = std::numeric_limits<int>::max();

// One that sends whatever chance gives.
class Fuzzer {
 public:
  Fuzzer(const ServerGroup& servers, unsigned seed) : servers_(servers), random_(seed) {}

  /// Until the deadline, and then until it was often enough.
  void run(Deadline deadline) {
    while (!deadline.expired() || attacks_ < kLeast) {
      ++attacks_;
      try {
        attack();
      } catch (const Error&) {
        // The server has had enough of us.
      }
    }
  }

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }

  std::string noise(size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  void attack() {
    switch (below(8)) {
      case 0:
        return without_proof();
      case 1:
        return greet(noise(below(2 * sizeof(Hello))));
      case 2:
        return greet(mutated(bytes_of(hello())));
      case 3:
        return share_memory();
      default:
        return talk();
    }
  }

  Hello hello() {
    return {.spec = servers_.spec().fingerprint(),
            .worker = 1 + static_cast<int32_t>(below(kFuzzWorkers - 1)),
            .incarnation = ++incarnation_};
  }

  template <typename T>
  static std::string bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }

  std::string mutated(std::string bytes) {
    for (uint64_t i = 0; i <= below(3); ++i) bytes[below(bytes.size())] = static_cast<char>(random_());
    if (below(4) == 0) bytes.resize(below(bytes.size()));
    return bytes;
  }

  void without_proof() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {.sin_family = AF_INET,
                           .sin_port = htons(static_cast<uint16_t>(servers_.address(0).address.port)),
                           .sin_addr = {htonl(INADDR_LOOPBACK)},
                           .sin_zero = {}};
    Connection connection(fd, nullptr);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return;
    std::string bytes = below(2) == 0 ? "muster.1" + noise(32) : "";
    bytes += noise(below(5000));
    connection.send(bytes.data(), bytes.size(), RawWorker::soon());
  }

  Connection proven() {
    return endpoint_.connect(servers_.address(0).address, worker_channel_name("j", "1"), RawWorker::soon());
  }

  void greet(const std::string& bytes) {
    Connection connection = proven();
    connection.send(bytes.data(), bytes.size(), RawWorker::soon());
  }

  // Frames of a worker that has been accepted: right ones, changed ones, cut ones and noise. Gradients
  // are zeros, and learning rates are 0: what is taken after all changes nothing.
  void talk() {
    RawWorker worker(servers_, hello());
    worker.welcome();
    uint64_t number = 0;
    for (uint64_t i = 0; i < 1 + below(20); ++i) {
      const std::string bytes = frame(number);
      const bool spoilt = below(3) == 0;
      const std::string sent = !spoilt ? bytes : below(4) == 0 ? noise(below(200)) : mutated(bytes);
      worker.send(sent.data(), sent.size());
      if (sent.size() < bytes.size()) return;
    }
    worker.is_ended(Deadline::after(20ms));
  }

  std::string frame(uint64_t& number) {
    const Request request = {.kind = static_cast<Request::Kind>(below(7)),
                             .pull = static_cast<uint32_t>(below(2)),
                             .push = {.sequence = below(4), .total = -1}};
    switch (below(4)) {
      case 0:
        return bytes_of(Frame{.kind = Frame::Kind::kPull, .number = below(100)});
      case 1:
        return bytes_of(Frame{.kind = Frame::Kind::kSlice, .index = 1, .number = below(4), .bytes = 20}) +
               std::string(20, '\0');
      case 2:
        return bytes_of(
            Frame{.kind = Frame::Kind::kSlice, .index = 1, .number = below(4), .bytes = random_()});
      default:
        return bytes_of(Frame{.kind = Frame::Kind::kRequest, .number = ++number, .bytes = sizeof(request)}) +
               bytes_of(request);
    }
  }

  // A worker of this host, with memory that is none, or with anything in its session slot.
  void share_memory() {
    Connection connection = endpoint_.connect_local(servers_.address(0).local_name,
                                                    worker_channel_name("j", "1"), RawWorker::soon());
    const auto arena = Arena::create(size_t{1} << 16);
    auto* memory = static_cast<std::byte*>(arena->allocate(SessionSlot::bytes(3)));
    SessionSlot* slot = SessionSlot::make(memory);
    Hello greeting = hello();
    greeting.shares_memory = 1;
    greeting.slot = below(3) == 0 ? random_() : arena->offset_of(memory);
    connection.send(&greeting, sizeof(greeting), RawWorker::soon());
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    connection.send_descriptor(below(4) == 0 ? nothing : arena->fd(), RawWorker::soon());
    close(nothing);
    receive_welcome(connection, RawWorker::soon());
    for (size_t i = 0; i < 3; ++i) slot->offsets()[i] = below(3) == 0 ? random_() : below(arena->capacity());
    slot->request = {.kind = static_cast<Request::Kind>(1 + below(9)),
                     .push = {.sequence = below(4), .total = -1}};
    slot->posted.exchange(below(3) == 0 ? random_() : 1);
  }

  const ServerGroup& servers_;
  std::mt19937_64 random_;
  Endpoint endpoint_{{.secret = "s"}};
  int incarnation_ = 0;
  int attacks_ = 0;
};

TEST(Fuzz, AnHonestWorkerTrainsOnWhateverOthersSend) {
  const LogLines log;
  ServerGroup servers(kSetup, spec_of(kSetup, {.workers = kFuzzWorkers}, sgd({.lr = 1})));
  Worker worker(servers.client_options(0, kNewest));
  worker.initialise(0);
  worker.enter();
  const auto deadline = fuzz_deadline(2s);
  const auto seed = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed());
  int pushes = 0;
  run_workers(kFuzzWorkers, [&](int index) {
    if (index > 0) {
      Fuzzer(servers, 10 * seed + static_cast<unsigned>(index)).run(deadline);
      return;
    }
    for (; !deadline.expired() || pushes < kLeast; ++pushes) worker.push(static_cast<float>(pushes % 3));
  });
  worker.finish_epoch();
  float sum = 0;
  for (int i = 0; i < pushes; ++i) sum += static_cast<float>(i % 3);
  EXPECT_EQ(worker.value(), -sum);
  Worker late(servers.client_options(1, kNewest));
  late.enter();
  EXPECT_EQ(late.value(), -sum);
}

}  // namespace
}  // namespace muster::detail
