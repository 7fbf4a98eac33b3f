#include "muster/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/embedding.h"
#include "muster/job/job_context.h"
#include "muster/optim/rules.h"
#include "muster/tensor/tensor_memory.h"
#include "muster/train/evaluation.h"
#include "muster/train/flat_model.h"
#include "muster/train/kept_states.h"
#include "muster/train/loss_scale.h"
#include "muster/train/parameter_groups.h"
#include "muster/train/precision.h"
#include "muster/train/recorded_nodes.h"
#include "muster/train/straggler.h"
#include "muster/train/torch_optimizer.h"
#include "muster/train/unregistered_tensors.h"
#include "muster/train/worker_group.h"

namespace muster {

using namespace detail;

namespace {

using Clock = Deadline::Clock;

/// Whether it trains rows of tables on the servers, which are no parameters.
bool has_embedding(torch::nn::Module& module) {
  const auto is_one = [](torch::nn::Module& part) { return part.as<ShardedEmbeddingImpl>() != nullptr; };
  const auto parts = module.modules(/*include_self=*/false);
  return is_one(module) || std::ranges::any_of(parts, [&](const auto& part) { return is_one(*part); });
}

/// Whether a part of it was computed before autograd had counted so far on this thread.
bool was_begun_before(const torch::Tensor& loss, uint64_t count) {
  return std::ranges::any_of(recorded_nodes(loss),
                             [&](const auto* node) { return node->sequence_nr() < count; });
}

/// A variable has another value as long as this lives.
template <typename Value>
class Temporarily {
 public:
  Temporarily(Value& variable, Value value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Temporarily() { variable_ = before_; }
  Temporarily(const Temporarily&) = delete;
  Temporarily& operator=(const Temporarily&) = delete;

 private:
  Value& variable_;
  const Value before_;
};

}  // namespace

namespace {

// A loop may take some batches more after the last step; one that takes so many does not look.
constexpr int64_t kCallsWhenDone = 1000;
constexpr const char* kConstructor = "the Trainer's constructor";  // as messages name it

std::unique_ptr<WorkerGroup> enter_group(JobContext& job) {
  const ScopedCall inside(&job.waits(), kConstructor);
  return make_worker_group(job);
}

}  // namespace

class Trainer::Impl {
 public:
  // Either `rule`, or an optimizer of torch's.
  Impl(Job& job, torch::nn::Module& module, UpdateRulePtr rule, torch::optim::Optimizer* optimizer,
       TrainerOptions options)
      : job_(job.context()),
        progress_style_(job.progress_style()),
        module_(module),
        watched_(module.weak_from_this()),
        rule_(std::move(rule)),
        options_(std::move(options)),
        group_(enter_group(job_)),
        precision_(job_.config().precision, /*warn=*/job_.is_chief()),
        straggler_factor_(straggler_factor(job_.config().slow, job_.task())),
        memory_([this](size_t bytes) { return group_->allocate(bytes); }) {
    const ScopedCall inside(&job_.waits(), kConstructor);
    check_options();
    if (optimizer != nullptr) take_optimizer(*optimizer);
    groups_.emplace(module_, options_.groups, rule_->lr());
    groups_->freeze();
    (void)learning_rate();  // a schedule says here what it misses
    loss_scale_ = LossScale(options_.loss_scale > 0 ? options_.loss_scale : precision_.loss_scale());
    take_model();
  }

  ~Impl() {
    if (!error_ && std::uncaught_exceptions() == 0) say_what_was_left_out();
    if (!strategy_) return;
    const bool is_unwinding = std::uncaught_exceptions() > 0;  // others may have come half-way
    if (const auto* parameter = written(); parameter != nullptr && !keeps_changes() && !is_unwinding)
      log_warning("{}", changed_in_place(*parameter));
    std::erase(job_.models(), strategy_.get());
    if (!optimizer_) model_->move_back();
  }

  /// Whether what it trains with is gone: the job has ended, or this process is a fork of the task's.
  bool is_stranded() const { return job_lives_.expired() || job_.is_of_a_fork(); }

  Step step(const Loss& loss, std::optional<int64_t> samples) {
    is_used_ = true;
    if (!is_stranded() && done()) {
      if (++calls_when_done_ == kCallsWhenDone)
        log_warning(
            "Trainer::step() was called {} times after the last of {} steps (TrainerOptions::max_steps), and "
            "takes no more: end the loop when goes_on of its result is false, or done() is true",
            calls_when_done_, options_.max_steps);
      return {.goes_on = false};
    }
    check_usable();
    check_samples(samples);
    if (samples == 0) {
      if (!std::exchange(warned_of_empty_, true))
        log_warning("a batch of 0 samples: it is left out, as all others like it");
      return {};
    }
    return final_if_it_fails([&] { return take_step(loss, samples.value_or(0)); });
  }

