#include "muster/train/all_reduce_strategy.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/copy.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"

namespace muster::detail {
namespace {

using Clock = Deadline::Clock;

// Whoever can name the worker that is waited for gives up first; the others wait this many times as long.
constexpr int kLonger = 2;
constexpr size_t kLoggedOperations = 8;  // when a step takes too long

}  // namespace

AllReduceStrategy::AllReduceStrategy(Options options)
    : options_(std::move(options)),
      communicator_(options_.communicator),
      host_(communicator_.host()),
      spin_policy_(SpinPolicy::of(host_.size(), host_.cores())),
      layout_(options_.parameters),
      staging_(options_.parameters.size()),
      updates_(options_.parameters.size()),
      norms_(options_.parameters.size()) {
  find_hosts();
  allocate();
}

AllReduceStrategy::~AllReduceStrategy() = default;

void AllReduceStrategy::find_hosts() {
  int32_t firsts = host_.is_first() ? 1 : 0;
  communicator_.all_reduce(&firsts, 1, DType::kInt32);
  hosts_ = firsts;
  int64_t bucket = static_cast<int64_t>(options_.bucket_bytes);
  if (hosts_ > 1) {
    between_ = communicator_.split(host_.is_first() ? 0 : -1);
    if (bucket == 0) {
      if (between_) bucket = static_cast<int64_t>(measure_bucket(*between_, layout_.state_bytes()));
      communicator_.broadcast(&bucket, 1, DType::kInt64, 0);
    }
  }
  buckets_.emplace(layout_, static_cast<size_t>(bucket));
}

std::byte* AllReduceStrategy::share(size_t bytes) {
  memory_.push_back(host_.share(bytes));
  return static_cast<std::byte*>(memory_.back().get());
}

void AllReduceStrategy::allocate() {
  buffers_.parameters = share(layout_.bytes());
  for (size_t state = 0; state < options_.rule->states(); ++state) {
    buffers_.states[state] = share(layout_.state_bytes());
  }
  if (layout_.has_masters()) buffers_.master = share(layout_.state_bytes());
  shared_.emplace(host_, SharedStep::Shape{.parameters = layout_.size(),
                                           .ranges = layout_.ranges().size(),
                                           .buckets = buckets_->size()});
  if (hosts_ > 1 || options_.clip_norm > 0 || options_.check_finite || options_.rule->measures())
    buffers_.sums = share(layout_.state_bytes());
  update_.emplace(layout_, *options_.rule, buffers_);
  if (between_) {
    reducer_ = std::make_unique<ReducerThread>(ReducerThread::Options{.workers = communicator_,
                                                                      .between = std::move(between_),
                                                                      .layout = layout_,
                                                                      .buckets = *buckets_,
                                                                      .shared = *shared_,
                                                                      .sums = buffers_.sums,
                                                                      .timeout = kLonger * options_.timeout});
  }
}

std::string AllReduceStrategy::explain() const {
  if (communicator_.size() == 1) return "one worker";
  // Workers that share no memory are hosts to us, but not to whoever reads this.
  const int hosts = options_.hosts > 0 ? options_.hosts : hosts_;
  std::string text =
      fmt::format("all-reduce: {} workers on {} host{}", communicator_.size(), hosts, hosts == 1 ? "" : "s");
  if (host_.size() > 1) text += "; those of a host share parameters and updates";
  if (hosts_ > hosts) text += "; not all of a host share memory";
  if (hosts_ > 1)
    text += fmt::format(
        "; {} buckets of about {} between {}{}", buckets_->size(),
        format_bytes(buckets_->size() == 0 ? 0 : (*buckets_)[0].count * size_of((*buckets_)[0].dtype)),
        hosts_ > hosts ? "those that do not" : "hosts", options_.bucket_bytes == 0 ? ", as measured" : "");
  return text;
}

void AllReduceStrategy::adopt_parameters() {
  if (host_.is_first()) {
    for (const Range& range : layout_.ranges()) update_->adopt_parameters(range);
  }
  communicator_.barrier();
}

void AllReduceStrategy::begin(const StepStart& start) {
  start_ = start;
  ++round_;
  settled_ = 0;
  waited_ = worked_ = {};
  ++uses_[kReduce];
  shared_->begin(round_,
                 {.weight = start.weight, .total = start.total, .lr = start.lr, .changed = start.changed});
  if (reducer_) reducer_->begin(round_);
}

void AllReduceStrategy::deliver(size_t parameter, const void* gradient, bool held) {
  if (gradient == nullptr) return;
  const ParameterInfo& info = layout_[parameter];
  const size_t bytes = info.count() * size_of(info.dtype);
  uint64_t offset = host_.offset_of(gradient, bytes);
  if (offset == 0) {
    auto& staging = staging_[parameter];
    if (!staging) staging = communicator_.allocate(bytes);
    copy_bytes(staging.get(), gradient, bytes);
    offset = host_.offset_of(staging.get(), bytes);
  }
  shared_->deliver(round_, parameter, offset, held);
  // On one host whoever has ended its own backward pass does this; for other hosts the sums must leave early.
  if (hosts_ > 1) {
    while (claim_chunk(kReduce, [this](const Range& range) { reduce(range); })) {
    }
  }
}

std::vector<WeightedSource> AllReduceStrategy::sources_of(size_t parameter) const {
  std::vector<WeightedSource> sources;
  for (int i = 0; i < host_.size(); ++i) {
    const double weight = shared_->contribution(i, round_).weight;
    const auto delivery = shared_->delivery(i, round_, parameter);
    if (delivery.exists && weight != 0) sources.push_back({delivery.data, weight});
  }
  return sources;
}

// Whether all workers of the host have said what they bring for the chunk's parameters, and whether they may
// change now.
bool AllReduceStrategy::ready(size_t chunk) {
  const size_t parameter = layout_.ranges_of(layout_.chunks()[chunk]).back().slice;
  while (settled_ <= parameter) {
    bool held = false;
    bool ended = true;
    for (int i = 0; i < host_.size(); ++i) {
      if (!shared_->settled(i, round_, settled_)) return false;
      held = held || shared_->delivery(i, round_, settled_).held;
      ended = ended && shared_->completed(i, round_);
    }
    if (held && !ended && buffers_.sums == nullptr) return false;
    ++settled_;
  }
  return true;
}

void AllReduceStrategy::reduce(const Range& range) {
  update_->reduce(range, sources_of(range.slice));
  if (!update_->is_finite(range)) find_not_finite(range);
  if (hosts_ == 1) norms_of(range).gradient = update_->square(range);
}

void AllReduceStrategy::reduce_and_apply(const Range& range) {
  const auto sources = sources_of(range.slice);
  if (sources.empty()) return;
  if (!update_->reduce_and_apply(range, sources, now_of(range.slice))) find_not_finite(range);
}

// Whose it is: the gradients of this host's workers are still there. The first that is found is enough.
void AllReduceStrategy::find_not_finite(const Range& range) {
  if (shared_->not_finite(round_)) return;
  int rank = -1;
  for (int i = 0; i < host_.size() && rank < 0; ++i) {
    const auto delivery = shared_->delivery(i, round_, range.slice);
    if (!delivery.exists || shared_->contribution(i, round_).weight == 0) continue;
    if (!update_->is_finite(range, delivery.data)) rank = host_.ranks()[static_cast<size_t>(i)];
  }
  shared_->note_not_finite(round_, {.parameter = range.slice, .rank = rank});
}

SharedStep::RangeNorms& AllReduceStrategy::norms_of(const Range& range) {
  return shared_->norms(static_cast<size_t>(&range - layout_.ranges().data()));
}

std::string AllReduceStrategy::describe_not_finite(const SharedStep::Control& control) const {
  auto found = shared_->not_finite(round_);
  if (control.not_finite == 1)
    found = {.parameter = static_cast<size_t>(control.parameter), .rank = static_cast<int>(control.rank)};
  if (control.not_finite > 1 && !found)
    return "a gradient of several other workers";  // whose hosts name them
  if (!found) return "";
  const std::string& name = layout_[found->parameter].name;
  if (found->rank < 0) return fmt::format("the average gradient of {}", name);
  return fmt::format("the gradient of {} from {}", name, options_.describe(found->rank));
}

UpdateNow AllReduceStrategy::now_of(size_t parameter) const {
  const ParameterInfo& info = layout_[parameter];
  return {.step = updates_[parameter] + 1,
          .lr = lr_ * info.group.lr_factor,
          .gradient_scale = scale_,
          .adapt = info.shape.size() > 1,
          .weight_decay = info.group.weight_decay};
}

// Of a pass's chunks, in the counter's numbers, which go on from step to step.
uint64_t AllReduceStrategy::end_of(Pass pass) const {
  return uses_[pass] * layout_.chunks().size();
}

// The reducer thread waits for whole buckets.
void AllReduceStrategy::note_reduced(size_t chunk) {
  const size_t bucket = buckets_->of(chunk);
  const auto done = shared_->bucket_done(bucket).fetch_add(1) + 1;
  if (done % (*buckets_)[bucket].chunks == 0) wake(shared_->reducer_doorbell());
}

// Takes the next chunk if it is ready. False when it is not, or there is none.
template <typename Work>
bool AllReduceStrategy::claim_chunk(Pass pass, const Work& work) {
  const uint64_t end = end_of(pass);
  const uint64_t first = end - layout_.chunks().size();
  WorkCounter& counter = shared_->counter(pass);
  const auto claimed = counter.claim(end, [&](uint64_t next) {
    const bool may = pass != kReduce || ready(next - first);
    if (may) shared_->set_busy(true);  // before it has the chunk: whoever stops with one is known
    return may;
  });
  if (!claimed) {
    shared_->set_busy(false);
    return false;
  }
  const size_t chunk = *claimed - first;
  const auto start = Clock::now();
  for (const Range& range : layout_.ranges_of(layout_.chunks()[chunk])) work(range);
  if (pass == kReduce && hosts_ > 1) note_reduced(chunk);
  if (counter.finish(end)) shared_->wake_all();
  shared_->set_busy(false);
  worked_ += Clock::now() - start;
  return true;
}

template <typename Work>
void AllReduceStrategy::run_pass(Pass pass, const Work& work) {
  if (pass != kReduce) ++uses_[pass];  // begin() has counted that one
  const uint64_t end = end_of(pass);
  const WorkCounter& counter = shared_->counter(pass);
  while (!counter.is_claimed(end)) {
    if (claim_chunk(pass, work)) continue;
    wait([&] {
      const uint64_t next = counter.claimed();
      return next >= end || pass != kReduce || ready(next - (end - layout_.chunks().size()));
    });
  }
  wait([&] { return counter.is_done(end); });
}

StepResult AllReduceStrategy::finish(double loss) {
  shared_->complete(round_, loss);
  StepResult result;
  const bool fused = buffers_.sums == nullptr;
  const auto reduce_range = [this](const Range& range) { reduce(range); };
  SharedStep::Control control;
  if (hosts_ > 1) {
    run_pass(kReduce, reduce_range);
    wait([this] { return shared_->round_reduced().load(std::memory_order_acquire) >= round_; });
    control = shared_->control();
  } else {
    control = gather_control();
  }
  agree_on_change(control);
  result.changed = control.changed > 0;
  result.finished = control.total == 0 && !result.changed;
  if (control.total == 0) {
    if (hosts_ == 1) --uses_[kReduce];  // nobody has claimed anything
    return result;
  }
  scale_ = start_.gradient_scale / control.total;
  lr_ = result.lr = control.lr;
  result.applied = true;
  if (hosts_ == 1) {
    if (fused) {
      run_pass(kReduce, [this](const Range& range) { reduce_and_apply(range); });
    } else {
      run_pass(kReduce, reduce_range);
    }
    wait([this] {
      for (int i = 0; i < host_.size(); ++i) {
        if (!shared_->completed(i, round_)) return false;
      }
      return true;
    });
    for (int i = 0; i < host_.size(); ++i) {
      const double total = shared_->contribution(i, round_).total;
      if (total > 0) control.loss += total * shared_->loss(i, round_);
    }
  }
  result.total = control.total;
  result.loss = control.loss / control.total;
  if (!fused) find_norm(result);
  if (const auto found = describe_not_finite(control); !found.empty()) result.not_finite = found;
  if (!fused && !result.not_finite.empty()) result.applied = false;
  if (!fused && result.applied) {
    if (options_.rule->measures()) {
      run_pass(kMeasure, [this](const Range& range) {
        norms_of(range).whole = touched(range.slice) ? update_->measure(range, now_of(range.slice)) : Norms{};
      });
      std::fill(norms_.begin(), norms_.end(), Norms{});
      for (const Range& range : layout_.ranges()) norms_[range.slice] += norms_of(range).whole;
    }
    run_pass(kApply, [this](const Range& range) {
      if (!touched(range.slice)) return;
      update_->apply(range, now_of(range.slice), norms_[range.slice]);
      if (hosts_ > 1 && !update_->is_finite(range)) find_not_finite(range);  // the sum of all hosts
    });
    if (result.not_finite.empty()) result.not_finite = describe_not_finite(control);
  }
  if (result.applied) {
    for (size_t i = 0; i < layout_.size(); ++i) updates_[i] += touched(i) ? 1 : 0;
  }
  ++step_;
  result.wait = waited_;
  result.update = worked_;
  return result;
}

bool AllReduceStrategy::touched(size_t parameter) {
  if (hosts_ > 1) return shared_->touched(parameter) > 0;
  for (int i = 0; i < host_.size(); ++i) {
    if (shared_->contribution(i, round_).weight != 0 && shared_->delivery(i, round_, parameter).exists)
      return true;
  }
  return false;
}

// On one host, what all workers said when they began; their losses come later.
SharedStep::Control AllReduceStrategy::gather_control() {
  wait([this] {
    for (int i = 0; i < host_.size(); ++i) {
      if (!shared_->has_begun(i, round_)) return false;
    }
    return true;
  });
  SharedStep::Control control = {.lr = shared_->contribution(0, round_).lr};
  for (int i = 0; i < host_.size(); ++i) {
    control.total += shared_->contribution(i, round_).total;
    control.changed += shared_->contribution(i, round_).changed ? 1 : 0;
  }
  return control;
}

void AllReduceStrategy::agree_on_change(const SharedStep::Control& control) const {
  const int workers = communicator_.size();
  if (control.changed == 0 || control.changed == workers) return;
  raise<InvalidArgument>(
      "the parameters of the model changed before step {} on {} of {} workers, {} this one: all must change "
      "their models in the same step",
      step_ + 1, control.changed, workers, start_.changed ? "also on" : "but not on");
}

void AllReduceStrategy::find_norm(StepResult& result) {
  if (hosts_ > 1 && (options_.clip_norm > 0 || options_.check_finite)) {
    run_pass(kNorm, [&](const Range& range) { norms_of(range).gradient = update_->square(range); });
  }
  if (options_.clip_norm == 0 && !options_.check_finite) return;
  double sum = 0;
  for (const Range& range : layout_.ranges()) sum += norms_of(range).gradient;
  result.gradient_norm = std::sqrt(sum) * std::abs(scale_);
  if (options_.check_finite && !std::isfinite(result.gradient_norm)) {
    result.applied = false;
    result.not_finite = "the average gradient";
  }
  scale_ *= clip_factor(result.gradient_norm, options_.clip_norm);
}

template <typename Ready>
void AllReduceStrategy::wait(const Ready& is_ready) {
  if (is_ready()) return;
  const auto since = Clock::now();
  std::vector<int> ranks;
  std::string who;
  ScopedWait wait(options_.waits, [&] {
    WaitFor wait_for = {.what = fmt::format("step {}", step_ + 1), .tasks = {}, .detail = who};
    for (const int rank : ranks) wait_for.tasks.push_back(options_.task_of(rank));
    if (ranks.empty() && hosts_ > 1) {  // the sums of other hosts
      for (int rank = 0; rank < communicator_.size(); ++rank) {
        if (std::ranges::find(host_.ranks(), rank) == host_.ranks().end())
          wait_for.tasks.push_back(options_.task_of(rank));
      }
    }
    wait_for.meeting = fmt::format("step {} of {}", round_, options_.name);
    wait_for.limit = WaitLimit::kOwn;
    return wait_for;
  });
  wait_until(shared_->doorbell(), spin_policy_, is_ready, [&] {
    ranks.clear();
    who = who_is_missing(&ranks);
    check_waiting(since, ranks, who);
    wait.look();
  });
  waited_ += Clock::now() - since;
}

void AllReduceStrategy::check_waiting(Clock::time_point since, const std::vector<int>& ranks,
                                      const std::string& who) {
  if (reducer_) reducer_->check();
  host_.check(fmt::format("step {}", step_ + 1), ranks);
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since);
  if (waited > options_.stall_warning) log_last_collectives();
  if (waited <= options_.timeout * (ranks.empty() ? kLonger : 1)) return;
  const std::string text = fmt::format("{}; waiting for {}", who, format_duration(waited));
  communicator_.abort(text);
  throw DeadlineExceeded(text);
}

