#include "muster/job.h"

#include <utility>

#include "muster/base/error.h"
#include "muster/job/job_context.h"

namespace muster {

using namespace detail;

namespace {

const std::string& checked(const std::string& name) {
  if (name.starts_with("muster/"))
    raise<InvalidArgument>("the name '{}' is taken: those that begin with muster/ are Muster's own", name);
  return name;
}

}  // namespace

Job::Job(detail::Config config) : context_(std::make_unique<JobContext>(std::move(config))) {
  task_.name = context_->task().short_name();
  for (const auto& task : context_->tasks()) {
    tasks_.push_back({.name = task.task.short_name(),
                      .address = task.address,
                      .host = task.host_name,
                      .pid = static_cast<int>(task.pid)});
    if (task.task == context_->task()) task_ = tasks_.back();
  }
}

Job::~Job() = default;

int Job::rank() const {
  return context_->rank();
}

int Job::size() const {
  return context_->workers();
}

bool Job::is_chief() const {
  return context_->is_chief();
}

bool Job::is_server() const {
  return context_->is_server();
}

int Job::index() const {
  return context_->index();
}

int Job::servers() const {
  return context_->servers();
}

int Job::incarnation() const {
  return context_->config().restart_count;
}

std::string Job::launcher() const {
  return context_->launcher();
}

const Task& Job::task() const {
  return task_;
}

const std::vector<Task>& Job::tasks() const {
  return tasks_;
}

void Job::barrier(const std::string& name, std::optional<std::chrono::milliseconds> limit) {
  context_->barrier(checked(name), context_->servers_serve() ? "worker" : "", limit);
}

void Job::put(const std::string& key, const std::string& value) {
  context_->put(checked(key), value);
}

std::string Job::get(const std::string& key, std::optional<std::chrono::milliseconds> limit) {
  return context_->get(checked(key), limit);
}

std::vector<std::string> Job::gather(const std::string& name, const std::string& value) {
  return context_->gather(checked(name), value);
}

Communicator& Job::communicator() {
  return context_->communicator();
}

void Job::wait_for_workers() {
  context_->wait_for_workers();
}

ProgressStyle Job::progress_style() const {
  return is_chief() ? context_->config().progress : ProgressStyle::kOff;
}

}  // namespace muster
