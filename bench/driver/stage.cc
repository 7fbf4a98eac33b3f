#include "bench/driver/stage.h"

#include <stdlib.h>

#include <fmt/format.h>

#include "muster/base/deadline.h"

namespace muster {

TemporaryFolder::TemporaryFolder(const Environment& environment) {
  std::string path = environment.get("TMPDIR").value_or("/tmp") + "/muster-bench.XXXXXX";
  if (mkdtemp(path.data()) == nullptr)
    raise<SystemError>("no temporary folder {}: {}", path, describe_errno(errno));
  path_ = path;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Contender::Contender(BenchStage& stage, SubjectCommand command, int ranks)
    : stage_(stage), command_(std::move(command)), ranks_(ranks) {}

std::string Contender::name() const {
  return describe(of(), static_cast<size_t>(ranks_));
}

std::optional<std::vector<std::string>> Contender::ask(const std::string& command) {
  if (!running_) return std::nullopt;
  try {
    return running_->ask(command, Deadline::after(stage_.options_.timeout));
  } catch (const SubjectFailed& error) {
    fail(error.what());
    return std::nullopt;
  }
}

void Contender::fail(const std::string& what) {
  stage_.problem(what);
  running_.reset();
}

std::vector<pid_t> Contender::pids() const {
  return running_ ? running_->pids() : std::vector<pid_t>{};
}

BenchStage::BenchStage(Options options, BenchObserver& observer)
    : options_(std::move(options)), observer_(observer), folder_(options_.environment) {}

BenchStage::~BenchStage() {
  end_all();
}

Contender& BenchStage::add(SubjectCommand command, int ranks) {
  Contender& contender = contenders_.emplace_back(*this, std::move(command), ranks);
  try {
    contender.running_ = std::make_unique<RunningSubject>(
        contender.command_,
        RunningSubject::Options{.ranks = ranks,
                                .folder = folder_.path() / std::to_string(started_++),
                                .environment = options_.environment},
        warden_, signals_);
    contender.running_->await_ready(Deadline::after(options_.timeout));
  } catch (const SubjectFailed& error) {
    contender.fail(error.what());
  } catch (const Error& error) {
    contender.fail(fmt::format("{}: {}", contender.name(), error.what()));
  }
  return contender;
}

void BenchStage::end_all() {
  for (auto& contender : contenders_) {
    if (contender.running_) contender.running_->tell_to_quit();
  }
  contenders_.clear();
}

void BenchStage::problem(const std::string& what) {
  all_well_ = false;
  observer_.on_notice(what);
}

void take_turns(int rounds, size_t count, const std::function<void(size_t which)>& turn) {
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < count; ++i) turn((i + static_cast<size_t>(round)) % count);
  }
}

}  // namespace muster
