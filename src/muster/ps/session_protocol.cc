#include "muster/ps/session_protocol.h"

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLongestRefusal = 4096;

}  // namespace

std::string model_subject(const std::string& model_id) {
  return "model " + model_id;
}

std::string worker_channel_name(const std::string& job_id, const std::string& model_id) {
  return fmt::format("ps/{}/{}/worker", job_id, model_id);
}

std::string command_channel_name(const std::string& job_id, const std::string& model_id) {
  return fmt::format("ps/{}/{}/commands", job_id, model_id);
}

std::string sum_channel_name(const std::string& job_id, const std::string& model_id) {
  return fmt::format("ps/{}/{}/sums", job_id, model_id);
}

std::string socket_channel_name(const std::string& job_id, const std::string& model_id, const Hello& hello,
                                uint32_t socket) {
  return fmt::format("ps-socket/{}/{}/{}/{}/{}/{}", job_id, model_id, hello.worker, hello.incarnation,
                     hello.link, socket);
}

void refuse(Connection& connection, const std::string& reason) {
  const std::string text = reason.substr(0, kLongestRefusal);
  Welcome welcome;
  welcome.refused = static_cast<uint32_t>(text.size());
  connection.send(&welcome, sizeof(welcome), Deadline::after(1s));
  connection.send(text.data(), text.size(), Deadline::after(1s));
}

Welcome receive_welcome(Connection& connection, Deadline deadline) {
  Welcome welcome;
  connection.receive(&welcome, sizeof(welcome), deadline);
  if (welcome.refused == 0) return welcome;
  std::string reason(std::min<size_t>(welcome.refused, kLongestRefusal), '\0');
  connection.receive(reason.data(), reason.size(), deadline);
  throw Refused(reason);
}

}  // namespace muster::detail
