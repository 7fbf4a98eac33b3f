#include "muster/graph/pipeline_schedule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

// Passes that end within this share of the whole time of each other end at the same time: sums of the same
// times may differ by rounding.
constexpr double kSameTime = 1e-9;

// What a stage does of one micro-batch at once, and what it waits for, as numbers of other passes.
struct PlannedPass {
  PassKind kind = PassKind::kForward;
  size_t stage = 0;
  size_t micro_batch = 0;
  std::vector<size_t> after;
  size_t block = 0;
  std::vector<size_t> followers;  // blocks
};

// As an executor's blocks: passes of a stage that need the same of other stages, and so run without a break.
struct PassBlock {
  std::vector<size_t> passes;
  PassKind urgency = PassKind::kForward;  // the least urgent of its passes
  int64_t needs = 0;                      // how much of other stages, directly or not
  size_t missing = 0;                     // how many passes of other blocks it still waits for
  size_t next = 0;                        // of its passes
};

class PipelineSimulation {
 public:
  PipelineSimulation(const std::vector<StageTimes>& times, size_t micro_batches, PipelineSchedule schedule)
      : times_(times), count_(micro_batches), schedule_(schedule), stages_(times.size()) {
    for (size_t stage = 0; stage < times_.size(); ++stage) add_passes(stage);
    for (size_t stage = 0; stage < times_.size(); ++stage) form_blocks(stage);
    for (const auto& pass : passes_) {
      for (const size_t before : pass.after) {
        if (passes_[before].block == pass.block) continue;
        passes_[before].followers.push_back(pass.block);
        ++blocks_[pass.block].missing;
      }
    }
  }

  PipelineTimetable run() {
    PipelineTimetable table;
    table.stages.resize(times_.size());
    for (size_t block = 0; block < blocks_.size(); ++block) {
      if (blocks_[block].missing == 0) make_ready(block);
    }
    double now = 0;
    while (true) {
      for (size_t stage = 0; stage < times_.size(); ++stage) begin_next(stage, now, table);
      if (running_.empty()) break;
      now = running_.begin()->first;
      while (!running_.empty() && running_.begin()->first <= now * (1 + kSameTime)) {
        const PlannedPass& pass = passes_[running_.begin()->second];
        running_.erase(running_.begin());
        stages_[pass.stage].is_running = false;
        for (const size_t block : pass.followers) {
          if (--blocks_[block].missing == 0) make_ready(block);
        }
      }
    }
    table.duration = now;
    return table;
  }

 private:
  // A block: forward passes first, then what needs less, then the first.
  using Choice = std::tuple<PassKind, int64_t, size_t>;
  using Needs = std::vector<uint64_t>;  // a set of what comes of other stages, by its bits

  struct Stage {
    std::set<Choice> ready;
    std::optional<size_t> block;  // that has begun
    bool is_running = false;
  };

  bool has_fillers() const { return schedule_ == PipelineSchedule::kZeroBubble; }
  size_t kinds() const { return has_fillers() ? 3 : 2; }

  // Passes are numbered stage by stage, in the order of the program.
  size_t number_of(size_t stage, PassKind kind, size_t micro_batch) const {
    const size_t first = stage * kinds() * count_;
    const auto place = static_cast<size_t>(kind);
    if (schedule_ == PipelineSchedule::kGPipe) return first + place * count_ + micro_batch;
    return first + micro_batch * kinds() + place;
  }

  void add_passes(size_t stage) {
    const size_t last = times_.size() - 1;
    passes_.resize(passes_.size() + kinds() * count_);
    for (size_t i = 0; i < count_; ++i) {
      const auto add = [&](PassKind kind) -> std::vector<size_t>& {
        PlannedPass& pass = passes_[number_of(stage, kind, i)];
        pass = {.kind = kind, .stage = stage, .micro_batch = i};
        return pass.after;
      };
      const auto here = [&](PassKind kind, size_t other) { return number_of(stage, kind, other); };
      auto& forward = add(PassKind::kForward);
      if (stage > 0) forward.push_back(number_of(stage - 1, PassKind::kForward, i));
      if (schedule_ != PipelineSchedule::kGPipe) {
        const size_t ahead = times_.size() - stage;
        if (i >= ahead) forward.push_back(here(PassKind::kBackward, i - ahead));
        if (const auto before = place_of(stage).put_off_until(i); has_fillers() && before)
          forward.push_back(here(PassKind::kWeights, *before));
      }
      auto& backward = add(PassKind::kBackward);
      backward.push_back(here(PassKind::kForward, i));
      if (stage < last) backward.push_back(number_of(stage + 1, PassKind::kBackward, i));
      if (schedule_ == PipelineSchedule::kGPipe && i != count_ - 1)
        backward.push_back(here(PassKind::kForward, count_ - 1));
      if (has_fillers()) add(PassKind::kWeights).push_back(here(PassKind::kBackward, i));
    }
  }

