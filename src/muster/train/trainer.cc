#include "muster/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/train/flat_model.h"
#include "muster/train/precision.h"
#include "muster/train/slowness.h"
#include "muster/train/tensor_memory.h"
#include "muster/train/worker_group.h"

namespace muster {
namespace {

using Clock = Deadline::Clock;

constexpr int64_t kStepsBeforeScaleGrows = 2000;

/// The chief's buffers instead of this worker's own, which come back. Autograd is not told: an open graph
/// finds them as they were.
class BorrowedBuffers {
 public:
  BorrowedBuffers(WorkerGroup& group, const std::vector<torch::Tensor>& buffers) {
    for (const auto& buffer : buffers) {
      buffers_.push_back(buffer.variable_data());
      own_.push_back(buffer.detach().clone());
    }
    group.share_buffers_for_evaluation(buffers_);
  }
  ~BorrowedBuffers() {
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(own_[i]);
  }
  BorrowedBuffers(const BorrowedBuffers&) = delete;
  BorrowedBuffers& operator=(const BorrowedBuffers&) = delete;

 private:
  std::vector<torch::Tensor> buffers_;
  std::vector<torch::Tensor> own_;
};

}  // namespace

class Trainer::Impl {
 public:
  Impl(Job& job, torch::nn::Module& module, UpdateRulePtr rule, TrainerOptions options)
      : job_(job),
        module_(module),
        rule_(std::move(rule)),
        options_(std::move(options)),
        group_(make_worker_group(job)),
        precision_(job.config().precision, /*warn=*/job.is_chief()),
        slowness_(slowness_of(job.config().slow, job.task())),
        memory_([this](size_t bytes) { return group_->allocate(bytes); }) {
    if (!rule_)
      raise<InvalidArgument>("the Trainer needs an update rule, such as muster::sgd({{.lr = 0.1}})");
    if (options_.accumulate < 1)
      raise<InvalidArgument>("TrainerOptions::accumulate is {}; it must be at least 1", options_.accumulate);
    if (options_.clip_norm < 0)
      raise<InvalidArgument>("TrainerOptions::clip_norm is {}; it must not be negative", options_.clip_norm);
    if (options_.max_steps < 0)
      raise<InvalidArgument>("TrainerOptions::max_steps is {}; it must not be negative", options_.max_steps);
    if (options_.loss_scale < 0)
      raise<InvalidArgument>("TrainerOptions::loss_scale is {}; it must not be negative",
                             options_.loss_scale);
    loss_scale_ = options_.loss_scale > 0 ? options_.loss_scale : precision_.loss_scale();
    take_model();
  }

  ~Impl() {
    if (!strategy_) return;
    std::erase(job_.strategies(), strategy_.get());
    model_->move_back();
  }

  bool step(const Loss& loss, int64_t samples) {
    if (done()) return false;
    const auto start = Clock::now();
    check_usable();
    broken_ = true;  // until the step has ended well
    exchanged_ = {};
    const TensorMemory::Scope scope(memory_);
    if (batches_ == 0) {
      call(before_);
      begin_step();
    } else {
      model_->put_gradients_back();
    }
    ++batches_;
    samples_ += samples;
    const bool last = batches_ == options_.accumulate;
    if (last && strategy_) begin_round();
    last_loss_ += compute(loss);
    slow_down(start);
    if (last) {
      end_step();
    } else {
      model_->set_gradients_aside();
    }
    broken_ = false;
    metrics_.compute += Clock::now() - start - exchanged_;
    return true;
  }

  // While this waits for the other workers, they must not wait for this one's steps of other models.
  void join() {
    check_usable();
    broken_ = true;
    std::vector<Strategy*> others;
    if (!done()) others = job_.strategies();
    std::erase(others, strategy_.get());
    for (Strategy* other : others) other->begin_rest();
    const TensorMemory::Scope scope(memory_);
    if (batches_ > 0 && !done()) {
      model_->put_gradients_back();
      if (strategy_) begin_round();
      end_step();
    }
    while (!done()) {
      begin_step();
      if (!strategy_ && !make_strategy()) break;
      begin_round();
      if (finish_round(0)) break;
    }
    for (Strategy* other : others) other->end_rest();
    broken_ = false;
  }

