#include <array>
#include <set>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/collective/named_sums.h"
#include "muster/train/all_reduce_strategy.h"
#include "muster/train/replication.h"
#include "muster/train/worker_group.h"

namespace muster::detail {
namespace {

size_t bucket_of(const Config& config) {
  return config.bucket == "auto" ? 0 : static_cast<size_t>(*parse_bytes(config.bucket));
}

class CommunicatorGroup : public WorkerGroup {
 public:
  explicit CommunicatorGroup(JobContext& job)
      : number_(job.next_model()), job_(job), communicator_(job.communicator()), buffers_(communicator_) {}

  std::shared_ptr<void> allocate(size_t bytes) override { return communicator_.allocate(bytes); }

  void take_model(FlatModel& model, const std::string& description) override {
    check_same(communicator_, description, [this](int rank) { return describe(rank); });
    broadcast_tensors(communicator_, model.tensors());
  }

  bool starts_with_strategy() const override { return false; }

  bool any(bool mine) override {
    int32_t found = mine ? 1 : 0;
    communicator_.all_reduce(&found, 1, DType::kInt32, ReduceOp::kMax);
    return found != 0;
  }

  // The largest batch, so that weights are 1 where all are the same.
  int64_t agree_on_unit(int64_t batches, int64_t samples) override {
    const bool says_none = batches > 0 && samples == 0;
    std::array<int64_t, 5> most = {batches, batches > 0 ? samples / batches : 0, number_, -number_,
                                   says_none ? 1 : 0};
    communicator_.all_reduce(most.data(), most.size(), DType::kInt64, ReduceOp::kMax);
    if (most[2] != -most[3]) {
      raise<InvalidArgument>(
          "the workers take first steps of different Trainers at the same time, in the order in which they "
          "were made of number {} on one and of number {} on another; {} is at number {}: take the steps of "
          "several Trainers in the same order on all workers",
          -most[3], most[2], job_.task().short_name(), number_);
    }
    if (most[1] > 0 && most[4] > 0)
      raise<InvalidArgument>(
          "some workers give Trainer::step() the size of the batch and others do not; {} {}: batches count "
          "by it, so give it on all workers, or on none",
          job_.task().short_name(),
          says_none     ? "does not"
          : batches > 0 ? "does"
                        : "has no batch");
    has_batches_ = most[0] > 0;
    return most[1];
  }

  // After the first backward pass, when it is known in which order gradients come: the chief's order counts.
  std::unique_ptr<Strategy> make_strategy(FlatModel& model, const StrategyOptions& options) override {
    if (!has_batches_) return nullptr;
    std::vector<int64_t> agreed;
    for (const size_t i : model.order()) agreed.push_back(static_cast<int64_t>(i));
    communicator_.broadcast(agreed.data(), agreed.size(), DType::kInt64, 0);
    model.reorder({agreed.begin(), agreed.end()});
    const Config& config = job_.config();
    auto made = std::make_unique<AllReduceStrategy>(
        AllReduceStrategy::Options{.communicator = communicator_,
                                   .parameters = model.infos(),
                                   .rule = options.rule,
                                   .check_finite = options.check_finite,
                                   .clip_norm = options.clip_norm,
                                   .bucket_bytes = bucket_of(config),
                                   .hosts = hosts(),
                                   .timeout = config.collective_timeout,
                                   .stall_warning = config.stall_warning,
                                   .describe = [this](int rank) { return describe(rank); },
                                   .waits = &job_.waits(),
                                   .name = fmt::format("model {}", number_),
                                   .task_of = [this](int rank) { return worker(rank).task.short_name(); }});
    if (job_.is_chief() && number_ == 1 && config.algorithm != "auto" && !made->uses_collectives())
      log_warning(
          "--algorithm {}: workers that share memory train without collectives, so it counts only for those "
          "that the program itself calls; --shared-memory off would use it",
          config.algorithm);
    return made;
  }

  void share_buffers(const std::vector<torch::Tensor>& buffers) override { buffers_.run(buffers); }
  void share_buffers_for_evaluation(const std::vector<torch::Tensor>& buffers) override {
    buffers_.run(buffers);
  }

  std::optional<size_t> differs(const std::vector<torch::Tensor>& copies) override {
    auto most = sums_of_values(copies);
    communicator_.all_reduce(most.data(), most.size(), DType::kFloat64, ReduceOp::kMax);
    return first_that_differs(most);
  }

  std::map<std::string, double> add_up(const std::map<std::string, double>& mine) override {
    return muster::detail::add_up(communicator_, "evaluate()", mine);
  }

  void barrier() override { communicator_.barrier(); }

 private:
  int hosts() const {
    std::set<std::string> found;
    for (const auto& task : job_.tasks()) {
      if (task.task.job == "worker") found.insert(task.host_identity);
    }
    return static_cast<int>(found.size());
  }

  const TaskInfo& worker(int rank) const {
    int at = 0;
    for (const auto& task : job_.tasks()) {
      if (task.task.job == "worker" && at++ == rank) return task;
    }
    raise<InvalidArgument>("there is no worker of rank {}", rank);
  }

  std::string describe(int rank) const { return worker(rank).describe(); }

  const int number_;  // of the model
  JobContext& job_;
  Communicator& communicator_;
  BufferBroadcast buffers_;
  bool has_batches_ = false;
};

}  // namespace

std::unique_ptr<WorkerGroup> make_communicator_group(JobContext& job) {
  return std::make_unique<CommunicatorGroup>(job);
}

}  // namespace muster::detail
