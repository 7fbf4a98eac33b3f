#include "muster/ps/plan.h"

#include <google/protobuf/text_format.h>

#include "muster/base/error.h"
#include "muster/ps/plan.pb.h"

namespace muster {

std::string ServerPlan::to_text() const {
  proto::ServerPlan message;
  for (const auto& variable : variables) {
    auto* added = message.add_variables();
    added->set_name(variable.name);
    for (const int64_t size : variable.shape) added->add_shape(size);
  }
  message.set_placement(muster::to_string(placement));
  message.set_servers(servers);
  message.set_rule(rule);
  message.set_clip_norm(clip_norm);
  message.set_stop_at_nan(stop_at_nan);
  message.set_wire(name_of(wire));
  message.set_workers(policy.workers);
  for (const auto& phase : policy.phases) {
    auto* added = message.add_phases();
    added->set_from(phase.from);
    added->set_mode(muster::to_string(phase.mode));
  }
  message.set_max_steps(policy.max_steps);
  message.set_aggregate(policy.aggregate);
  message.set_init_tokens(policy.init_tokens);
  message.set_max_staleness(policy.max_staleness);
  message.set_staleness_damping(policy.staleness_damping);
  message.set_staleness(policy.staleness);
  std::string text;
  MUSTER_CHECK(google::protobuf::TextFormat::PrintToString(message, &text));
  return text;
}

ServerPlan ServerPlan::parse(const std::string& text) {
  proto::ServerPlan message;
  if (!google::protobuf::TextFormat::ParseFromString(text, &message))
    raise<InvalidArgument>(
        "the plan for the parameter servers can't be read: do all tasks run the same build?");
  ServerPlan plan;
  for (const auto& variable : message.variables())
    plan.variables.push_back({variable.name(), {variable.shape().begin(), variable.shape().end()}});
  plan.placement = parse_placement(message.placement());
  plan.servers = message.servers();
  plan.rule = message.rule();
  plan.clip_norm = message.clip_norm();
  plan.stop_at_nan = message.stop_at_nan();
  plan.wire = parse_dtype(message.wire());
  plan.policy.workers = message.workers();
  plan.policy.phases.clear();
  for (const auto& phase : message.phases())
    plan.policy.phases.push_back({phase.from(), parse_mode(phase.mode())});
  plan.policy.max_steps = message.max_steps();
  plan.policy.aggregate = message.aggregate();
  plan.policy.init_tokens = message.init_tokens();
  plan.policy.max_staleness = message.max_staleness();
  plan.policy.staleness_damping = message.staleness_damping();
  plan.policy.staleness = message.staleness();
  return plan;
}

uint64_t ServerPlan::fingerprint() const {
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : to_text()) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

}  // namespace muster