// Once for each step; who holds whom up, the coordinator says.
void AllReduceStrategy::log_last_collectives() {
  if (std::exchange(logged_step_, step_) == step_) return;
  auto operations = split(communicator_.history(), '\n');
  operations.resize(operations.size() - 1);  // the text ends with a newline
  const size_t old = operations.size() - std::min(operations.size(), kLoggedOperations);
  operations.erase(operations.begin(), operations.begin() + static_cast<std::ptrdiff_t>(old));
  log_info("the last collectives of this worker: {}", fmt::join(operations, "; "));
}

// Who of this host has not delivered what; those of other hosts are the reducer's.
std::string AllReduceStrategy::who_is_missing(std::vector<int>* ranks) const {
  constexpr size_t kNamed = 5;
  std::string text;
  for (int i = 0; i < host_.size(); ++i) {
    if (shared_->completed(i, round_)) continue;
    const int rank = host_.ranks()[static_cast<size_t>(i)];
    ranks->push_back(rank);
    std::vector<std::string> names;
    for (size_t p = 0; p < layout_.size(); ++p) {
      if (!shared_->settled(i, round_, p)) names.push_back(layout_[p].name);
    }
    const size_t more = names.size() - std::min(names.size(), kNamed);
    names.resize(names.size() - more);
    if (!text.empty()) text += "; ";
    text += options_.describe(rank);
    if (!shared_->has_begun(i, round_)) {
      text += fmt::format(" has not begun step {}", step_ + 1);
    } else if (names.empty()) {
      text += fmt::format(" has not ended the backward pass of step {}", step_ + 1);
    } else {
      text += fmt::format(" has not delivered {}{} to step {}", fmt::join(names, ", "),
                          more > 0 ? fmt::format(" and {} more", more) : "", step_ + 1);
    }
  }
  if (!text.empty()) return text;
  for (int i = 0; i < host_.size(); ++i) {
    if (!shared_->busy(i)) continue;
    const int rank = host_.ranks()[static_cast<size_t>(i)];
    ranks->push_back(rank);
    text += fmt::format("{}{} has not ended its share of the update in step {}", text.empty() ? "" : "; ",
                        options_.describe(rank), step_ + 1);
  }
  if (!text.empty()) return text;
  const char* what = hosts_ > 1 ? "others have not delivered their sums to" : "other workers still update in";
  return fmt::format("{} step {}", what, step_ + 1);
}

}  // namespace muster::detail
