#include "muster/ps/server/command_link.h"

#include <cstring>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

constexpr uint32_t kMostSources = 1'000'000;

struct Head {
  Command::Kind kind = Command::Kind::kApply;
  uint32_t sources = 0;
  double divisor = 1;
  double lr = 0;
  double gradient_scale = 1;
  int64_t version = 0;
  int64_t step = 0;
  int32_t asynchronous = 1;
  uint32_t averages = 0;
};

struct NumbersHead {
  uint64_t n = 0;
  uint64_t count = 0;
};

}  // namespace

void send_command(Connection& connection, const Command& command, const std::function<void()>& check) {
  const Head head = {command.kind,           static_cast<uint32_t>(command.sources.size()),
                     command.divisor,        command.lr,
                     command.gradient_scale, command.version,
                     command.step,           command.asynchronous,
                     command.averages};
  std::vector<std::byte> bytes(sizeof(head) + command.sources.size() * sizeof(GradientSource));
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), command.sources.data(),
              command.sources.size() * sizeof(GradientSource));
  connection.send(bytes.data(), bytes.size(), Deadline::never(), check);
}

Command receive_command(Connection& connection, const std::function<void()>& check) {
  Head head;
  connection.receive(&head, sizeof(head), Deadline::never(), check);
  if (head.kind > Command::Kind::kDrop || head.sources > kMostSources)
    throw DataLoss("the leader sent what is no command");
  Command command = {head.kind,           std::vector<GradientSource>(head.sources),
                     head.divisor,        head.lr,
                     head.gradient_scale, head.version,
                     head.step,           head.asynchronous,
                     head.averages != 0};
  connection.receive(command.sources.data(), command.sources.size() * sizeof(GradientSource),
                     Deadline::never(), check);
  return command;
}

void send_numbers(Connection& connection, uint64_t n, std::span<const double> numbers,
                  const std::function<void()>& check) {
  const NumbersHead head = {.n = n, .count = numbers.size()};
  std::vector<std::byte> bytes(sizeof(head) + numbers.size_bytes());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), numbers.data(), numbers.size_bytes());
  connection.send(bytes.data(), bytes.size(), Deadline::never(), check);
}

void receive_numbers(Connection& connection, uint64_t n, std::span<double> numbers,
                     const std::function<void()>& check) {
  NumbersHead head;
  connection.receive(&head, sizeof(head), Deadline::never(), check);
  if (head.n != n || head.count != numbers.size())
    raise<DataLoss>("another parameter server sent {} numbers of sum {}; expected {} of sum {}", head.count,
                    head.n, numbers.size(), n);
  connection.receive(numbers.data(), numbers.size_bytes(), Deadline::never(), check);
}

}  // namespace muster::detail