  bool done() const {
    return (strategy_ && strategy_->done()) || (options_.max_steps > 0 && steps_ >= options_.max_steps);
  }
  int64_t steps() const { return steps_; }
  double learning_rate() const { return rule_->lr() * (options_.schedule ? options_.schedule(steps_) : 1.0); }
  void before_step(std::function<void()> hook) { before_.push_back(std::move(hook)); }
  void after_step(std::function<void()> hook) { after_.push_back(std::move(hook)); }

  Sums evaluate(const std::function<void(Sums&)>& body) {
    check_usable();
    if (strategy_) strategy_->refresh();
    Sums sums;
    {
      const torch::NoGradGuard no_grad;
      const BorrowedBuffers borrowed(
          *group_, options_.broadcast_buffers ? model_->buffers() : std::vector<torch::Tensor>{});
      const TensorMemory::Scope scope(memory_);
      const Precision::Scope precision(precision_);
      const bool training = module_.is_training();
      const auto parts = module_.modules(/*include_self=*/false);
      std::vector<bool> modes;
      for (const auto& part : parts) modes.push_back(part->is_training());
      module_.eval();
      body(sums);
      module_.train(training);
      for (size_t i = 0; i < parts.size(); ++i) parts[i]->train(modes[i]);  // a module stands before its own
    }
    return group_->add_up(sums);
  }

  void change_parameters(const std::function<void()>& body) {
    check_usable();
    if (group_->starts_with_strategy())
      throw InvalidArgument("change_parameters() can't reach what parameter servers hold");
    const torch::NoGradGuard no_grad;
    group_->barrier();
    if (!strategy_ || strategy_->initialises()) body();
    if (strategy_) strategy_->adopt_parameters();
  }

  Metrics metrics() const {
    Metrics metrics = metrics_;
    metrics.learning_rate = learning_rate();
    if (metrics.steps > 0) metrics.staleness = staleness_ / static_cast<double>(metrics.steps);
    metrics.total = metrics.compute + metrics.wait + metrics.update;
    if (metrics.total.count() > 0)
      metrics.samples_per_second = static_cast<double>(metrics.samples) / metrics.total.count();
    return metrics;
  }

  void reset_metrics() {
    metrics_ = {};
    staleness_ = 0;
  }

  std::string explain() const {
    return strategy_ ? strategy_->explain() : "the strategy is made in the first step";
  }

 private:
  void check_usable() const {
    if (broken_) throw Aborted("an earlier step of this Trainer failed: it can't go on");
  }

  // Hooks may use the Trainer.
  void call(const std::vector<std::function<void()>>& hooks) {
    broken_ = false;
    try {
      for (const auto& hook : hooks) hook();
    } catch (...) {
      broken_ = true;
      throw;
    }
    broken_ = true;
  }

  // The same model everywhere, with the chief's values.
  void take_model() {
    model_.emplace(module_);
    model_->watch([this](size_t parameter) { on_gradient(parameter); });
    group_->take_model(*model_, describe_options() + model_->signature());
    if (group_->starts_with_strategy()) make_strategy();
  }

  std::string describe_options() const {
    return fmt::format("options {} max_steps {} accumulate {} clip_norm {} loss_scale {} precision {}\n",
                       rule_->name(), options_.max_steps, options_.accumulate, options_.clip_norm,
                       loss_scale_, job_.config().precision);
  }

  // After a step, when all workers are here, and no graph of this model should be open: autograd would refuse
  // to go back through one whose buffers have changed.
  void share_buffers() {
    if (options_.broadcast_buffers) group_->share_buffers(model_->buffers());
  }

  // As if this worker's machine were slower, for those who want to see what happens then.
  void slow_down(Clock::time_point start) const {
    if (slowness_ > 1) std::this_thread::sleep_for((Clock::now() - start) * (slowness_ - 1));
  }

  // Gradients that are there are of other models' backward passes.
  void begin_step() {
    if (model_->has_changed()) change_model();
    model_->clear_gradients();
    model_->forget_order();
    model_->note_references_before();
    last_loss_ = 0;
  }

