#include "muster/ps/model_spec.h"

#include <google/protobuf/text_format.h>

#include "muster/base/error.h"
#include "muster/ps/model_spec.pb.h"

namespace muster::detail {

std::string ModelSpec::to_text() const {
  proto::ModelSpec message;
  for (const auto& variable : variables) {
    auto* added = message.add_variables();
    added->set_name(variable.name);
    for (const int64_t size : variable.shape) added->add_shape(size);
    added->set_dtype(name_of(variable.dtype));
    added->set_lr_factor(variable.group.lr_factor);
    if (variable.group.weight_decay) added->set_weight_decay(*variable.group.weight_decay);
  }
  message.set_placement(muster::detail::to_string(placement));
  message.set_servers(servers);
  message.set_rule(rule);
  message.set_outer_momentum(outer_momentum);
  message.set_clip_norm(clip_norm);
  message.set_stop_at_nan(stop_at_nan);
  message.set_wire_dtype(name_of(wire_dtype));
  message.set_workers(policy.workers);
  for (const auto& phase : policy.phases) {
    auto* added = message.add_phases();
    added->set_from(phase.from);
    added->set_mode(muster::detail::to_string(phase.mode));
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

ModelSpec ModelSpec::parse(const std::string& text) {
  proto::ModelSpec message;
  if (!google::protobuf::TextFormat::ParseFromString(text, &message))
    raise<InvalidArgument>(
        "the model spec of the parameter servers can't be read: do all tasks run the same build?");
  ModelSpec spec;
  for (const auto& variable : message.variables()) {
    GroupRates group = {.lr_factor = variable.lr_factor()};
    if (variable.has_weight_decay()) group.weight_decay = variable.weight_decay();
    spec.variables.push_back({.name = variable.name(),
                              .shape = {variable.shape().begin(), variable.shape().end()},
                              .dtype = parse_dtype(variable.dtype()),
                              .group = group});
  }
  spec.placement = parse_placement(message.placement());
  spec.servers = message.servers();
  spec.rule = message.rule();
  spec.outer_momentum = message.outer_momentum();
  spec.clip_norm = message.clip_norm();
  spec.stop_at_nan = message.stop_at_nan();
  spec.wire_dtype = parse_dtype(message.wire_dtype());
  spec.policy.workers = message.workers();
  spec.policy.phases.clear();
  for (const auto& phase : message.phases())
    spec.policy.phases.push_back({phase.from(), parse_mode(phase.mode())});
  spec.policy.max_steps = message.max_steps();
  spec.policy.aggregate = message.aggregate();
  spec.policy.init_tokens = message.init_tokens();
  spec.policy.max_staleness = message.max_staleness();
  spec.policy.staleness_damping = message.staleness_damping();
  spec.policy.staleness = message.staleness();
  return spec;
}

uint64_t ModelSpec::fingerprint() const {
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : to_text()) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

}  // namespace muster::detail
