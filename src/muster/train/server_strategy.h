#pragma once

// Training with parameter servers (room ps): this worker's gradients go to the servers, which update; then it
// reads the new parameters. When, and together with whose, the servers decide by the mode.
//
// The parameters are this worker's own copy of one version. With `hogwild` they are the server's, in place;
// so they are with ps-sync and one server on this host, where an update during a step means that the step's
// gradient comes too late and is dropped. In the mode ps-local this worker updates its copy itself, and sends
// the delta to the parameters that it read (the anchor) every few steps, as if that were a gradient.
//
// Threads, blocking and errors are as strategy.h says; the ParameterClient outlives it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/ps/client/parameter_client.h"
#include "muster/shm/write_trap.h"
#include "muster/train/local_steps.h"
#include "muster/train/strategy.h"

namespace muster::detail {

class ServerStrategy : public Strategy {
 public:
  struct Options {
    ParameterClient& client;  ///< of variables that are these parameters; outlives this
    std::vector<ParameterInfo> parameters;
    ModelSpec spec;
    int worker = 0;  ///< which this is
    bool hogwild = false;
    UpdateRulePtr rule;    ///< ps-local: of this worker's own steps
    double clip_norm = 0;  ///< ps-local: of this worker's gradient; 0: none
    int sync_every = 1;    ///< ps-local
  };

  /// Enters, and reads the parameters: waits for the chief to have given them. Throws InvalidArgument.
  explicit ServerStrategy(Options options);
  ~ServerStrategy() override;

  std::string explain() const override;
  const FlatLayout& layout() const override { return layout_; }
  std::shared_ptr<std::byte> parameters() override { return memory_; }
  std::byte* state(size_t state) override { return local_->state(state); }
  bool initialises() const override { return false; }
  int64_t updates(size_t parameter) const override { return local_ ? local_->updates(parameter) : 0; }
  void set_updates(size_t parameter, int64_t updates) override {
    if (local_) local_->set_updates(parameter, updates);
  }
  void adopt_parameters() override {}
  bool keeps_changes() const override { return is_local(); }
  std::optional<size_t> written() const override;
  void refresh() override;
  void away() override;
  void back() override;
  void go_on() override;
  void pause() override;
  void resume() override;
  std::optional<int64_t> global_step() const override { return step(); }
  bool done() const override { return reply_.kind == Reply::Kind::kDone; }
  std::optional<int64_t> samples() const override;

  void begin(const StepStart& start) override;
  void deliver(size_t parameter, const void* gradient, bool held) override;
  StepResult finish(double loss) override;

 private:
  int64_t step() const { return reply_.step + local_count(); }
  int64_t local_count() const { return local_ ? local_->count() : 0; }  // steps since the last average
  bool reads_in_place() const { return options_.hogwild || is_exclusive_; }
  // What the next gradient is for, or the one that is on its way; a switch may change it with each answer.
  bool is_local() const { return reply_.mode == Mode::kLocal; }
  void check_hogwild() const;
  void check_finite(size_t parameter, const void* gradient);
  std::string not_finite_text(size_t parameter) const;
  void push(Push push, StepResult& result);
  template <typename Call>
  void with_servers(const Call& call);
  template <typename Call>
  Reply ask(const Call& call);
  void pull();
  void take_samples();
  size_t sampled(size_t parameter) const;
  void finish_epoch(StepResult& result);
  void update_locally(StepResult& result);
  uint64_t sample(size_t parameter) const;
  void send_local_steps(double loss, StepResult& result);
  void drop_local_steps();
  int64_t local_limit() const;

  const Options options_;
  const FlatLayout layout_;
  std::shared_ptr<std::byte> memory_;
  std::optional<WriteTrap> trap_;  // where the memory is the server's, in place
  std::vector<void*> variables_;   // of each parameter
  std::vector<uint64_t> samples_;  // of a copy: the bits of one value of each, as it was pulled
  size_t samples_taken_ = 0;
  bool is_exclusive_ = false;  // no update comes while a gradient is computed that will be used
  Reply reply_;                // the last
  int64_t version_ = 0;        // of the parameters
  StepStart start_;
  bool in_step_ = false;    // between begin() and finish()
  bool paused_ = false;     // between pause() and resume()
  bool away_ = false;       // between away() and go_on()
  std::string not_finite_;  // which gradient is not
  bool broken_ = true;      // until a call to the servers has ended well

  std::optional<LocalSteps> local_;  // where a phase is ps-local
  bool warned_of_own_ = false;
};

}  // namespace muster::detail
