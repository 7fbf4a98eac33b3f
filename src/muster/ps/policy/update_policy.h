#pragma once

// What becomes of the workers' gradients: when they are applied, with which others, which are dropped, and
// who may compute next. One server, the leader, decides for all; what it decides is a Command, and every
// server carries out the same commands, one after the other, each on its shard. So an update is whole on all
// servers or on none, in every mode.
//
// A worker needs a token to compute a gradient. Whatever it asks is answered once:
//
//   enter          it is here                                  -> kBegin: a token; kDone: training is over
//   push           its gradient is there; uses up its token    -> kBegin or kDone, and the push's outcome
//   finish_epoch   it has no more data; gives its token back   -> kBegin or kDone, when all that live have
//                                                                 finished, and none is still to come
//   away           it waits for others elsewhere; gives its    -> nothing
//                  token back, and nobody waits for it
//   back           it is counted on again, without a token     -> nothing
//   resume         it is back, and goes on                     -> kBegin or kDone
//   leave          it is done, gives its token back            -> nothing
//   fail           it died; its token comes back               -> nothing
//
// Modes:
//   async   a gradient is applied as it comes. Its staleness is the version now less the one that it read.
//   sync    `aggregate` gradients (R) computed for this step are averaged, whichever workers they come from:
//           one update, the step grows by one, and max(workers, R) tokens carry the new step; older tokens
//           that nobody took are gone. A gradient computed for an older step is dropped and counted. When R
//           is not above the number of workers and fewer are left, since others have failed, left or finished
//           the epoch, as many as these are enough, and the tokens of the others are kept for them. Workers
//           that have not entered yet are waited for.
//   ssp     as async, but a worker gets a token only while it is at most `staleness` gradients ahead of the
//           slowest living worker that has not finished the epoch. With a staleness of 0 it is sync with
//           R = all workers.
//   local   sync with R = all workers, where a gradient stands for `advance` steps at once: the step grows by
//           the largest of these numbers, but not beyond the end of the phase.
//
// Several modes follow each other at given steps (`phases`). An update at or before the step belongs to the
// earlier mode: async and ssp hand out no more tokens than steps are left in their phase, so that no gradient
// goes unused; the later mode begins when the step has been reached, with nothing outstanding.
//
// No sockets, threads or clocks: requests go in, commands and answers come out, in the order in which they
// must be carried out. An answer stands behind the commands that it depends on. Not thread-safe.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace muster::detail {

enum class Mode { kAsync, kSync, kSsp, kLocal };

/// "ps-async", "ps-sync", "ps-ssp", "ps-local". Throws InvalidArgument.
Mode parse_mode(const std::string& text);
const char* to_string(Mode mode);

/// From this step on, this mode.
struct Phase {
  int64_t from = 0;
  Mode mode = Mode::kAsync;
  bool operator==(const Phase&) const = default;
};

/// "0:ps-sync,500:ps-async". The first is from step 0, and steps grow. Throws InvalidArgument.
std::vector<Phase> parse_phases(const std::string& text);

struct PolicyOptions {
  int workers = 1;
  std::vector<Phase> phases = {{0, Mode::kAsync}};
  int64_t max_steps = 0;           ///< the global step at which training is over; 0: never
  int aggregate = 0;               ///< R of sync; 0: as many as workers
  int init_tokens = 0;             ///< of sync, for its first step; 0: max(workers, R). At least R
  int64_t max_staleness = -1;      ///< async and ssp: a gradient more stale than this is dropped; -1: none is
  bool staleness_damping = false;  ///< instead of being dropped (or, without max_staleness, always when it is
                                   ///< above 1) its learning rate is divided by the staleness
  int64_t staleness = 0;           ///< S of ssp
};

/// A gradient, as its worker describes it.
struct Push {
  uint64_t sequence = 0;  ///< grows with each push of an incarnation of a worker
  int64_t step = 0;       ///< of the token that it used
  int64_t version = 0;    ///< of the parameters that it was computed with
  double weight = 1;      ///< what the gradient counts for, beside others: its samples; above 0
  double total = 1;       ///< what it adds to the divisor of the average: above 0
  double lr = 0;
  double gradient_scale = 1;  ///< the average is multiplied by it
  double loss = 0;
  int64_t samples = 0;  ///< of the worker's batches behind it, for the job's position; 0: it does not say
  int64_t advance = 1;  ///< local: how many steps it stands for
  bool skip = false;    ///< it is not finite: uses up its token, but brings nothing. Counted as skipped. In
                        ///< sync it counts towards R with no weight; when all R are so, no update, but a step
};

struct GradientSource {
  int worker = 0;
  uint64_t sequence = 0;
  double weight = 1;    ///< in units of the weight of the update's first gradient: 1 where all are the same
  int incarnation = 0;  ///< of the worker
  bool operator==(const GradientSource&) const = default;
};

