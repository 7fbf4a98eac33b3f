#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/collective/named_sums.h"
#include "muster/job/serve.h"
#include "muster/optim/rules.h"
#include "muster/train/replication.h"
#include "muster/train/server_strategy.h"
#include "muster/train/untrained_tensors.h"
#include "muster/train/worker_group.h"

namespace muster::detail {
namespace {

using torch::Tensor;

class ServerGroup : public WorkerGroup {
 public:
  explicit ServerGroup(JobContext& job)
      : job_(job), number_(job.next_model()), untrained_(job.tables(), number_) {}

  std::shared_ptr<void> allocate(size_t bytes) override { return client_->allocate(bytes); }

  // The description goes through the coordinator, where a worker that comes later finds it; the tensors are
  // on the servers.
  void take_model(FlatModel& model, const std::string& description) override {
    std::vector<size_t> order(model.size());  // about as backward finishes them
    std::iota(order.rbegin(), order.rend(), size_t{0});
    model.reorder(order);
    const std::string settings = fmt::format("{}{}", describe(job_.config()), description);
    const std::string chiefs = from_chief(fmt::format("muster/model/{}", number_), [&] { return settings; });
    if (const auto difference = first_difference(chiefs, settings); !difference.empty())
      raise<InvalidArgument>("the workers do not train the same: {}: {}", job_.task().short_name(),
                             difference);
    const auto untrained = untrained_of(model);
    const std::string key = fmt::format("muster/untrained/{}", number_);
    if (job_.is_chief()) {
      untrained_.store(kFirst, untrained);
      job_.put(key, "stored");
    } else {
      job_.get(key, {}, chief());
      untrained_.load(kFirst, untrained);
    }
  }

  bool starts_with_strategy() const override { return true; }
  bool any(bool mine) override { return mine; }
  std::optional<size_t> differs(const std::vector<Tensor>& copies) override {
    const auto mine = sums_of_values(copies);
    const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
    std::vector<double> most(mine);
    for (const auto& brought : job_.gather(fmt::format("muster/copies/{}", number_), bytes)) {
      if (brought.size() != bytes.size())
        throw DataLoss("a worker brought sums of other parameters than those of this one to evaluate()");
      for (size_t i = 0; i < most.size(); ++i) {
        double theirs = 0;
        std::memcpy(&theirs, brought.data() + i * sizeof(theirs), sizeof(theirs));
        most[i] = std::max(most[i], theirs);
      }
    }
    return first_that_differs(most);
  }

  int64_t agree_on_unit(int64_t, int64_t) override { return 1; }  // servers compare the batches of a step

  std::unique_ptr<Strategy> make_strategy(FlatModel& model, const StrategyOptions& options) override {
    const Config& config = job_.config();
    const ModelSpec spec = spec_of(model, options);
    const int published = job_.next_model_spec();
    from_chief(model_spec_key(published), [&] { return spec.to_text(); });
    client_ = std::make_unique<ParameterClient>(ParameterClient::Options{
        .endpoint = job_.endpoint(),
        .job_id = job_.id(),
        .model_id = std::to_string(published),
        .spec = spec,
        .worker = job_.rank(),
        .incarnation = config.restart_count,
        .sockets = config.sockets,
        .encrypted = job_.encrypted(),
        .join_timeout = config.join_timeout,
        .server_wait = config.server_wait,
        .find_server = [this](int server, Deadline deadline) { return job_.find_server(server, deadline); },
        .has_failed = [this](int server) { return job_.server_has_failed(server); },
        .waits = &job_.waits(),
        .check = [this] { job_.check(); }});
    if (job_.is_chief()) initialise(model);
    if (const auto flags = config.given_for_collectives(); job_.is_chief() && number_ == 1 && !flags.empty())
      log_warning(
          "{}: training with parameter servers uses no collectives, only what the program itself calls does",
          fmt::join(flags, ", "));
    if (job_.is_chief()) say_what_is_damped(spec.policy, *options.rule);
    return std::make_unique<ServerStrategy>(ServerStrategy::Options{.client = *client_,
                                                                    .parameters = model.infos(),
                                                                    .spec = spec,
                                                                    .worker = job_.rank(),
                                                                    .hogwild = config.hogwild,
                                                                    .rule = options.rule,
                                                                    .clip_norm = options.clip_norm,
                                                                    .sync_every = config.sync_every});
  }

  // Each worker has its own statistics while it trains; evaluations use the chief's.
  void share_buffers(const std::vector<Tensor>& /*buffers*/) override {}
  void share_buffers_for_evaluation(const std::vector<Tensor>& buffers) override {
    std::string set;
    if (job_.is_chief()) {
      // Somebody may still be loading those of the last evaluation, also of one before this chief was started
      // again.
      const int chosen = kFirst + 1 + evaluations_++ % 2 + job_.config().restart_count % 2 * 2;
      untrained_.store(chosen, buffers);
      set = std::to_string(chosen);
    }
    for (const auto& stored : job_.gather(fmt::format("muster/buffers/{}", number_), set)) {
      if (!stored.empty() && !job_.is_chief()) untrained_.load(std::stoi(stored), buffers);
    }
  }

