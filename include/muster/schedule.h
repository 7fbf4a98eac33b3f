#pragma once

// Learning-rate schedules: a factor on the optimizer's rate for every position of the training.
//
//   muster::Schedule schedule =
//       muster::warmup(muster::epochs(5), muster::cosine_decay(muster::epochs(85), {.floor = 0.01}));
//   muster::Schedule own = [](const muster::Position& now) { return now.epochs() < 30 ? 1.0 : 0.1; };
//   muster::Trainer trainer(job, net, muster::optim::SGD({.lr = 0.1}),
//                           {.samples_per_epoch = 60'000, .schedule = schedule});
//
// Positions count samples, not steps: how many samples a step takes depends on the number of workers and on
// the strategy, and a schedule need not know. A schedule has no state: any position may be asked for, in any
// order, by any thread. The makers throw InvalidArgument for values that make no sense.

#include <cstdint>
#include <functional>
#include <vector>

namespace muster {

/// How far the job has come, all workers together.
struct Position {
  int64_t samples = 0;
  int64_t samples_per_epoch = 0;
  int64_t step = 0;  ///< The updates so far, as the strategy counts them.

  /// Passes over the data, with fractions. Throws InvalidArgument when nobody has said how many samples an
  /// epoch has.
  double epochs() const;
};

using Schedule = std::function<double(const Position& now)>;

/// A length of training, in epochs or in samples of all workers together.
class Span {
 public:
  /// How many samples it is, in a training with epochs as `now` has them. Throws as Position::epochs() does.
  double in_samples(const Position& now) const;

 private:
  friend Span epochs(double count);
  friend Span samples(int64_t count);
  double count_ = 0;
  bool in_epochs_ = false;
};
Span epochs(double count);
Span samples(int64_t count);

/// 1, always.
Schedule constant_rate();

/// Times `factor` after every span of this length.
Schedule step_decay(Span every, double factor = 0.1);

/// Times `factor` at each of these points, which ascend.
Schedule multi_step(std::vector<Span> at, double factor = 0.1);

/// Smoothly, times `factor` in every span of this length.
Schedule exponential_decay(Span every, double factor);

struct DecayOptions {
  double floor = 0;  ///< The factor at the end, and from then on.
  double power = 1;  ///< For linear_decay only: 1 is a straight line.
};

/// Half a cosine wave from 1 down to the floor.
Schedule cosine_decay(Span length, DecayOptions options = {});

/// floor + (1 - floor) * (1 - passed / length) ^ power.
Schedule linear_decay(Span length, DecayOptions options = {});

/// A straight line from `from` at the beginning to the start of `after` at the end of `length`; then `after`,
/// whose samples count from there.
Schedule warmup(Span length, Schedule after, double from = 0);

}  // namespace muster