  // A worker that brings nothing begins its rounds here too, with nothing.
  void begin_round() {
    round_begun_ = true;
    delivered_.assign(model_->size(), false);
    StepStart start = {.lr = learning_rate(), .gradient_scale = loss_scale_ > 0 ? 1 / loss_scale_ : 1};
    if (batches_ > 0) {
      start.weight = unit_ > 0 && samples_ > 0
                         ? static_cast<double>(samples_) / batches_ / static_cast<double>(unit_)
                         : 1;
      start.total = start.weight * batches_;
    }
    strategy_->begin(start);
  }

  double compute(const Loss& function) {
    torch::Tensor loss;
    {
      const Precision::Scope precision(precision_);
      loss = function();
    }
    if (!loss.defined() || loss.numel() != 1)
      raise<InvalidArgument>(
          "the function given to Trainer::step must return the loss, one number; it returned {}",
          loss.defined() ? fmt::format("{} of them", loss.numel()) : "no tensor");
    delivering_ = round_begun_;  // nothing goes out of the passes that the function ran itself
    if (loss_scale_ > 0) {
      (loss * loss_scale_).backward();
    } else {
      loss.backward();
    }
    delivering_ = false;
    return loss.item<double>();
  }

  void on_gradient(size_t parameter) {
    if (!delivering_) return;
    if (delivered_[parameter])
      raise<InvalidArgument>(
          "the parameter {} got a gradient twice in one backward pass, as when a part of it runs a backward "
          "pass of its own: its first gradient is already on its way",
          model_->info(parameter).name);
    delivered_[parameter] = true;
    strategy_->deliver(parameter, model_->gradient(parameter), model_->held(parameter));
  }

  void end_step() {
    if (!strategy_) {
      make_strategy();
      begin_round();
    }
    deliver_all();
    finish_round(last_loss_ / batches_);
  }

  // What backward did not touch may still have a gradient of an earlier batch.
  void deliver_all() {
    for (size_t i = 0; i < model_->size(); ++i) {
      if (delivered_[i]) continue;
      delivered_[i] = true;
      strategy_->deliver(i, model_->gradient(i), /*held=*/false);
    }
  }

  // True when all workers have run out of data.
  bool finish_round(double loss) {
    const StepResult result = strategy_->finish(loss);
    round_begun_ = false;
    model_->note_update();
    model_->clear_gradients();
    model_->note_references_after();
    share_buffers();
    batches_ = 0;
    samples_ = 0;
    const int64_t before = std::exchange(steps_, strategy_->global_step().value_or(steps_ + 1));
    if (result.finished) {
      if (!strategy_->global_step()) steps_ = before;
      return true;
    }
    ++metrics_.steps;
    metrics_.dropped += result.dropped;
    staleness_ += static_cast<double>(result.staleness);
    metrics_.samples += std::llround(result.total * static_cast<double>(unit_ * (steps_ - before)));
    metrics_.loss = result.loss;
    metrics_.gradient_norm = result.gradient_norm;
    metrics_.wait += result.wait;
    metrics_.update += result.update;
    exchanged_ = result.wait + result.update;
    if (result.dropped == 0) adjust_loss_scale(result.applied);
    call(after_);
    return false;
  }

  void adjust_loss_scale(bool applied) {
    if (!applied) ++metrics_.skipped;
    if (loss_scale_ == 0) return;
    if (!applied) {
      loss_scale_ = std::max(loss_scale_ / 2, 1.0);
      steps_with_scale_ = 0;
    } else if (++steps_with_scale_ == kStepsBeforeScaleGrows) {
      loss_scale_ *= 2;
      steps_with_scale_ = 0;
    }
  }

  // False when nobody has had a batch.
  bool make_strategy() {
    unit_ = group_->agree_on_unit(batches_, samples_);
    auto made = group_->make_strategy(*model_, {.rule = rule_,
                                                .check_finite = loss_scale_ > 0,
                                                .clip_norm = options_.clip_norm,
                                                .max_steps = options_.max_steps});
    if (!made) return false;
    model_->move_to(made->layout(), made->parameters(), made->initialises());
    give_state(*made);
    made->adopt_parameters();
    strategy_ = std::move(made);
    job_.strategies().push_back(strategy_.get());
    steps_ = strategy_->global_step().value_or(steps_);
    if (job_.is_chief()) log_info("{}", strategy_->explain());
    return true;
  }