  std::map<std::string, double> add_up(const std::map<std::string, double>& mine) override {
    const std::string name = job_.task().short_name();
    std::vector<std::string> sums;
    std::vector<std::string> here;
    for (const auto& brought :
         job_.gather(fmt::format("muster/sums/{}", number_), name + '\n' + pack_sums(mine))) {
      const size_t end = brought.find('\n');
      MUSTER_CHECK(end != std::string::npos);
      here.push_back(brought.substr(0, end));
      sums.push_back(brought.substr(end + 1));
    }
    if (name == here.front()) say_who_is_missing(here);
    return add_packed(sums);
  }

  void barrier() override { job_.barrier(fmt::format("muster/trainer/{}", number_), "worker"); }

 private:
  std::string chief() const { return job_.worker_names().front(); }

  // A job that goes on without workers evaluates without them: whoever reads the result must know. Once for
  // each worker.
  void say_who_is_missing(const std::vector<std::string>& here) {
    std::vector<std::string> missing;
    for (const auto& worker : job_.worker_names()) {
      if (std::ranges::find(here, worker) == here.end()) missing.push_back(worker);
    }
    if (missing.size() <= missed_) return;
    missed_ = missing.size();
    log_warning(
        "evaluate() adds up what {} of {} workers bring: {} failed, or ended without this evaluation, and "
        "is not in the sums",
        here.size(), job_.workers(), fmt::join(missing, ", "));
  }

  static std::string describe(const Config& config) {
    return fmt::format(
        "flags strategy={} switch={} placement={} replicas_to_aggregate={} init_tokens={} max_staleness={} "
        "staleness_damping={} staleness={} sync_every={} outer_momentum={} wire={} on_nan={}\n",
        config.strategy, config.switches, config.placement, config.replicas_to_aggregate, config.init_tokens,
        config.max_staleness, config.staleness_damping, config.staleness, config.sync_every,
        config.outer_momentum, config.wire, config.on_nan);
  }

  static std::vector<Tensor> untrained_of(const FlatModel& model) {
    std::vector<Tensor> untrained;
    for (const auto& tensor : model.tensors()) {
      bool trained = false;
      for (size_t i = 0; i < model.size(); ++i) trained = trained || model.tensor(i).is_same(tensor);
      if (!trained) untrained.push_back(tensor);
    }
    return untrained;
  }

  template <typename Make>
  std::string from_chief(const std::string& key, const Make& make) {
    if (!job_.is_chief()) return job_.get_long(key, {}, chief());
    std::string value = make();
    job_.put_long(key, value);
    return value;
  }

  ModelSpec spec_of(const FlatModel& model, const StrategyOptions& options) const {
    const Config& config = job_.config();
    ModelSpec spec = {.servers = job_.servers(), .clip_norm = options.clip_norm};
    spec.variables = model.infos();
    spec.placement = parse_placement(config.placement);
    spec.stop_at_nan = config.on_nan == "stop" && !options.check_finite;
    if (config.wire != "same") spec.wire_dtype = parse_dtype(config.wire);
    spec.policy = {.workers = job_.workers(),
                   .phases = config.switches.empty() ? std::vector<Phase>{{0, parse_mode(config.strategy)}}
                                                     : parse_phases(config.switches),
                   .max_steps = options.max_steps,
                   .aggregate = config.replicas_to_aggregate,
                   .init_tokens = config.init_tokens,
                   .max_staleness = config.max_staleness,
                   .staleness_damping = config.staleness_damping,
                   .staleness = config.staleness};
    const UpdatePolicy checked(spec.policy);  // says what can't work, before any server has to
    const auto& phases = spec.policy.phases;
    if (phases.back().from >= options.max_steps && options.max_steps > 0 && phases.size() > 1 &&
        job_.is_chief())
      log_warning(
          "--switch: {} from step {} on has no effect, since training ends at step {} "
          "(TrainerOptions::max_steps)",
          to_string(phases.back().mode), phases.back().from, options.max_steps);
    spec.rule = options.rule->to_string();
    spec.outer_momentum = config.outer_momentum;
    return spec;
  }

  static void say_what_is_damped(const PolicyOptions& policy, const UpdateRule& rule) {
    const auto is_asynchronous = [&](const Phase& phase) {
      return phase.mode == Mode::kAsync || (phase.mode == Mode::kSsp && policy.staleness > 0);
    };
    if (policy.workers == 1 || rule.momentum() == 0 || std::ranges::none_of(policy.phases, is_asynchronous))
      return;
    log_info(
        "{} workers whose gradients are used one by one act like momentum: that of {} is damped to {:.3g}",
        policy.workers, rule.momentum(), damped_momentum(rule.momentum(), policy.workers));
  }

  void initialise(const FlatModel& model) {
    std::vector<Tensor> dense;
    std::vector<const void*> values;
    for (size_t i = 0; i < model.size(); ++i) {
      dense.push_back(model.laid_out(i));
      values.push_back(dense.back().data_ptr());
    }
    client_->initialise(values);
  }

  static constexpr int kFirst = 0;  // the set of untrained tensors with which training begins

  JobContext& job_;
  const int number_;  // of the model
  UntrainedTensors untrained_;
  int evaluations_ = 0;
  size_t missed_ = 0;  // workers, in the last evaluation that was worth a warning
  std::unique_ptr<ParameterClient> client_;
};

}  // namespace

std::unique_ptr<WorkerGroup> make_server_group(JobContext& job) {
  return std::make_unique<ServerGroup>(job);
}

}  // namespace muster::detail