  Step take_step(const Loss& loss, int64_t samples) {
    const ScopedCall inside(&job_.waits(), "step", steps_ + 1);
    has_finished_ = false;
    has_stepped_ = true;
    const auto start = Clock::now();
    exchanged_ = {};
    const TensorMemory::Scope scope(memory_);
    if (batches_ == 0) {
      call(before_);
      begin_step();
    } else {
      warn_of_change_within_step();
      model_->drop_gradients();
    }
    if (batches_ == 0) first_samples_ = samples;
    ++batches_;
    samples_ += samples;
    // Of the step's first, as gradients are added up: 1, which changes no bit, where all are the same.
    const double size =
        first_samples_ > 0 ? static_cast<double>(samples) / static_cast<double>(first_samples_) : 1;
    const bool last = batches_ == options_.accumulate;
    if (last && strategy_) begin_round();
    const double batch_loss = compute(loss, size);
    if (!std::isfinite(batch_loss) && !std::exchange(warned_of_loss_, true))
      log_warning("the loss of step {} is {} on {}", steps_ + 1, batch_loss, job_.task().short_name());
    last_loss_ += batch_loss * size;
    sizes_ += size;
    slow_down(start);
    if (last) {
      end_step();
    } else {
      model_->set_gradients_aside();
    }
    metrics_.compute += Clock::now() - start - exchanged_;
    if (last) report_progress();
    return {.loss = batch_loss};
  }

  // While this waits for the other workers, they must not wait for this one's steps of other models.
  void finish_epoch() {
    is_used_ = true;
    check_usable();
    final_if_it_fails([this] { take_part_in_epoch(); });
  }

  void take_part_in_epoch() {
    const ScopedCall inside(&job_.waits(), "finish_epoch()");
    std::vector<CountedOn*> others;
    if (!done()) others = job_.models();
    std::erase(others, strategy_.get());
    for (CountedOn* other : others) other->pause();
    const TensorMemory::Scope scope(memory_);
    if (batches_ > 0 && !done()) {
      model_->drop_gradients();
      model_->put_gradients_back();
      if (strategy_) begin_round();
      end_step();
    }
    while (!done()) {
      begin_step();
      if (!strategy_ && !make_strategy()) break;
      begin_round();
      if (finish_round(0)) break;
      report_progress();
    }
    for (CountedOn* other : others) other->resume();
    has_finished_ = true;
    if (steps_ == 0 && !has_stepped_ && job_.is_chief() && !std::exchange(warned_of_no_steps_, true))
      log_warning(
          "finish_epoch(): no worker has called Trainer::step() so far, so nothing was trained; a loop with "
          "an "
          "optimizer's own step() trains another model on each worker");
    if (!group_->starts_with_strategy()) check_copies();  // with servers a worker may have ended
    if (progress_) progress_->finish();
  }

  bool done() const {
    return (strategy_ && strategy_->done()) || (options_.max_steps > 0 && steps_ >= options_.max_steps);
  }
  int64_t steps() const { return steps_; }
  Position position() const {
    return {.samples = samples_used_, .samples_per_epoch = options_.samples_per_epoch, .step = steps_};
  }
  double learning_rate() const { return (optimizer_ ? optimizer_->lr() : rule_->lr()) * schedule_factor(); }
  void before_step(std::function<void()> hook) { before_.push_back(std::move(hook)); }
  void after_step(std::function<void()> hook) { after_.push_back(std::move(hook)); }

  Sums evaluate(const std::function<void(Sums&)>& body) {
    constexpr const char* kCall = "evaluate()";
    const ScopedCall inside(&job_.waits(), kCall);
    is_used_ = true;
    check_usable();
    check_module();
    if (batches_ == 0) with_all_workers(kCall, [this] { take_parameters_for_evaluation(); });
    take_changes(/*at_rest=*/true);
    if (progress_) progress_->finish();
    if (strategy_) strategy_->refresh();
    Sums sums;
    {
      const torch::NoGradGuard no_grad;
      // Also without buffers: with servers, nobody evaluates before all have pushed what they had.
      std::optional<BorrowedBuffers> borrowed;
      const auto buffers = options_.broadcast_buffers ? model_->buffers() : std::vector<torch::Tensor>{};
      with_buffers([&] { borrowed.emplace(*group_, buffers); });
      const TensorMemory::Scope scope(memory_);
      const Precision::Scope precision(precision_);
      const EvaluationMode mode(module_);
      run_together([&] { body(sums); });
    }
    with_all_workers(kCall, [&] {
      sums = group_->add_up(sums);
      check_copies();
    });
    return sums;
  }

  void change_parameters(const std::function<void()>& body) {
    constexpr const char* kCall = "change_parameters()";
    const ScopedCall inside(&job_.waits(), kCall);
    check_usable();
    if (group_->starts_with_strategy())
      throw InvalidArgument("change_parameters() can't reach what parameter servers hold");
    take_changes(/*at_rest=*/true);
    const torch::NoGradGuard no_grad;
    with_all_workers(kCall, [this] { group_->barrier(); });
    // Others share what that one changes.
    if (optimizer_ || !strategy_ || strategy_->initialises()) run_together(body);
    if (!strategy_) return;  // the first step gives all workers the chief's
    if (!optimizer_) {
      const bool has_loaded = model_->moved() != nullptr;
      if (has_loaded) model_->move_to(strategy_->layout(), strategy_->parameters(), /*fill=*/true);
      if (has_loaded) model_->note_values_and_memory();
      with_all_workers(kCall, [this] { strategy_->adopt_parameters(); });
    }
    model_->note_values();
    has_changed_ = true;
  }

  void show_progress(std::function<std::string()> text) {
    progress_.emplace(progress_style_, options_.epochs * options_.samples_per_epoch);
    progress_text_ = std::move(text);
  }