  // As runtime/compiler_blocks.cc forms them.
  void form_blocks(size_t stage) {
    constexpr size_t kBits = 64;
    const size_t first = stage * kinds() * count_;
    const size_t count = kinds() * count_;
    std::vector<Needs> needs(count, Needs(count / kBits + 1));
    std::map<Needs, size_t> known;
    for (size_t i = 0; i < count; ++i) {
      PlannedPass& pass = passes_[first + i];
      const auto need = [&, bit = i] { needs[bit][bit / kBits] |= uint64_t{1} << (bit % kBits); };
      for (const size_t before : pass.after) {
        if (passes_[before].stage != stage) {
          need();
          continue;
        }
        if (is_put_off(passes_[before]) && passes_[before].kind == PassKind::kWeights) need();  // its end
        if (pass.kind == PassKind::kForward && passes_[before].kind == PassKind::kBackward) need();
        for (size_t word = 0; word < needs[i].size(); ++word) needs[i][word] |= needs[before - first][word];
      }
      if (is_put_off(pass) && pass.kind == PassKind::kWeights) need();
      const auto [found, is_new] = known.emplace(needs[i], blocks_.size());
      if (is_new) blocks_.emplace_back();
      pass.block = found->second;
      PassBlock& block = blocks_[pass.block];
      block.passes.push_back(first + i);
      if (pass.kind != PassKind::kWeights || is_put_off(pass))
        block.urgency = std::max(block.urgency, pass.kind);
      if (is_new) {
        for (const uint64_t word : needs[i]) block.needs += std::popcount(word);
      }
    }
  }

  void make_ready(size_t block) {
    const PassBlock& made = blocks_[block];
    stages_[passes_[made.passes.front()].stage].ready.emplace(made.urgency, made.needs, block);
  }

  double time_of(const PlannedPass& pass) const {
    const StageTimes& times = times_[pass.stage];
    switch (pass.kind) {
      case PassKind::kForward:
        return times.forward;
      case PassKind::kBackward:
        return times.backward_inputs + (is_put_off(pass) ? 0 : times.backward_weights);
      case PassKind::kWeights:
        break;
    }
    return is_put_off(pass) ? times.backward_weights : 0;
  }

  bool is_put_off(const PlannedPass& pass) const {
    return has_fillers() && pass.kind != PassKind::kForward &&
           place_of(pass.stage).is_put_off(pass.micro_batch);
  }

  PipelinePlace place_of(size_t stage) const {
    return {.stage = stage, .stages = times_.size(), .micro_batches = count_};
  }

  void begin_next(size_t number, double now, PipelineTimetable& table) {
    Stage& stage = stages_[number];
    if (stage.is_running) return;
    if (stage.block && blocks_[*stage.block].next == blocks_[*stage.block].passes.size()) stage.block.reset();
    if (!stage.block) {
      if (stage.ready.empty()) return;
      stage.block = std::get<size_t>(*stage.ready.begin());
      stage.ready.erase(stage.ready.begin());
    }
    PassBlock& block = blocks_[*stage.block];
    const size_t begun = block.passes[block.next++];
    const PlannedPass& pass = passes_[begun];
    const double end = now + time_of(pass);
    if (pass.kind != PassKind::kWeights || is_put_off(pass))
      table.stages[number].push_back(
          {.kind = pass.kind, .micro_batch = pass.micro_batch, .start = now, .end = end});
    running_.emplace(end, begun);
    stage.is_running = true;
  }

  const std::vector<StageTimes>& times_;
  const size_t count_;
  const PipelineSchedule schedule_;
  std::vector<PlannedPass> passes_;
  std::vector<PassBlock> blocks_;
  std::vector<Stage> stages_;
  std::set<std::pair<double, size_t>> running_;  // passes, by their ends
};

}  // namespace

double PipelineTimetable::bubble() const {
  if (duration <= 0) return 0;
  double busy = 0;
  for (const auto& passes : stages) {
    for (const auto& pass : passes) busy += pass.end - pass.start;
  }
  return 1 - busy / (duration * static_cast<double>(stages.size()));
}

size_t PipelineTimetable::most_held(size_t stage) const {
  std::map<size_t, std::pair<double, double>> held;  // from when to when
  for (const auto& pass : stages[stage]) {
    const auto [found, is_new] = held.try_emplace(pass.micro_batch, pass.start, pass.end);
    found->second.second = pass.end;
  }
  std::vector<std::pair<double, int>> changes;  // what ends comes before what begins at the same time
  for (const auto& [micro_batch, times] : held) {
    changes.emplace_back(times.first, 1);
    changes.emplace_back(times.second - duration * kSameTime, -1);
  }
  std::sort(changes.begin(), changes.end());
  int now = 0;
  int most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return static_cast<size_t>(most);
}

PipelineTimetable simulate_pipeline(const std::vector<StageTimes>& stages, size_t micro_batches,
                                    PipelineSchedule schedule) {
  if (stages.empty()) raise<InvalidArgument>("a pipeline has no stage; expected 1 or more");
  if (micro_batches == 0) raise<InvalidArgument>("a pipeline has no micro-batch; expected 1 or more");
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const StageTimes& times = stages[stage];
    for (const double time : {times.forward, times.backward_inputs, times.backward_weights}) {
      if (!std::isfinite(time) || time < 0)
        raise<InvalidArgument>("a pass of stage {} takes {}; expected 0 or more", stage, time);
    }
  }
  return PipelineSimulation(stages, micro_batches, schedule).run();
}

bool PipelinePlace::is_put_off(size_t micro_batch) const {
  return has_few() || micro_batch < stage || micro_batch + stages > micro_batches;
}

std::optional<size_t> PipelinePlace::put_off_until(size_t micro_batch) const {
  if (has_few()) return micro_batch < stages ? std::nullopt : std::optional(micro_batch - stages);
  if (micro_batches <= stages || micro_batch + stage <= micro_batches) return std::nullopt;
  return micro_batch + stage - micro_batches - 1;
}

double bubble_by_formula(size_t stages, size_t micro_batches) {
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

}  // namespace muster::detail
