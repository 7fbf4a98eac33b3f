#include "muster/ps/order_link.h"

#include <cstring>

#include "muster/base/error.h"

namespace muster {
namespace {

constexpr uint32_t kMostSources = 1'000'000;

struct Head {
  Order::Kind kind = Order::Kind::kApply;
  uint32_t sources = 0;
  double divisor = 1;
  double lr = 0;
  double gradient_scale = 1;
  int64_t version = 0;
  int64_t step = 0;
};

}  // namespace

void send_order(Connection& connection, const Order& order, Deadline deadline) {
  const Head head = {order.kind,
                     static_cast<uint32_t>(order.sources.size()),
                     order.divisor,
                     order.lr,
                     order.gradient_scale,
                     order.version,
                     order.step};
  std::vector<std::byte> bytes(sizeof(head) + order.sources.size() * sizeof(Source));
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), order.sources.data(), order.sources.size() * sizeof(Source));
  connection.send(bytes.data(), bytes.size(), deadline);
}

Order receive_order(Connection& connection, const std::function<void()>& check) {
  Head head;
  connection.receive(&head, sizeof(head), Deadline::never(), check);
  if (head.kind > Order::Kind::kDrop || head.sources > kMostSources)
    throw DataLoss("the first server sent what is no order");
  Order order = {
      head.kind, std::vector<Source>(head.sources), head.divisor, head.lr, head.gradient_scale, head.version,
      head.step};
  connection.receive(order.sources.data(), order.sources.size() * sizeof(Source), Deadline::never(), check);
  return order;
}

}  // namespace muster
