#include "muster/embedding.h"

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/job/job_context.h"
#include "muster/optim/gradients.h"
#include "muster/ps/table/table_client.h"

namespace muster {

using namespace detail;

namespace {

using torch::Tensor;
using torch::autograd::variable_list;

std::span<const int64_t> span_of(const Tensor& ids) {
  return {ids.data_ptr<int64_t>(), static_cast<size_t>(ids.numel())};
}

struct Target {
  TableClient* client = nullptr;
  JobContext* job = nullptr;  // null where there is only a client
  std::string table;
  auto operator<=>(const Target&) const = default;
};

// The gradients that a Trainer's step, or a backward pass without one, brings for tables: one push for each
// table, so that several lookups of a table are one update, as they are of a parameter.
class RowGradients : public JobContext::OtherGradients {
 public:
  void add(const Target& target, const Tensor& ids, const Tensor& gradient) {
    Rows& rows = targets_[target];
    rows.ids.push_back(ids.flatten());
    rows.values.push_back(gradient.flatten());
  }

  void apply(double divisor) override {
    for (const auto& [target, rows] : std::exchange(targets_, {})) {
      const Tensor ids = joined(rows.ids);
      Tensor values = joined(rows.values);
      if (divisor != 1) values = values / divisor;
      target.client->push(target.table, span_of(ids), values.data_ptr<float>());
    }
  }

  /// The pass that brought them has ended: what it brought goes where it belongs.
  void end_pass() {
    for (const auto& [target, rows] : std::exchange(targets_, {})) {
      const auto pass = target.job == nullptr ? JobContext::Backward{} : target.job->backward();
      Tensor values = joined(rows.values);
      if (pass.scale != 1) values = values / pass.scale;
      if (!check_finite(target, pass, values)) continue;
      const Tensor ids = joined(rows.ids);
      if (pass.others == nullptr) {
        target.client->push(target.table, span_of(ids), values.data_ptr<float>());
        continue;
      }
      // The caller may fill its ids anew before the step ends, and autograd add to what it gave.
      if (*pass.others == nullptr) *pass.others = std::make_unique<RowGradients>();
      static_cast<RowGradients&>(**pass.others).add(target, ids.clone(), values.clone());
    }
  }

 private:
  struct Rows {
    std::vector<Tensor> ids;
    std::vector<Tensor> values;
  };

  static Tensor joined(const std::vector<Tensor>& parts) {
    return parts.size() == 1 ? parts.front() : torch::cat(parts);
  }

  static bool check_finite(const Target& target, const JobContext::Backward& pass, const Tensor& values) {
    if (all_finite(DType::kFloat32, values.data_ptr(), static_cast<size_t>(values.numel()))) return true;
    const std::string what =
        fmt::format("a gradient of table '{}' is infinite or not a number", target.table);
    const bool skips = target.job != nullptr && target.job->config().on_nan == "skip";
    if (!skips && !pass.may_overflow) raise<DataLoss>("{} (--on-nan skip would leave it out)", what);
    log_warning("{}: it is left out", what);
    return false;
  }

  std::map<Target, Rows> targets_;
};

// Those of the backward pass that this thread is in. Autograd keeps them until the pass has ended or failed.
RowGradients& gradients_of_this_pass() {
  thread_local std::weak_ptr<RowGradients> known;
  std::shared_ptr<RowGradients> pass = known.lock();
  if (pass == nullptr) {
    pass = std::make_shared<RowGradients>();
    known = pass;
    torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->end_pass(); });
  }
  return *pass;
}

struct Lookup : torch::autograd::Function<Lookup> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& /*anchor*/,
                        const Tensor& ids, int64_t client, int64_t job, const std::string& table,
                        int64_t width) {
    context->saved_data["ids"] = ids;
    context->saved_data["job"] = job;
    context->saved_data["client"] = client;
    context->saved_data["table"] = table;
    auto shape = ids.sizes().vec();
    shape.push_back(width);
    Tensor rows = torch::empty(shape, torch::kFloat32);
    reinterpret_cast<TableClient*>(client)->pull(table, span_of(ids), rows.data_ptr<float>());
    return rows;
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    const std::string table = context->saved_data["table"].toStringRef();
    if (!context->saved_data["ids"].isTensor())
      raise<InvalidArgument>(
          "a second backward pass through the same rows of table '{}'; add the losses up first", table);
    const Tensor ids = context->saved_data["ids"].toTensor();
    context->saved_data["ids"] = c10::IValue();
    const Target target = {.client = reinterpret_cast<TableClient*>(context->saved_data["client"].toInt()),
                           .job = reinterpret_cast<JobContext*>(context->saved_data["job"].toInt()),
                           .table = table};
    gradients_of_this_pass().add(target, ids, gradients[0].to(torch::kFloat32).contiguous());
    return variable_list(6);
  }
};

}  // namespace

ShardedEmbeddingImpl::ShardedEmbeddingImpl(Job& job, EmbeddingOptions options)
    : ShardedEmbeddingImpl(job.context().tables(), std::move(options)) {
  job_ = &job.context();
}

ShardedEmbeddingImpl::ShardedEmbeddingImpl(TableClient& client, EmbeddingOptions options)
    : client_(client),
      options_(std::move(options)),
      anchor_(torch::empty({0}, torch::TensorOptions().requires_grad(true))) {
  if (options_.width < 1)
    raise<InvalidArgument>("EmbeddingOptions::width of table '{}' is {}; it must be at least 1",
                           options_.name, options_.width);
  client_.create({.name = options_.name,
                  .width = static_cast<size_t>(options_.width),
                  .rule = options_.optimizer.rule(),
                  .scale = static_cast<float>(options_.scale),
                  .seed = options_.seed});
}

Tensor ShardedEmbeddingImpl::forward(const Tensor& ids) {
  if (!ids.defined())
    raise<InvalidArgument>("ids of table '{}' are undefined; expected int64 in the memory of the host",
                           options_.name);
  if (ids.scalar_type() != torch::kInt64 || !ids.device().is_cpu())
    raise<InvalidArgument>("ids of table '{}' are {} on {}; expected int64 in the memory of the host",
                           options_.name, c10::toString(ids.scalar_type()), ids.device().str());
  return Lookup::apply(anchor_, ids.contiguous(), reinterpret_cast<int64_t>(&client_),
                       reinterpret_cast<int64_t>(job_), options_.name, options_.width);
}

EmbeddingSize ShardedEmbeddingImpl::size() {
  const TableSize size = client_.size(options_.name);
  return {.rows = size.rows, .bytes = size.bytes};
}

void ShardedEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("muster::ShardedEmbedding(name={}, width={}, optimizer={})", options_.name,
                        options_.width, options_.optimizer.to_string());
}

}  // namespace muster