  // The model has other parameters than before: the strategy is made anew, with what is known of those that
  // stay.
  void change_model() {
    std::unique_ptr<Strategy> before;  // until all have left it
    if (strategy_) {
      strategy_->begin({.changed = true});
      strategy_->finish(0);
      take_state(*strategy_);
      model_->move_back();
      std::erase(job_.strategies(), strategy_.get());
      before = std::move(strategy_);
    }
    take_model();
  }

  // What the update rule knows of a parameter; the slots where this worker fills them.
  struct State {
    int64_t updates = 0;
    std::vector<std::vector<std::byte>> slots;
  };

  void take_state(Strategy& from) {
    const ParameterLayout& layout = from.layout();
    for (size_t i = 0; i < layout.size(); ++i) {
      State state = {.updates = from.updates(i)};
      for (size_t slot = 0; slot < rule_->slots() && from.initialises(); ++slot) {
        const std::byte* begin = from.slot(slot) + layout.state_offset(i);
        state.slots.emplace_back(begin, begin + layout[i].count() * size_of(layout[i].state_dtype()));
      }
      states_[layout[i].to_string()] = std::move(state);
    }
  }

  // What is left is of parameters that are frozen now.
  void give_state(Strategy& to) {
    const ParameterLayout& layout = to.layout();
    for (size_t i = 0; i < layout.size(); ++i) {
      const auto found = states_.extract(layout[i].to_string());
      if (found.empty()) continue;
      to.set_updates(i, found.mapped().updates);
      const auto& slots = found.mapped().slots;
      for (size_t slot = 0; slot < slots.size(); ++slot)
        std::copy(slots[slot].begin(), slots[slot].end(), to.slot(slot) + layout.state_offset(i));
    }
  }

  Job& job_;
  torch::nn::Module& module_;
  const UpdateRulePtr rule_;
  const TrainerOptions options_;
  const std::unique_ptr<WorkerGroup> group_;
  const Precision precision_;
  const double slowness_;
  TensorMemory memory_;
  std::optional<FlatModel> model_;
  std::unique_ptr<Strategy> strategy_;   // from the first step on
  std::map<std::string, State> states_;  // of parameters that were trained before the model changed
  std::vector<std::function<void()>> before_;
  std::vector<std::function<void()>> after_;

  int64_t steps_ = 0;
  double staleness_ = 0;  // summed up
  int64_t unit_ = 0;      // samples of the largest first batch: what weights are relative to
  double loss_scale_ = 0;
  int64_t steps_with_scale_ = 0;
  Metrics metrics_;
  bool broken_ = false;

  // Of the current step.
  int batches_ = 0;
  int64_t samples_ = 0;
  double last_loss_ = 0;
  std::chrono::duration<double> exchanged_{0};  // waiting and updating, not computing
  bool round_begun_ = false;
  bool delivering_ = false;  // this step's backward pass runs, and the round has begun
  std::vector<bool> delivered_;
};

Trainer::Trainer(Job& job, torch::nn::Module& module, UpdateRulePtr rule, TrainerOptions options)
    : impl_(std::make_unique<Impl>(job, module, std::move(rule), std::move(options))) {}
Trainer::~Trainer() = default;

bool Trainer::step(const Loss& loss, int64_t samples) {
  return impl_->step(loss, samples);
}
void Trainer::join() {
  impl_->join();
}
bool Trainer::done() const {
  return impl_->done();
}
int64_t Trainer::steps() const {
  return impl_->steps();
}
double Trainer::learning_rate() const {
  return impl_->learning_rate();
}
void Trainer::before_step(std::function<void()> hook) {
  impl_->before_step(std::move(hook));
}
void Trainer::after_step(std::function<void()> hook) {
  impl_->after_step(std::move(hook));
}
Sums Trainer::evaluate(const std::function<void(Sums&)>& body) {
  return impl_->evaluate(body);
}
void Trainer::change_parameters(const std::function<void()>& body) {
  impl_->change_parameters(body);
}
Metrics Trainer::metrics() const {
  return impl_->metrics();
}
void Trainer::reset_metrics() {
  impl_->reset_metrics();
}
std::string Trainer::explain() const {
  return impl_->explain();
}

}  // namespace muster
