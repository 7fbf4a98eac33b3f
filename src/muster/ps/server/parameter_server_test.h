#pragma once

// Parameter servers and their workers for tests: real endpoints, real connections, each worker in a thread.

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/optim/rules.h"
#include "muster/ps/client/parameter_client.h"
#include "muster/ps/server/parameter_server.h"

namespace muster::detail::testing {

using namespace std::chrono_literals;

struct Setup {
  int servers = 1;
  bool shared = true;
  std::chrono::milliseconds reader_timeout{30000};     ///< so that a slow machine does not decide
  std::chrono::milliseconds heartbeat_timeout{30000};  ///< likewise
  WaitRegistry* waits = nullptr;
  /// Where the leader finds a follower, instead of where it is.
  const std::function<ServerAddress(const ServerAddress& follower)>* route = nullptr;
};

inline void PrintTo(const Setup& setup, std::ostream* out) {
  *out << setup.servers << (setup.servers == 1 ? " server, " : " servers, ")
       << (setup.shared ? "shared memory" : "TCP");
}

/// Two variables of odd sizes and one of several chunks.
inline ModelSpec spec_of(const Setup& setup, PolicyOptions policy, const UpdateRulePtr& rule) {
  return {.variables = {{"a", {3, 7}}, {"b", {5}}, {"c", {300, 257}}},
          .servers = setup.servers,
          .rule = rule->to_string(),
          .policy = std::move(policy)};
}

class ServerGroup {
 public:
  ServerGroup(const Setup& setup, ModelSpec spec) : setup_(setup), spec_(std::move(spec)) {
    for (int i = 0; i < setup_.servers; ++i)
      endpoints_.push_back(std::make_shared<Endpoint>(Endpoint::Options{.secret = "s"}));
    for (int i = 0; i < setup_.servers; ++i) servers_.push_back(make(i));
  }

  std::unique_ptr<ParameterServer> make(int index) {
    return std::make_unique<ParameterServer>(ParameterServer::Options{
        .endpoint = endpoints_[static_cast<size_t>(index)],
        .job_id = "j",
        .model_id = "1",
        .spec = spec_,
        .server = index,
        .reader_timeout = setup_.reader_timeout,
        .heartbeat_timeout = setup_.heartbeat_timeout,
        .waits = setup_.waits,
        .find_server = [this](int server, Deadline) {
          return setup_.route != nullptr ? (*setup_.route)(address(server)) : address(server);
        }});
  }

  ServerAddress address(int server) const {
    const auto& endpoint = endpoints_[static_cast<size_t>(server)];
    return {endpoint->address(), setup_.shared ? endpoint->local_name() : ""};
  }

  ParameterClient::Options client_options(int worker, int incarnation = 0) {
    return {.endpoint = std::make_shared<Endpoint>(Endpoint::Options{.secret = "s"}),
            .job_id = "j",
            .model_id = "1",
            .spec = spec_,
            .worker = worker,
            .incarnation = incarnation,
            .server_wait = 10s,
            .find_server = [this](int server, Deadline) { return address(server); },
            .check =
                [deadline = Deadline::after(60s)] {
                  if (deadline.expired()) throw DeadlineExceeded("the test takes too long");
                }};
  }

  ParameterServer& operator[](int server) { return *servers_[static_cast<size_t>(server)]; }
  std::unique_ptr<ParameterServer>& pointer(int server) { return servers_[static_cast<size_t>(server)]; }
  const ModelSpec& spec() const { return spec_; }

 private:
  const Setup setup_;
  const ModelSpec spec_;
  std::vector<std::shared_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
};

/// A worker with variables of its own.
class Worker {
 public:
  explicit Worker(ParameterClient::Options options) : client_(std::move(options)) {
    for (const auto& variable : client_.placement().variables()) {
      values_.emplace_back(variable.count(), 0.0F);
      gradients_.push_back(client_.allocate(variable.count() * sizeof(float)));
    }
    for (auto& values : values_) variables_.push_back(values.data());
  }

  ParameterClient& client() { return client_; }

  void initialise(float value) {
    for (auto& values : values_) std::fill(values.begin(), values.end(), value);
    client_.initialise(std::vector<const void*>(variables_.begin(), variables_.end()));
  }

  Reply enter() { return take(client_.enter()); }
  Reply finish_epoch() { return take(client_.finish_epoch()); }

  /// All elements of all gradients are `value`.
  Reply push(float value, double lr = 1) {
    for (size_t i = 0; i < gradients_.size(); ++i) {
      auto* data = static_cast<float*>(gradients_[i].get());
      std::fill(data, data + values_[i].size(), value);
      client_.deliver(i, data);
    }
    return take(client_.push({.step = reply_.step, .version = version_, .lr = lr, .loss = value}));
  }

  void pull() { version_ = client_.pull(reply_.version, variables_); }
  int64_t version() const { return version_; }
  const Reply& reply() const { return reply_; }

  /// Of all elements, which must be the same.
  float value() {
    for (const auto& values : values_) {
      for (const float value : values) {
        if (value != values_[0][0]) {
          ADD_FAILURE() << value << " beside " << values_[0][0];
          return value;
        }
      }
    }
    return values_[0][0];
  }

 private:
  Reply take(const Reply& reply) {
    reply_ = reply;
    pull();
    return reply;
  }

  ParameterClient client_;
  std::vector<std::vector<float>> values_;
  std::vector<std::shared_ptr<void>> gradients_;
  std::vector<void*> variables_;
  Reply reply_;
  int64_t version_ = 0;
};

/// Runs each worker in a thread; what one throws is a failure.
inline void run_workers(int count, const std::function<void(int worker)>& body) {
  std::vector<std::thread> threads;
  for (int worker = 0; worker < count; ++worker) {
    threads.emplace_back([&, worker] {
      try {
        body(worker);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "worker " << worker << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace muster::detail::testing