struct Command {
  enum class Kind {
    kAccumulate,  ///< add these to the sums that the next kApply uses: their worker goes on before it,
                  ///< and needs the memory again
    kApply,       ///< update the parameters with these and what was accumulated; the version grows by one
    kDrop,        ///< forget these. Without any: all gradients of a step were skipped, only the step grows
  };
  Kind kind = Kind::kApply;
  std::vector<GradientSource> sources;  ///< in the order of workers, then sequences
  double divisor = 1;                   ///< of the weighted sum, in the same units
  double lr = 0;
  double gradient_scale = 1;
  int64_t version = 0;   ///< after it
  int64_t step = 0;      ///< after it
  int asynchronous = 1;  ///< so many workers' gradients are used one by one now, each by an update of its own
  bool averages = false;  ///< the sources are of kLocal: how far workers have come, and not gradients
  bool operator==(const Command&) const = default;
};

struct Answer {
  enum class Kind { kBegin, kDone };
  int worker = 0;
  Kind kind = Kind::kBegin;
  Mode mode = Mode::kAsync;  ///< kBegin: that the token is for
  int64_t step = 0;          ///< kBegin: of the token; kDone: the global step
  int64_t version = 0;       ///< the worker must see at least this version of the parameters
  int64_t samples =
      0;  ///< of all pushes so far, whatever became of them; kSync, kLocal: until this step began

  // Of the worker's push, when it was one.
  enum class Outcome { kNone, kApplied, kDropped, kSkipped };
  Outcome outcome = Outcome::kNone;  ///< kApplied also for one that was accumulated: it will be
  int64_t staleness = 0;
  double loss = 0;   ///< of the update that used it: the mean by totals. Accumulated: its own
  double total = 0;  ///< the divisor of that update. Accumulated: its own
};

struct Decision {
  std::vector<Command> commands;
  std::vector<Answer> answers;
};

class ModeRules;
struct PolicyState;
struct WorkerState;

class UpdatePolicy {
 public:
  /// Throws InvalidArgument for options that can't work, naming the flag (--replicas-to-aggregate, ...).
  explicit UpdatePolicy(PolicyOptions options);
  ~UpdatePolicy();

  // A request that makes no sense (of a worker that has not entered, or has not had the answer to its last
  // one; a push without the token for its step) throws InvalidArgument, and changes nothing.

  /// A worker that enters again, as a new incarnation, begins anew, as after a failure. One that is here
  /// already gets its answer again; an older incarnation than the last is not heard.
  Decision enter(int worker, int incarnation);

  /// Whoever calls it has seen to it that no push comes twice: sequences only name gradients here.
  Decision push(int worker, const Push& push);
  Decision finish_epoch(int worker);

  /// Between two steps. A worker that is away has finished the epoch as far as the others are concerned. All
  /// that wait for each other elsewhere are back before the first of them resumes, so that no update goes
  /// without one of them.
  Decision away(int worker);
  Decision back(int worker);
  Decision resume(int worker);
  Decision leave(int worker);

  /// What it pushed before it died still counts: servers have it, and accumulate it. One that has not entered
  /// yet is not waited for any more.
  Decision fail(int worker);

  int64_t step() const;
  int64_t version() const;
  Mode mode() const;
  int living() const;  ///< workers that have entered, and have neither failed nor left

  /// Why a worker has no answer yet: it needs something of `enough` of these workers (0: of all).
  struct Need {
    int worker = 0;
    const char* what = "";  ///< "a gradient"
    std::vector<int> of;
    int enough = 0;
  };
  std::vector<Need> needs() const;

  struct WorkerCounts {
    int64_t applied = 0;
    int64_t dropped = 0;
    int64_t skipped = 0;
    std::map<int64_t, int64_t> staleness;  ///< how many gradients had which: async and ssp
  };
  const std::map<int, WorkerCounts>& counts() const;

  /// For people: a line for each worker.
  std::string report() const;

 private:
  WorkerState& check_free(int index, const char* does);
  void check_push(int index, const Push& push) const;
  bool is_living(int index) const;
  bool is_expected(int index) const;
  int needed() const;
  bool over() const;
  size_t phase_at(int64_t step) const;

  void begin_phase();
  void retire(int index);
  Decision settle();
  void begin_epoch();
  void hand_out();
  void finish();
  void warn_of_gathered() const;
  void answer(int index, Answer::Kind kind);

  const std::unique_ptr<PolicyState> state_;
  std::unique_ptr<ModeRules> rules_;
  size_t phase_ = 0;
  std::vector<int> queue_;  ///< workers that wait for a token, in the order in which they came
};

}  // namespace muster::detail