  Metrics metrics() const {
    Metrics metrics = metrics_;
    metrics.learning_rate = used_rate_.value_or(learning_rate());
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
  void check_options() const {
    if (options_.accumulate < 1)
      raise<InvalidArgument>("TrainerOptions::accumulate is {}; it must be at least 1", options_.accumulate);
    const auto check = [](const char* name, auto value) {
      if (!(value >= 0) || !std::isfinite(static_cast<double>(value)))
        raise<InvalidArgument>("TrainerOptions::{} is {}; expected a number that is not negative", name,
                               value);
    };
    check("clip_norm", options_.clip_norm);
    check("epochs", options_.epochs);
    check("samples_per_epoch", options_.samples_per_epoch);
    check("max_steps", options_.max_steps);
    check("loss_scale", options_.loss_scale);
  }

  void check_samples(std::optional<int64_t> samples) {
    constexpr int64_t kMostSamples = int64_t{1} << 40;
    if (samples && (*samples < 0 || *samples > kMostSamples))
      raise<InvalidArgument>("Trainer::step() was given {} samples; expected the size of the batch",
                             *samples);
    if (options_.schedule && !samples)
      throw InvalidArgument(
          "a schedule counts samples: give Trainer::step() the size of the batch as its second argument");
    if (samples.has_value() != says_samples_.value_or(samples.has_value()))
      throw InvalidArgument(
          "Trainer::step() was given the size of the batch in some steps and not in others: batches count by "
          "it, so give it always, or never");
    says_samples_ = samples.has_value();
    if (!samples && progress_ && options_.samples_per_epoch > 0 && !std::exchange(warned_of_progress_, true))
      log_warning(
          "the progress line counts samples: give Trainer::step() the size of the batch as its second "
          "argument");
  }

  void take_optimizer(torch::optim::Optimizer& optimizer) {
    if (group_->starts_with_strategy())
      throw InvalidArgument(
          "an optimizer of torch's steps on the workers, which parameter servers do not let them: use one of "
          "muster::optim, or --strategy allreduce");
    if (!options_.groups.empty())
      throw InvalidArgument(
          "TrainerOptions::groups are for muster::optim: an optimizer of torch's has groups of its own");
    optimizer_.emplace(optimizer, module_, /*scheduled=*/options_.schedule != nullptr);
  }

  double schedule_factor() const {
    if (!options_.schedule) return 1.0;
    const double factor = options_.schedule(position());
    if (!(factor >= 0) || !std::isfinite(factor))
      raise<InvalidArgument>(
          "TrainerOptions::schedule gives {} after {} samples and {} steps: expected a number that is not "
          "negative",
          factor, samples_used_, steps_);
    return factor;
  }

  // The average of all workers is where the strategy would have had the parameters.
  void step_optimizer() {
    for (size_t i = 0; i < model_->size(); ++i) {
      if (strategy_->updates(i) != updates_before_[i])
        model_->set_gradient(i, strategy_->parameters().get() + strategy_->layout().offset(i));
    }
    const TensorMemory::Outside outside;  // what it keeps is its own
    optimizer_->step(schedule_factor());
  }

  void check_module() const {
    if (is_watched_ ? watched_.expired() : model_->is_abandoned())
      throw InvalidArgument(
          "the module that this Trainer trains has been destroyed: it must outlive the Trainer, which keeps "
          "what it is given as a module holder or a std::shared_ptr");
  }

  // What broke a step is thrown by all that come later: the others have heard of it, or will.
  void check_usable() const {
    if (job_lives_.expired())
      throw InvalidArgument(
          "the job that this Trainer trains in has ended: make the Trainer in the function that is given to "
          "muster::run, and use it there");
    job_.check_process();
    if (error_) std::rethrow_exception(error_);
    if (is_running_)
      throw InvalidArgument(
          "the Trainer was called while one of its steps or evaluations runs: from within the function that "
          "gives the loss or evaluates, or from another thread; one thread trains, one step after the other");
  }

  // A worker that has ended, or is elsewhere, can't take part in what all do.
  template <typename Body>
  static void with_all_workers(const char* call, const Body& body) {
    try {
      body();
    } catch (const PeerLost& error) {
      raise<PeerLost>("{} needs all workers: {}", call, error.what());
    }
  }

  template <typename Body>
  std::invoke_result_t<Body> final_if_it_fails(const Body& body) {
    const Temporarily running(is_running_, true);
    try {
      return body();
    } catch (const Aborted&) {
      error_ = std::current_exception();
      throw;
    } catch (const std::exception& error) {
      error_ = std::current_exception();
      job_.note_failed_training(text_without_stack(error));
      throw;
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  // What all workers do: where one fails the others wait for it, so it can't go on either.
  template <typename Body>
  void run_together(const Body& body) {
    if (job_.workers() > 1) {
      final_if_it_fails(body);
    } else {
      const Temporarily running(is_running_, true);
      body();
    }
  }

  void say_what_was_left_out() const {
    if (batches_ > 0) {
      log_warning(
          "{} of the {} batches that make a step (accumulate) were never applied: call finish_epoch() after "
          "the loop",
          batches_, options_.accumulate);
    } else if (!is_used_ && job_.is_chief()) {
      log_warning(
          "a Trainer of {} took no step: Trainer::step() computes the gradients, averages them over the "
          "workers and updates; nothing else does",
          module_.name());
    } else if (group_->starts_with_strategy() && job_.workers() > 1 && strategy_ && !is_stranded() &&
               !done() && steps_ > 0 && !has_finished_) {
      log_info(
          "{} ends training after step {} without finish_epoch(): with parameter servers the others go on "
          "without it",
          job_.task().short_name(), steps_);
    }
  }

  // Each worker has a copy of the parameters that are not trained, and with an optimizer of torch's of all:
  // they stay the same as long as all do the same with them.
  void check_copies() {
    if (job_.workers() == 1) return;
    auto copies = model_->frozen();
    for (size_t i = 0; (optimizer_ || has_changed_) && i < model_->size(); ++i)
      copies.emplace_back(model_->info(i).name, model_->tensor(i));
    std::vector<torch::Tensor> tensors;
    for (const auto& copy : copies) {
      if (copy.second.is_floating_point()) tensors.push_back(copy.second);
    }
    if (tensors.empty()) return;
    const auto differs = group_->differs(tensors);
    if (!differs || std::exchange(warned_of_copies_, true) || !job_.is_chief()) return;
    const auto is_it = [&](const auto& copy) { return copy.second.is_same(tensors[*differs]); };
    log_warning(
        "the parameter {} is not the same on all workers any more: {} each {} has a copy, and all must "
        "change it alike; was it changed on some of them only{}?",
        std::ranges::find_if(copies, is_it)->first,
        optimizer_     ? "with an optimizer of torch's"
        : has_changed_ ? "of what change_parameters() changed"
                       : "of what is not trained",
        has_changed_ && !optimizer_ ? "host" : "worker",
        optimizer_     ? ", or by an optimizer that draws random numbers"
        : has_changed_ ? ", or by other random numbers on each"
                       : "");
  }

  // Hooks may use the Trainer, and add others.
  void call(const std::vector<std::function<void()>>& hooks) {
    const Temporarily running(is_running_, false);
    const size_t count = hooks.size();
    for (size_t i = 0; i < count; ++i) {
      const auto hook = hooks[i];
      hook();
    }
  }

  void report_progress() {
    if (!progress_) return;
    progress_->update(position().samples, [this] {
      if (progress_text_) return progress_text_();
      std::string text = metrics().to_string();
      if (options_.epochs > 0 && options_.samples_per_epoch > 0) {
        const int64_t epoch = std::min(position().samples / options_.samples_per_epoch + 1, options_.epochs);
        text = fmt::format("epoch {}/{}  {}", epoch, options_.epochs, text);
      }
      return text;
    });
  }

  // The same model everywhere, with the chief's values.
  void take_model() {
    if (optimizer_) optimizer_->look_again();
    model_.emplace(module_);
    if (module_.parameters().empty() && !has_embedding(module_))
      raise<InvalidArgument>(
          "the module {} has no parameters: its constructor must call register_module() for each of its "
          "modules and register_parameter() for each of its tensors",
          module_.name());
    if (const auto tied = model_->sharing_memory(); tied && !optimizer_)
      raise<InvalidArgument>(
          "the parameters {} and {} lie in the same memory, as after set_data, and would be torn apart: let "
          "both modules have the same tensor (`decoder->weight = encoder->weight`), or train with an "
          "optimizer of torch's",
          tied->first, tied->second);
    for (size_t i = 0; i < model_->size(); ++i) model_->set_group(i, groups_->rates_of(model_->tensor(i)));
    model_->watch([this](size_t parameter) { on_gradient(parameter); });
    if (!group_->starts_with_strategy()) model_->sample_values();
    const std::string description = describe_options() + model_->signature();
    if (group_->starts_with_strategy()) {
      group_->take_model(*model_, description);
    } else {
      with_all_workers(kConstructor, [&] { group_->take_model(*model_, description); });
    }
    model_->note_values_and_memory();
    if (group_->starts_with_strategy()) make_strategy();
  }

  std::string describe_options() const {
    std::string text =
        fmt::format("options {} max_steps={} accumulate={} clip_norm={} loss_scale={} precision={}\n",
                    optimizer_ ? optimizer_->describe() : rule_->to_string(), options_.max_steps,
                    options_.accumulate, options_.clip_norm, loss_scale_.value(), job_.config().precision);
    text += fmt::format("options broadcast_buffers={} samples_per_epoch={} schedule={} on_nan={}\n",
                        options_.broadcast_buffers, options_.samples_per_epoch,
                        options_.schedule ? "given" : "none", job_.config().on_nan);
    text += describe_schedule();
    for (size_t i = 0; i < model_->size(); ++i) {
      const GroupRates& group = model_->info(i).group;
      if (group == GroupRates{}) continue;
      text += fmt::format("group of {}: rate times {}", model_->info(i).name, group.lr_factor);
      if (group.weight_decay) text += fmt::format(", weight decay {}", *group.weight_decay);
      text += "\n";
    }
    return text;
  }

  // A schedule has no state, and can be asked for any position: where the answers agree, so do the schedules.
  std::string describe_schedule() const {
    if (!options_.schedule) return "";
    constexpr int64_t kUnknownEpoch = 10'000;  // samples, where nobody says how many there are
    constexpr int64_t kEpochs = 100;
    constexpr int64_t kParts = 16;  // of the first epoch, where rates rise
    constexpr int64_t kBatch = 64;
    const int64_t epoch = options_.samples_per_epoch > 0 ? options_.samples_per_epoch : kUnknownEpoch;
    std::string text;
    for (int64_t part = 0; part <= kEpochs * kParts; part += part < kParts ? 1 : kParts) {
      const int64_t samples = epoch * part / kParts;
      const double factor = options_.schedule(
          {.samples = samples, .samples_per_epoch = options_.samples_per_epoch, .step = samples / kBatch});
      text += fmt::format("schedule, after {} samples: factor={:.6g}\n", samples, factor);
    }
    return text;
  }

  // After a step, when all workers are here, and no graph of this model should be open: autograd would refuse
  // to go back through one whose buffers have changed.
  void share_buffers() {
    if (options_.broadcast_buffers) with_buffers([&] { group_->share_buffers(model_->buffers()); });
  }

  // What goes wrong where their sizes differ says which they are.
  template <typename Body>
  void with_buffers(const Body& body) const {
    try {
      body();
    } catch (const InvalidArgument& error) {
      const std::string resized = model_->resized_buffers();
      if (resized.empty()) throw;
      raise<InvalidArgument>("{} (buffers of {} that have another size than at first: {})", error.what(),
                             job_.task().short_name(), resized);
    }
  }

  // As if this worker's machine were slower, for those who want to see what happens then.
  void slow_down(Clock::time_point start) const {
    if (straggler_factor_ > 1) std::this_thread::sleep_for((Clock::now() - start) * (straggler_factor_ - 1));
  }

  std::string changed_in_place(const ParameterInfo& parameter) const {
    return fmt::format(
        "the parameter {} was changed in place while a Trainer trains it: {}; make it {}before the Trainer "
        "is made (a torch::nn::Embedding with max_norm does it itself)",
        parameter.name,
        group_->starts_with_strategy()
            ? "parameter servers hold it, which do not hear of the change"
            : "the workers of a host share its memory, where the change would be made several times, or have "
              "copies, which would come apart",
        group_->starts_with_strategy() ? "" : "in Trainer::change_parameters(), or ");
  }

  // With an optimizer of torch's each worker has parameters of its own, and changes them as the others do.
  bool keeps_changes() const { return optimizer_ || strategy_->keeps_changes(); }

  const ParameterInfo* written() const {
    if (const auto* parameter = model_->written()) return parameter;
    const auto parameter = strategy_ ? strategy_->written() : std::nullopt;
    return parameter ? &model_->info(*parameter) : nullptr;
  }

  // Of the values of parameters, made in place and outside of change_parameters(). Before there is a strategy,
  // the first step gives all workers the chief's.
  // `at_rest`: no update can be on its way, so that another value is another's.
  void take_changes(bool at_rest) {
    const auto* parameter = strategy_ ? written() : nullptr;
    if (parameter == nullptr && strategy_ && at_rest) parameter = model_->written_unseen();
    if (parameter == nullptr) return;
    if (!keeps_changes()) throw InvalidArgument(changed_in_place(*parameter));
    if (!optimizer_) strategy_->adopt_parameters();
    model_->note_values();
  }

  // A module that was loaded or moved goes on with what is there now, and with the parameters that it has now:
  // those of the chief.
  void take_other_parameters() {
    const auto* moved = model_->moved();
    if (!strategy_) {
      if (group_->any(moved != nullptr || model_->has_changed() || model_->written() != nullptr))
        take_model();
      return;
    }
    if (moved != nullptr && group_->starts_with_strategy())
      raise<InvalidArgument>(
          "the parameter {} was given other memory, as by torch::load, Module::to or set_data, while a "
          "Trainer trains it: parameter servers would go on with the old values; load before the Trainer is "
          "made, or make it anew",
          moved->name);
    if (group_->starts_with_strategy() && model_->has_changed())
      raise<InvalidArgument>(
          "with parameter servers, which parameters are trained must not change while a Trainer trains them: "
          "{}; make the Trainer anew",
          model_->what_changed());
    if (moved != nullptr && job_.is_chief())
      log_info("the parameter {} was given other memory: training goes on with the chief's values of all",
               moved->name);
    if (moved != nullptr || model_->has_changed()) change_model();
  }

  // The same when all workers are here, of which some may have loaded other values and some not.
  void take_parameters_for_evaluation() {
    if (!strategy_ || group_->starts_with_strategy()) {
      take_other_parameters();
    } else if (group_->any(model_->moved() != nullptr || model_->has_changed())) {
      if (job_.is_chief())
        log_info("parameters were given other memory: the evaluation has the chief's values of all");
      change_model();
    }
  }

  void warn_of_change_within_step() {
    const auto* moved = model_->moved();
    if ((moved == nullptr && !model_->has_changed()) || std::exchange(warned_of_change_within_, true)) return;
    if (moved != nullptr)
      log_warning(
          "the parameter {} was given other memory, as by torch::load, Module::to or set_data, after {} of "
          "the "
          "{} batches that make step {} (accumulate): what they change is lost; load between two steps",
          moved->name, batches_, options_.accumulate, steps_ + 1);
    else
      log_warning(
          "{}, after {} of the {} batches that make step {} (accumulate): it counts from the next step on",
          model_->what_changed(), batches_, options_.accumulate, steps_ + 1);
  }

  // Gradients that are there are of other models' backward passes.
  void begin_step() {
    check_module();
    take_other_parameters();
    take_changes(/*at_rest=*/true);
    model_->clear_gradients();
    model_->forget_order();
    model_->note_references_before();
    last_loss_ = 0;
    sizes_ = 0;
  }

  // A worker that brings nothing begins its rounds here too, with nothing.
  void begin_round() {
    round_begun_ = true;
    delivered_.assign(model_->size(), false);
    updates_before_.resize(model_->size());
    for (size_t i = 0; i < model_->size(); ++i) updates_before_[i] = strategy_->updates(i);
    StepStart start = {.lr = optimizer_ ? optimizer_->sum_of_rates() * schedule_factor() : learning_rate(),
                       .gradient_scale = loss_scale_.is_used() ? 1 / loss_scale_.value() : 1};
    if (batches_ > 0) {
      const bool counts = unit_ > 0 && samples_ > 0;
      start.weight = counts ? static_cast<double>(first_samples_) / static_cast<double>(unit_) : 1;
      start.total = counts ? static_cast<double>(samples_) / static_cast<double>(unit_) : batches_;
      start.samples = samples_;
    }
    lr_ = start.lr;
    if (used_rate_ == 0.0 && start.lr == 0 && job_.is_chief() && !warned_of_no_rate_ &&
        (!optimizer_ || optimizer_->tells_rates()) && !std::exchange(warned_of_no_rate_, true))
      log_warning(
          "the learning rate is 0 in step {} and the one before, after {} samples: nothing is learned; a "
          "schedule in epochs counts by TrainerOptions::samples_per_epoch ({}), of all workers together",
          steps_ + 1, samples_used_, options_.samples_per_epoch);
    used_rate_ = learning_rate();
    strategy_->begin(start);
  }

  double compute(const Loss& function, double size) {
    torch::Tensor loss;
    const uint64_t before = at::sequence_number::peek();
    {
      const Precision::Scope precision(precision_);
      const Temporarily own_passes(job_.backward(),
                                   JobContext::Backward{.scale = 1 / size, .others = &other_gradients_});
      loss = function();
    }
    if (!loss.defined() || loss.numel() != 1)
      raise<InvalidArgument>(
          "the function given to Trainer::step must return the loss, one number; it returned {}",
          loss.defined() ? fmt::format("{} of them", loss.numel()) : "no tensor");
    if (loss.is_complex())
      raise<InvalidArgument>(
          "the loss that was given to Trainer::step is complex: give a real number, such as its abs()");
    if (looks_left_ > 0 && job_.is_chief()) look_for_unregistered(loss);
    const double factor = size * (loss_scale_.is_used() ? loss_scale_.value() : 1);
    // Nothing goes out of the passes that the function ran itself; what they left counts as the rest does.
    if (factor != 1) model_->scale_gradients(factor);
    if (!loss.requires_grad())
      raise<InvalidArgument>(
          "the loss that was given to Trainer::step has no gradient: {}",
          !torch::GradMode::is_enabled() ? "gradients are off here (NoGradGuard or InferenceMode)"
          : model_->size() == 0          ? "the Trainer trains no parameter, as all are frozen"
                                         : "it was detached, or computed of nothing that is trained");
    if (precision_.is_reduced() && steps_ == 0 && was_begun_before(loss, before) &&
        !std::exchange(warned_of_precision_, true))
      log_warning(
          "--precision {} has no effect on what is computed before Trainer::step(), as the loss was, or a "
          "part "
          "of it: compute it in the function that step() is given",
          job_.config().precision);
    model_->put_gradients_back();
    const Temporarily delivering(delivering_, round_begun_);
    const Temporarily backward(job_.backward(), JobContext::Backward{.scale = factor / size,
                                                                     .may_overflow = loss_scale_.can_shrink(),
                                                                     .others = &other_gradients_});
    try {
      (factor != 1 ? loss * factor : loss).backward();
    } catch (const c10::Error& error) {
      if (std::string(error.what_without_backtrace()).find("second time") == std::string::npos) throw;
      raise<InvalidArgument>(
          "Trainer::step runs backward() of the loss, and a part of what the loss was computed of has been "
          "gone "
          "through before: let the function only return the loss, and not call backward() itself; and what "
          "it "
          "keeps from step to step, as the state of an RNN, needs a detach() ({})",
          error.what_without_backtrace());
    }
    return loss.item<double>();
  }

  void look_for_unregistered(const torch::Tensor& loss) {
    --looks_left_;
    if (const auto shape = unregistered_.look(loss); !shape.empty())
      log_warning(
          "the loss depends on a tensor of the shape {} that requires a gradient, and that no Trainer "
          "trains: if it is of a layer, its module must call register_module() or register_parameter() for "
          "it, also when it is replaced",
          shape);
  }

  void on_gradient(size_t parameter) {
    if (!delivering_) return;
    if (delivered_[parameter])
      raise<InvalidArgument>(
          "the parameter {} got a gradient twice in one backward pass, as when a part of it runs a backward "
          "pass of its own: its first gradient is already on its way",
          model_->info(parameter).name);
    delivered_[parameter] = true;
    strategy_->deliver(parameter, model_->gradient(parameter), !optimizer_ && model_->held(parameter));
  }

  void end_step() {
    if (!strategy_) {
      make_strategy();
      begin_round();
    }
    take_changes(/*at_rest=*/false);
    deliver_all();
    finish_round(last_loss_ / sizes_);
  }

  // What backward did not touch may still have a gradient of an earlier batch.
  void deliver_all() {
    size_t missing = 0;
    for (size_t i = 0; i < model_->size(); ++i) {
      if (delivered_[i]) continue;
      delivered_[i] = true;
      const void* const gradient = model_->gradient(i);
      if (gradient == nullptr) ++missing;
      strategy_->deliver(i, gradient, /*held=*/false);
    }
    if (missing > without_gradient_ && looks_again_-- > 0) looks_left_ = kLooks;  // was a layer replaced?
    without_gradient_ = missing;
    const bool any = model_->size() == 0 ? has_embedding(module_) : missing < model_->size();
    if (!any && !std::exchange(warned_of_no_gradient_, true)) {
      log_warning(
          "step {}: the loss does not depend on any trained parameter of {}, so nothing is learned from it: "
          "was the module replaced after the Trainer was made, or the loss detached?",
          steps_ + 1, module_.name());
    }
  }

  // True when all workers have run out of data.
  bool finish_round(double loss) {
    const StepResult result = strategy_->finish(loss);
    round_begun_ = false;
    if (!result.not_finite.empty()) check_not_finite(result);
    if (!result.finished) check_rate(result.lr);
    if (const auto others = std::exchange(other_gradients_, nullptr); others != nullptr && result.applied)
      others->apply(sizes_);
    if (!optimizer_) {
      model_->note_update();
    } else if (result.applied) {
      step_optimizer();
    }
    model_->clear_gradients();
    model_->note_references_after();
    model_->note_values();
    share_buffers();
    batches_ = 0;
    samples_ = 0;
    const int64_t before = std::exchange(steps_, strategy_->global_step().value_or(steps_ + 1));
    if (result.finished) {
      if (!strategy_->global_step()) steps_ = before;
      count_samples(result);
      return true;
    }
    ++metrics_.steps;
    metrics_.dropped += result.dropped;
    staleness_ += static_cast<double>(result.staleness);
    metrics_.samples += count_samples(result);
    metrics_.loss = result.loss;
    metrics_.gradient_norm = result.gradient_norm;
    metrics_.wait += result.wait;
    metrics_.update += result.update;
    exchanged_ = result.wait + result.update;
    if (result.dropped == 0) {
      if (!result.applied) ++metrics_.skipped;
      loss_scale_.adjust(result.applied);
    }
    call(after_);
    return false;
  }

  // The chief's rate counts, or each worker's own optimizer steps with its own.
  void check_rate(double used) const {
    constexpr double kSame = 1e-6;  // hosts may have other mathematical libraries
    if (std::abs(lr_ - used) <= kSame * std::abs(used)) return;
    raise<InvalidArgument>(
        "the learning rate of step {} is {} on {} and {} on the chief{}: all workers need the same, so "
        "change it on all of them, in the same step",
        steps_ + 1, lr_, job_.task().short_name(), used,
        optimizer_ ? " (of an optimizer with several groups, the sum of theirs)" : "");
  }

  // With a scale of the loss this is how it is found out that the scale is too large.
  void check_not_finite(const StepResult& result) const {
    if (loss_scale_.can_shrink()) return;
    const std::string what =
        fmt::format("{} is infinite or not a number, in step {}", result.not_finite, steps_ + 1);
    if (job_.config().on_nan == "stop") raise<DataLoss>("{} (--on-nan skip would leave the step out)", what);
    // With all-reduce all workers know it, with servers the one whose gradient it was.
    if (job_.is_chief() || group_->starts_with_strategy()) log_warning("{}: it is left out", what);
  }

  // Gives what the round took, of all workers.
  int64_t count_samples(const StepResult& result) {
    const int64_t own_count = samples_used_ + std::llround(result.total * static_cast<double>(unit_));
    const int64_t before = std::exchange(samples_used_, strategy_->samples().value_or(own_count));
    const int64_t expected = options_.epochs * options_.samples_per_epoch;
    if (expected > 0 && samples_used_ > expected + options_.samples_per_epoch && job_.is_chief() &&
        !std::exchange(warned_of_more_epochs_, true))
      log_warning(
          "training goes on, an epoch after the {} of TrainerOptions::epochs, which are for the progress "
          "line "
          "alone: the loop ends training, or TrainerOptions::max_steps, of which done() tells",
          options_.epochs);
    return samples_used_ - before;
  }

  // False when nobody has had a batch.
  bool make_strategy() {
    unit_ = group_->agree_on_unit(batches_, samples_);
    auto made = group_->make_strategy(
        *model_, {.rule = rule_,
                  .check_finite = loss_scale_.is_used() || job_.config().on_nan == "skip",
                  .clip_norm = options_.clip_norm,
                  .max_steps = options_.max_steps});
    if (!made) return false;
    if (!optimizer_) {
      if (const auto* parameter = model_->aliased(); parameter != nullptr && job_.is_chief())
        log_warning(
            "the memory of the parameter {} is also that of another tensor, as of a view or detach() that "
            "was made before: training moves the parameter to memory of its own, and that tensor keeps the "
            "values of now",
            parameter->name);
      model_->move_to(made->layout(), made->parameters(), made->initialises());
      model_->note_values_and_memory();
    }
    states_.give(*made);
    made->adopt_parameters();
    strategy_ = std::move(made);
    job_.models().push_back(strategy_.get());
    steps_ = strategy_->global_step().value_or(steps_);
    samples_used_ = strategy_->samples().value_or(samples_used_);
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
      states_.take(*strategy_, rule_->states());
      if (!optimizer_) model_->move_back();
      std::erase(job_.models(), strategy_.get());
      before = std::move(strategy_);
    }
    take_model();
  }

  JobContext& job_;
  const std::weak_ptr<const void> job_lives_ = job_.alive();
  const ProgressStyle progress_style_;
  torch::nn::Module& module_;
  const std::weak_ptr<torch::nn::Module> watched_;  // the same, where somebody's pointer owns it
  const bool is_watched_ = !watched_.expired();
  const UpdateRulePtr rule_;
  const TrainerOptions options_;
  const std::unique_ptr<WorkerGroup> group_;
  const Precision precision_;
  const double straggler_factor_;
  TensorMemory memory_;
  std::optional<TorchOptimizer> optimizer_;  // the user's, where there is one
  std::optional<ParameterGroups> groups_;
  std::optional<FlatModel> model_;
  std::unique_ptr<Strategy> strategy_;  // from the first step on
  KeptStates states_;                   // of parameters that were trained before the model changed
  UnregisteredTensors unregistered_;
  static constexpr int kLooks = 2;  // for these, in the first losses
  int looks_left_ = kLooks;
  int looks_again_ = 10;         // how often more, when parameters get no gradient any more
  size_t without_gradient_ = 0;  // parameters, in the last step
  std::vector<std::function<void()>> before_;
  std::vector<std::function<void()>> after_;

  int64_t steps_ = 0;
  int64_t samples_used_ = 0;          // of all workers
  std::optional<Progress> progress_;  // when it is to be shown
  std::function<std::string()> progress_text_;
  double staleness_ = 0;  // summed up
  int64_t unit_ = 0;      // samples of the largest first batch: what weights are relative to
  LossScale loss_scale_;
  Metrics metrics_;
  std::optional<double> used_rate_;  // in the last step
  std::exception_ptr error_;         // that ended training
  bool is_running_ = false;          // a step, and no hook of it
  bool warned_of_empty_ = false;
  int64_t calls_when_done_ = 0;
  bool warned_of_no_steps_ = false;
  bool warned_of_more_epochs_ = false;
  bool warned_of_no_rate_ = false;
  bool warned_of_loss_ = false;
  bool has_changed_ = false;  // change_parameters() was called after the first step
  bool warned_of_copies_ = false;
  bool warned_of_progress_ = false;
  bool warned_of_change_within_ = false;
  bool has_finished_ = false;         // the epoch, and taken no step since
  std::optional<bool> says_samples_;  // whether steps are given the size of their batch

  // Of the current step.
  bool is_used_ = false;
  bool has_stepped_ = false;
  bool warned_of_precision_ = false;
  bool warned_of_no_gradient_ = false;
  int batches_ = 0;
  int64_t samples_ = 0;
  int64_t first_samples_ = 0;  // of the first batch
  double last_loss_ = 0;       // summed up, by the sizes
  double sizes_ = 0;           // of the batches, in units of the first
  std::unique_ptr<JobContext::OtherGradients> other_gradients_;
  double lr_ = 0;
  std::chrono::duration<double> exchanged_{0};  // waiting and updating, not computing
  bool round_begun_ = false;
  bool delivering_ = false;  // this step's backward pass runs, and the round has begun
  std::vector<bool> delivered_;
  std::vector<int64_t> updates_before_;  // of each parameter
};

namespace {

torch::nn::Module& module_of(const std::shared_ptr<torch::nn::Module>& module) {
  if (!module) throw InvalidArgument("the Trainer was given no module: the pointer is null");
  return *module;
}

}  // namespace

Trainer::Trainer(Job& job, torch::nn::Module& module, const optim::Optimizer& optimizer,
                 TrainerOptions options)
    : impl_(std::make_unique<Impl>(job, module, optimizer.rule(), nullptr, std::move(options))) {}
Trainer::Trainer(Job& job, torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                 TrainerOptions options)
    : impl_(std::make_unique<Impl>(job, module, average(), &optimizer, std::move(options))) {}
Trainer::Trainer(Job& job, std::shared_ptr<torch::nn::Module> module, const optim::Optimizer& optimizer,
                 TrainerOptions options)
    : Trainer(job, module_of(module), optimizer, std::move(options)) {
  module_ = std::move(module);
}
Trainer::Trainer(Job& job, std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
                 TrainerOptions options)
    : Trainer(job, module_of(module), optimizer, std::move(options)) {
  module_ = std::move(module);
}
Trainer::~Trainer() {
  // A fork must not tell others that the worker leaves, nor wait for threads that it has not; and after the job
  // there is nobody to tell.
  if (impl_ && impl_->is_stranded()) static_cast<void>(impl_.release());
}

Step Trainer::step(const Loss& loss, std::optional<int64_t> samples) {
  return impl_->step(loss, samples);
}
void Trainer::finish_epoch() {
  impl_->finish_epoch();
}
void Trainer::show_progress(std::function<std::string()> text) {
  impl_->show_progress(std::move(text));
}
bool Trainer::done() const {
  return impl_->done();
}
int64_t Trainer::steps() const {
  return impl_->steps();
}
Position Trainer::position() const {
  return impl_->position();
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
