#pragma once

// CoordinatorState with the clock in the test's hands, and members that are a few calls.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/cluster/coordinator_protocol.h"
#include "muster/cluster/coordinator_state.h"

namespace muster::detail {

struct Handshake {
  std::string secret = "s";
  std::string job_id = "j";
  std::string address = "10.0.0.1:1";
  std::string host = "host-a";
  int incarnation = 0;
  bool observer = false;
  bool falls_silent_before_proof = false;
  bool falls_silent = false;  // after the welcome
  std::optional<TaskSet> tasks;
};

// Sent messages are kept by stream.
class CoordinatorStateFixture : public ::testing::Test {
 protected:
  void make(TaskSet tasks, FailurePolicy policy = FailurePolicy::kAbort, bool restarts = false) {
    state.emplace(CoordinatorState::Options{.job_id = "j",
                                            .secret = "s",
                                            .tasks = std::move(tasks),
                                            .heartbeat_timeout = std::chrono::seconds(10),
                                            .failure_policy = policy,
                                            .restarts = restarts},
                  CoordinatorState::Actions{.send =
                                                [this](uint64_t id, proto::FromCoordinator message) {
                                                  sent[id].push_back(std::move(message));
                                                },
                                            .close = [this](uint64_t id) { closed.insert(id); }});
  }

  uint64_t connect(const TaskName& name, const Handshake& handshake) {
    const uint64_t id = ++last;
    state->connected(id, "peer", now);
    proto::FromMember message;
    auto& hello = *message.mutable_hello();
    hello.set_protocol(kProtocolVersion);
    hello.set_job_id(handshake.job_id);
    hello.set_nonce("n");
    hello.set_observer(handshake.observer);
    *hello.mutable_self() = to_proto(TaskInfo{.task = name,
                                              .address = handshake.address,
                                              .host_name = handshake.host,
                                              .host_identity = handshake.host,
                                              .pid = static_cast<int64_t>(100 + id),
                                              .incarnation = handshake.incarnation});
    for (const auto& [job, indices] : handshake.tasks.value_or(cluster)) {
      for (const int index : indices) *hello.add_tasks() = to_proto(TaskName::of(job, index));
    }
    const proto::Hello copy = hello;
    state->received(id, message, now);
    if (sent[id].empty() || !sent[id].back().has_challenge()) return id;
    if (handshake.falls_silent_before_proof) return id;
    proto::FromMember answer;
    answer.mutable_proof()->set_proof(
        Secret(handshake.secret).prove(challenge_text("member", copy, sent[id].back().challenge().nonce())));
    state->received(id, answer, now);
    if (handshake.falls_silent) return id;
    heartbeat(id);
    return id;
  }

  uint64_t enter(const std::string& job, int index, const Handshake& handshake = {}) {
    return connect(TaskName::of(job, index), handshake);
  }

  void barrier(uint64_t id, const std::string& name,
               std::chrono::milliseconds timeout = std::chrono::seconds(60), const std::string& job = "") {
    proto::FromMember message;
    auto& request = *message.mutable_request();
    request.set_id(++last_request);
    request.set_timeout_ms(timeout.count());
    request.mutable_barrier()->set_name(name);
    request.mutable_barrier()->set_job(job);
    state->received(id, message, now);
  }

  void put(uint64_t id, const std::string& key, const std::string& value) {
    proto::FromMember message;
    message.mutable_request()->set_id(++last_request);
    message.mutable_request()->mutable_put()->set_key(key);
    message.mutable_request()->mutable_put()->set_value(value);
    state->received(id, message, now);
  }

  void get(uint64_t id, const std::string& key) {
    proto::FromMember message;
    message.mutable_request()->set_id(++last_request);
    message.mutable_request()->set_timeout_ms(60000);
    message.mutable_request()->mutable_get()->set_key(key);
    state->received(id, message, now);
  }

  void leave(uint64_t id) {
    proto::FromMember message;
    message.mutable_leave();
    state->received(id, message, now);
  }

  void heartbeat(uint64_t id) {
    proto::FromMember message;
    message.mutable_heartbeat();
    state->received(id, message, now);
  }

  const proto::FromCoordinator* find(uint64_t id, proto::FromCoordinator::WhatCase what) {
    const proto::FromCoordinator* found = nullptr;
    for (const auto& message : sent[id]) {
      if (message.what_case() == what) found = &message;
    }
    return found;
  }
  std::string refusal(uint64_t id) {
    const auto* message = find(id, proto::FromCoordinator::kRefusal);
    return message != nullptr ? message->refusal().reason() : "";
  }
  std::string abort_reason(uint64_t id) {
    const auto* message = find(id, proto::FromCoordinator::kAbort);
    return message != nullptr ? message->abort().reason() : "";
  }
  const proto::Reply* reply(uint64_t id) {
    const auto* message = find(id, proto::FromCoordinator::kReply);
    return message != nullptr ? &message->reply() : nullptr;
  }
  bool assembled(uint64_t id) { return find(id, proto::FromCoordinator::kAssembled) != nullptr; }

  TaskSet cluster = {{"worker", {0, 1}}};
  std::optional<CoordinatorState> state;
  std::map<uint64_t, std::vector<proto::FromCoordinator>> sent;
  std::set<uint64_t> closed;
  CoordinatorState::Time now = CoordinatorState::Time() + std::chrono::hours(1);
  uint64_t last = 0;
  uint64_t last_request = 0;
};

}  // namespace muster::detail
