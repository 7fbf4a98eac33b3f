#include "muster/runtime/local_session.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "muster/base/log.h"
#include "muster/graph/placer.h"
#include "muster/runtime/executor.h"
#include "muster/runtime/part_times.h"
#include "muster/runtime/program.h"

namespace muster::detail {

namespace {

struct LocalCallable final : Callable::State {
  LocalCallable(std::shared_ptr<const Program> program, TensorMemory& memory)
      : executor(std::move(program), &memory) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& feeds, Timeline* timeline) override {
    if (timeline == nullptr) return executor.run(feeds);
    std::vector<NodeTime> times;
    auto results = executor.run(feeds, nullptr, &times);
    timeline->spans.clear();
    add_spans(*timeline, "/job:localhost/task:0", to_proto(executor.program(), times));
    put_in_order(*timeline);
    return results;
  }

  Executor executor;
};

}  // namespace

LocalSession::LocalSession(Session::Options options)
    : options_(std::move(options)), memory_([](size_t bytes) {
        constexpr size_t kPage = 4096;
        void* memory = std::aligned_alloc(kPage, bytes);
        if (memory == nullptr) throw std::bad_alloc();
        return std::shared_ptr<void>(memory, &std::free);
      }) {
  const auto warn = [](const char* option, const char* why) {
    log_warning("Session::Options::{} has no effect on a session of this process{}", option, why);
  };
  if (options_.timeout.count() > 0) warn("timeout", ": its runs take the time that they take");
  if (options_.wait_for_tasks.count() > 0) warn("wait_for_tasks", ", which is alone");
  if (!options_.container.empty()) warn("container", ", whose variables are its own");
}

std::shared_ptr<Callable::State> LocalSession::prepare(const Signature& signature) {
  if (options_.log_device_placement) {
    for (const auto* node : needed_nodes(signature))
      fmt::print(stderr, "{}: ({}): /job:localhost/replica:0/task:0/device:cpu:0\n", node->name,
                 node->op->name());
  }
  const CompileOptions options{.fold_constants = options_.fold_constants,
                               .share_subexpressions = options_.share_subexpressions,
                               .join_gradients = options_.join_gradients};
  return std::make_shared<LocalCallable>(std::make_shared<Program>(signature, container_, options), memory_);
}

}  // namespace muster::detail
