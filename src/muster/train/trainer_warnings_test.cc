// What a Trainer warns of, since nobody would notice it otherwise: training in vain, results that are not
// what they seem, flags without effect.

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/log.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// What is logged while it lives.
class Logged {
 public:
  Logged() {
    set_log_sink([this](std::string_view line) { text_ += line; });  // called under the log's lock
  }
  ~Logged() { set_log_sink(nullptr); }
  std::string end() {
    set_log_sink(nullptr);
    return text_;
  }

 private:
  std::string text_;
};

Setup with_log(Setup setup, LogLevel level) {
  setup.configure = [level, configure = setup.configure](Config& config) {
    if (configure) configure(config);
    config.log_level = level;
  };
  return setup;
}

Setup with_warnings(Setup setup) {
  return with_log(std::move(setup), LogLevel::kWarning);
}

const std::vector<Setup> kInVain = {Setup{2}, Setup{2, false}, with_server("ps-sync"),
                                    with_server("ps-async")};

// It would take no step for ever, and say nothing.
TEST(TrainerWarnings, ALoopThatDoesNotEndWithTheLastStepIsSaid) {
  for (const auto& setup : kInVain) {
    const auto logged_of = [&](int calls) {
      Logged logged;
      const auto errors = errors_of(with_warnings(setup), [&](Job& job) {
        Net net = net_of(job);
        Trainer trainer(job, net, sgd_rule(), {.max_steps = 2});
        while (trainer.step([&] { return loss_at(net, 0); }, 8).goes_on) {
        }
        for (int call = 1; call < calls; ++call)
          EXPECT_FALSE(trainer.step([&] { return loss_at(net, 0); }, 8).goes_on);
        trainer.finish_epoch();
      });
      EXPECT_THAT(errors, Each(""));
      return logged.end();
    };
    EXPECT_THAT(
        logged_of(2000),
        HasSubstr("step() was called 1000 times after the last of 2 steps (TrainerOptions::max_steps)"));
    EXPECT_THAT(logged_of(50), Not(HasSubstr("after the last"))) << "an epoch may have some batches more";
  }
}

TEST(TrainerWarnings, ALossThatDependsOnNoParameterIsSaid) {
  for (const auto& setup : kInVain) {
    Logged logged;
    const auto errors = errors_of(with_warnings(setup), [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      Net other = net_of(job);
      for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_at(other, step); }, 8);
      trainer.finish_epoch();
    });
    EXPECT_THAT(errors, Each(""));
    EXPECT_THAT(logged.end(), HasSubstr("step 1: the loss does not depend on any trained parameter of"));
  }
}

TEST(TrainerWarnings, BatchesThatWereNeverAppliedAndATrainerThatTookNoStepAreSaid) {
  Logged logged;
  const auto errors = errors_of(with_warnings({2}), [](Job& job) {
    Net net = net_of(job);
    Net other = net_of(job);
    const Trainer unused(job, other, sgd_rule());
    Trainer trainer(job, net, sgd_rule(), {.accumulate = 4});
    for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(logged.end(), AllOf(HasSubstr("3 of the 4 batches that make a step (accumulate) were never"),
                                  HasSubstr("took no step: Trainer::step() computes")));
}

TEST(TrainerWarnings, TrainingThatGoesOnAfterItsEpochsIsSaid) {
  Logged logged;
  EXPECT_THAT(errors_of(with_warnings({1}),
                        [](Job& job) {
                          Net net = net_of(job);
                          Trainer trainer(job, net, sgd_rule(), {.epochs = 2, .samples_per_epoch = 16});
                          for (int step = 0; step < 8 && !trainer.done(); ++step)
                            trainer.step([&] { return loss_at(net, step); }, 8);
                          trainer.finish_epoch();
                        }),
              Each(""));
  EXPECT_THAT(logged.end(), HasSubstr("training goes on, an epoch after the 2 of TrainerOptions::epochs"));
}

TEST(TrainerWarnings, LocalStepsThatAreNotAveragedAndParametersThatAreAllFrozenAreSaid) {
  Logged logged;
  const auto errors = errors_of(with_warnings(with_server("ps-local")), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(logged.end(), HasSubstr("ends with 3 steps after the last average, which are lost"));
  Logged lost;
  auto each_step = with_server("ps-local");
  each_step.configure = [](Config& config) {
    config.strategy = "ps-local";
    config.sync_every = 1;
  };
  EXPECT_THAT(errors_of(with_warnings(each_step),
                        [](Job& job) {
                          Net net = net_of(job);
                          Trainer trainer(job, net, sgd_rule());
                          trainer.step([&] { return loss_at(net, 0); }, 8);
                          const torch::NoGradGuard no_grad;
                          if (job.is_chief()) net->fc2->bias.add_(1);
                          trainer.finish_epoch();
                        }),
              Each(""));
  EXPECT_THAT(lost.end(), HasSubstr("parameters of worker/0 were changed after its last average"));
  Logged again;
  EXPECT_THAT(errors_of(with_warnings({1}),
                        [](Job& job) {
                          Net net = net_of(job);
                          for (auto& parameter : net->parameters()) parameter.set_requires_grad(false);
                          Trainer trainer(job, net, sgd_rule());
                          const Tensor other = torch::ones({1}, torch::requires_grad());
                          trainer.step([&] { return (other * loss_at(net, 0)).sum(); }, 8);
                        }),
              Each(""));
  EXPECT_THAT(again.end(), HasSubstr("the loss does not depend on any trained parameter"));
}

// The others have gone on to their end: what the chief gets is its own part.
TEST(TrainerWarnings, AnEvaluationWithoutSomeWorkersIsSaid) {
  Logged logged;
  const auto errors = errors_of(with_warnings(with_server("ps-async")), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    trainer.step([&] { return loss_at(net, 0); }, 8);
    trainer.finish_epoch();
    if (!job.is_chief()) return;
    for (int i = 0; i < 2; ++i) {
      const auto sums = trainer.evaluate([](Sums& mine) { mine["n"] = 1; });
      EXPECT_EQ(sums.at("n"), 1);
    }
  });
  EXPECT_THAT(errors, Each(""));
  const std::string text = logged.end();
  const std::string said = "evaluate() adds up what 1 of 2 workers bring: worker/1";
  const size_t first = text.find(said);
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find(said, first + 1), std::string::npos);
}

// Worker 1 has not taken as many steps as the chief, and so another model.
TEST(TrainerWarnings, AnEvaluationOfWorkersThatWereNotAveragedIsSaid) {
  Logged logged;
  const auto errors = errors_of(with_warnings(with_server("ps-local")), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
    for (int i = 0; i < 2; ++i) trainer.evaluate([](Sums& mine) { mine["n"] = 1; });
    trainer.finish_epoch();
    trainer.evaluate([](Sums& mine) { mine["n"] = 1; });
  });
  EXPECT_THAT(errors, Each(""));
  const std::string text = logged.end();
  for (const char* worker : {"worker/0", "worker/1"}) {
    const std::string said =
        fmt::format("{} evaluates its own parameters, 3 steps after the last average", worker);
    const size_t first = text.find(said);
    ASSERT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find(said, first + 1), std::string::npos) << text;
  }
}

TEST(TrainerWarnings, ALossThatCantBeDifferentiatedIsExplained) {
  const auto error_of = [](const std::function<Tensor(Net&)>& loss, bool is_frozen, bool is_off) {
    return errors_of({1},
                     [&](Job& job) {
                       Net net = net_of(job);
                       for (auto& parameter : net->parameters()) parameter.set_requires_grad(!is_frozen);
                       Trainer trainer(job, net, sgd_rule());
                       const torch::AutoGradMode mode(!is_off);
                       trainer.step([&] { return loss(net); }, 8);
                     })
        .front();
  };
  const auto plain = [](Net& net) { return loss_at(net, 0); };
  EXPECT_THAT(error_of([&](Net& net) { return plain(net).detach(); }, false, false),
              HasSubstr("has no gradient: it was detached"));
  EXPECT_THAT(error_of(plain, true, false), HasSubstr("trains no parameter, as all are frozen"));
  EXPECT_THAT(error_of(plain, false, true), HasSubstr("gradients are off here"));
  EXPECT_THAT(error_of([&](Net& net) { return torch::complex(plain(net), plain(net)); }, false, false),
              HasSubstr("the loss that was given to Trainer::step is complex"));
  const auto twice = [&](Net& net) {
    Tensor loss = plain(net);
    loss.backward();
    return loss;
  };
  EXPECT_THAT(error_of(twice, false, false),
              HasSubstr("let the function only return the loss, and not call backward() itself"));
}

// The loop of before, beside a Trainer that nobody asks to train.
TEST(TrainerWarnings, AnEpochWithoutAStepIsSaid) {
  for (const auto& setup : kInVain) {
    Logged logged;
    const auto errors = errors_of(with_warnings(setup), [](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      trainer.finish_epoch();
      trainer.finish_epoch();
    });
    EXPECT_THAT(errors, Each(""));
    const std::string text = logged.end();
    const std::string said = "finish_epoch(): no worker has called Trainer::step() so far";
    ASSERT_THAT(text, HasSubstr(said));
    EXPECT_EQ(text.find(said, text.find(said) + 1), std::string::npos) << text;
  }
}

// Too few gradients for a step are no loop without steps.
TEST(TrainerWarnings, AnEpochWithFewerGradientsThanAStepNeedsIsNotOneWithoutAStep) {
  auto setup = with_server("ps-sync");
  setup.configure = [](Config& config) {
    config.strategy = "ps-sync";
    config.replicas_to_aggregate = 100;
  };
  Logged logged;
  const auto errors = errors_of(with_warnings(setup), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
    trainer.finish_epoch();
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(logged.end(), Not(HasSubstr("no worker has called Trainer::step()")));
}

TEST(TrainerWarnings, AChangeOfModeBehindTheLastStepIsSaid) {
  auto setup = with_server("ps-sync");
  setup.configure = [](Config& config) {
    config.strategy = "ps-sync";
    config.switches = "0:ps-sync,1000:ps-async";
  };
  Logged logged;
  const auto errors = errors_of(with_warnings(setup), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule(), {.max_steps = 4});
    while (trainer.step([&] { return loss_at(net, 0); }, 8).goes_on) continue;
    trainer.finish_epoch();
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(logged.end(),
              HasSubstr("ps-async from step 1000 on has no effect, since training ends at step 4"));
}

TEST(TrainerWarnings, APrecisionThatComesTooLateIsSaid) {
  for (const bool outside : {true, false}) {
    Logged logged;
    auto setup = testing::Setup{.workers = 1};
    setup.precision = "bf16";
    const auto errors = errors_of(with_warnings(setup), [&](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 3; ++step) {
        const Tensor early = outside ? net(random({4, 6}, 1)) : Tensor();
        trainer.step([&] { return (outside ? early : net(random({4, 6}, 1))).square().mean(); }, 4);
      }
      trainer.finish_epoch();
    });
    EXPECT_THAT(errors, Each(""));
    const std::string said = "--precision bf16 has no effect on what is computed before Trainer::step()";
    const std::string text = logged.end();
    EXPECT_EQ(text.find(said) != std::string::npos, outside) << text;
  }
}

const std::vector<Setup> kMoving = {Setup{1}, Setup{2}, with_server("ps-sync")};

TEST(TrainerWarnings, AViewOfAParameterThatTrainingLeavesBehindIsSaid) {
  const std::string said = "the memory of the parameter fc1.weight is also that of another tensor";
  for (const auto& setup : kMoving) {
    for (const bool has_view : {true, false}) {
      Logged logged;
      const auto errors = errors_of(with_warnings(setup), [&](Job& job) {
        Net net = net_of(job);
        const Tensor view = has_view ? net->fc1->weight.detach() : Tensor();
        const Tensor same = net->fc2->weight;
        Trainer trainer(job, net, sgd_rule());
        for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
        trainer.finish_epoch();
        EXPECT_TRUE(same.equal(net->fc2->weight));
      });
      EXPECT_THAT(errors, Each(""));
      const std::string text = logged.end();
      if (has_view) {
        EXPECT_THAT(text, HasSubstr(said));
      } else {
        EXPECT_THAT(text, Not(HasSubstr(said)));
      }
    }
  }
}

TEST(TrainerWarnings, AParameterThatIsAViewOfNobodysTensorIsNotSaid) {
  struct Transposed : torch::nn::Module {
    Transposed() { w = register_parameter("w", torch::ones({3, 4}).t()); }
    Tensor w;
  };
  Logged logged;
  const auto errors = errors_of(with_warnings({2}), [&](Job& job) {
    Transposed net;
    Trainer trainer(job, net, sgd_rule());
    trainer.step([&] { return net.w.sum(); }, 8);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(logged.end(), Not(HasSubstr("also that of another tensor")));
}

Setup with_ring(Setup setup) {
  setup.configure = [configure = setup.configure](Config& config) {
    if (configure) configure(config);
    config.read_environment({{"MUSTER_ALGORITHM", "ring"}});
  };
  return with_warnings(setup);
}

TEST(TrainerWarnings, SettingsOfCollectivesThatTrainingDoesNotUseAreSaid) {
  const auto said = [](const auto& setup) {
    Logged logged;
    EXPECT_THAT(errors_of(setup,
                          [](Job& job) {
                            Net net = net_of(job);
                            Trainer trainer(job, net, sgd_rule());
                            trainer.step([&] { return loss_at(net, 0); }, 8);
                            trainer.finish_epoch();
                          }),
                Each(""));
    return logged.end();
  };
  EXPECT_THAT(said(with_ring({2})),
              HasSubstr("--algorithm ring: workers that share memory train without collectives"));
  EXPECT_THAT(said(with_ring(with_server("ps-sync"))),
              HasSubstr("--algorithm ring: training with parameter servers uses no collectives"));
  EXPECT_EQ(said(with_ring({2, false})), "");
}

TEST(TrainerWarnings, ALayerThatIsReplacedWithoutBeingRegisteredIsSaid) {
  Logged logged;
  const auto errors = errors_of(with_warnings({2}), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 9; ++step) {
      if (step == 5) net->fc2 = torch::nn::Linear(8, 3);
      trainer.step([&] { return loss_at(net, step); }, 8);
    }
    trainer.finish_epoch();
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(logged.end(), HasSubstr("that requires a gradient, and that no Trainer trains"));
}

TEST(TrainerWarnings, ALearningRateThatStaysAt0IsSaid) {
  const auto said = [](const TrainerOptions& options) {
    Logged logged;
    EXPECT_THAT(errors_of(with_warnings({2}),
                          [&](Job& job) {
                            Net net = net_of(job);
                            Trainer trainer(job, net, sgd_rule(), options);
                            for (int step = 0; step < 5; ++step)
                              trainer.step([&] { return loss_at(net, step); }, 8);
                            trainer.finish_epoch();
                          }),
                Each(""));
    return logged.end();
  };
  const std::string text = "the learning rate is 0 in step 4 and the one before, after 48 samples";
  // As one who counts the samples of one worker: the schedule is over after 32.
  EXPECT_THAT(said({.samples_per_epoch = 32, .schedule = linear_decay(epochs(1))}), HasSubstr(text));
  EXPECT_THAT(said({.samples_per_epoch = 80, .schedule = linear_decay(epochs(1))}),
              Not(HasSubstr("rate is 0")));
  EXPECT_THAT(said({.schedule = warmup(samples(64), constant_rate(), 0)}), Not(HasSubstr("rate is 0")));
}

// As one of the user's, whose options have no rate that libtorch could ask for.
struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {};

struct Sign : torch::optim::Optimizer {
  explicit Sign(std::vector<Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<SignOptions>()) {}
  Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard guard;
    for (auto& group : param_groups()) {
      for (auto& parameter : group.params()) parameter.sub_(parameter.grad().sign(), 0.01);
    }
    return {};
  }
};

TEST(TrainerWarnings, ARateThatAnOptimizerDoesNotTellIsNotTakenFor0) {
  Logged logged;
  EXPECT_THAT(errors_of(with_warnings({2}),
                        [](Job& job) {
                          Net net = net_of(job);
                          Sign sign(net->parameters());
                          Trainer trainer(job, net, sign);
                          for (int step = 0; step < 5; ++step)
                            trainer.step([&] { return loss_at(net, step); }, 8);
                          trainer.finish_epoch();
                        }),
              Each(""));
  EXPECT_THAT(logged.end(), Not(HasSubstr("rate is 0")));
}

// Its gradients are numbers all the same.
TEST(TrainerWarnings, ALossThatIsNotANumberIsSaid) {
  Logged logged;
  const auto errors = errors_of(with_warnings({2}), [](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 2; ++step)
      trainer.step([&] { return loss_at(net, step) + std::numeric_limits<double>::quiet_NaN(); }, 8);
    trainer.finish_epoch();
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(logged.end(),
              AllOf(HasSubstr("the loss of step 1 is nan on worker/0"), HasSubstr("nan on worker/1")));
}

// The parameters of other Trainers are trained, and an input that requires a gradient is meant so.
TEST(TrainerWarnings, ALayerThatIsNotRegisteredIsSaid) {
  const std::string said = "the loss depends on a tensor of the shape [3, 3] that requires a gradient";
  for (const bool forgets : {true, false}) {
    Logged logged;
    const auto errors = errors_of(with_warnings({2}), [&](Job& job) {
      Net net = net_of(job);
      Net second = net_of(job);
      torch::nn::Linear last(torch::nn::LinearOptions(3, 3).bias(false));
      Trainer trainer(job, net, sgd_rule());
      Trainer other(job, second, sgd_rule());
      for (int step = 0; step < 3; ++step) {
        const Batch batch(8 * step, 8 * step + 8);
        const auto loss = [&] {
          const Tensor input = batch.x.clone().requires_grad_(true);
          const Tensor sum = net(input) + second(input);
          return (forgets ? last(sum) : sum).square().mean();
        };
        trainer.step(loss, 8);
        other.step(loss, 8);
      }
      trainer.finish_epoch();
      other.finish_epoch();
    });
    EXPECT_THAT(errors, Each(""));
    const std::string text = logged.end();
    if (forgets) {
      EXPECT_THAT(text, HasSubstr(said));
    } else {
      EXPECT_THAT(text, Not(HasSubstr("requires a gradient")));
    }
  }
}

TEST(TrainerWarnings, CopiesThatHaveComeApartAreSaid) {
  for (const bool frozen : {false, true}) {
    Logged logged;
    const auto errors = errors_of(with_warnings({2}), [&](Job& job) {
      Net net = net_of(job);
      net->fc1->weight.set_requires_grad(!frozen);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
      std::optional<Trainer> trainer;
      if (frozen) {
        trainer.emplace(job, net, sgd_rule());
      } else {
        trainer.emplace(job, net, optimizer);
      }
      for (int step = 0; step < 3; ++step) {
        trainer->step([&] { return loss_at(net, step); }, 8);
        const torch::NoGradGuard no_grad;
        if (step == 1 && job.rank() == 1) net->fc1->weight.mul_(0.9);
      }
      trainer->finish_epoch();
      trainer->evaluate([](Sums&) {});
    });
    EXPECT_THAT(errors, Each(""));
    const std::string text = logged.end();
    const std::string said = "the parameter fc1.weight is not the same on all workers any more";
    EXPECT_THAT(text, HasSubstr(said));
    EXPECT_EQ(text.find(said), text.rfind(said)) << text;
  }
}

TEST(TrainerWarnings, AFrozenParameterThatDiffersIsNamedWithServersToo) {
  for (const auto& strategy : kServerStrategies) {
    Logged logged;
    const auto errors = errors_of(with_warnings(with_server(strategy)), [](Job& job) {
      Net net = net_of(job);
      net->fc1->weight.set_requires_grad(false);
      Trainer trainer(job, net, sgd_rule());
      for (int step = 0; step < 3; ++step) {
        trainer.step([&] { return loss_at(net, step); }, 8);
        const torch::NoGradGuard no_grad;
        if (job.rank() == 1) net->fc1->weight.mul_(0.5);
      }
      trainer.finish_epoch();
      trainer.evaluate([](Sums&) {});
    });
    EXPECT_THAT(errors, Each(""));
    EXPECT_THAT(logged.end(), HasSubstr("the parameter fc1.weight is not the same on all workers any more"))
        << strategy;
  }
}

TEST(TrainerWarnings, CopiesThatAreTheSameAreNotSaidToDiffer) {
  for (const bool frozen : {false, true}) {
    Logged logged;
    on_workers(with_warnings({3}), [&](Job& job) {
      Net net = net_of(job);
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      net->register_parameter("mask", torch::tensor({0.0, -kInfinity, kInfinity, kNan}),
                              /*requires_grad=*/false);
      if (frozen) net->fc1->weight.set_requires_grad(false);
      torch::optim::Adam optimizer(net->parameters());
      Trainer trainer(job, net, optimizer);
      for (int step = 0; step < 5; ++step) {
        trainer.step([&] { return loss_of(net, {8 * job.rank(), 8 * job.rank() + 8}); }, 8);
        const torch::NoGradGuard no_grad;
        net->fc1->weight.mul_(0.9);
      }
      trainer.finish_epoch();
      trainer.evaluate([](Sums&) {});
      return 0;
    });
    EXPECT_THAT(logged.end(), Not(HasSubstr("is not the same")));
  }
}

TEST(TrainerWarnings, ChangesInTheMiddleOfAStepAreSaid) {
  for (const bool loads : {false, true}) {
    Logged logged;
    on_workers(with_warnings({2}), [&](Job& job) {
      Net net = net_of(job);
      net->fc1->bias.set_requires_grad(loads);
      Trainer trainer(job, net, sgd_rule(), {.accumulate = 2});
      for (int batch = 0; batch < 6; ++batch) {
        if (batch == 3 && loads) net->fc1->bias.set_data(random({8}, 50));
        if (batch == 3) net->fc1->bias.set_requires_grad(true);
        trainer.step([&] { return loss_at(net, batch); }, 8);
      }
      trainer.finish_epoch();
      return 0;
    });
    EXPECT_THAT(
        logged.end(),
        HasSubstr(
            loads ? "the parameter fc1.bias was given other memory, as by torch::load, Module::to or "
                    "set_data, after 1 of the 2 batches that make step 2 (accumulate): what they change is"
                  : "the parameter fc1.bias is trained now, and was not before, after 1 of the 2 batches"));
  }
}

TEST(TrainerWarnings, AProgressLineWithoutSamplesIsSaid) {
  Logged logged;
  on_workers(with_warnings({1}), [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule(), {.epochs = 1, .samples_per_epoch = 24});
    trainer.show_progress();
    for (int step = 0; step < 3; ++step) trainer.step([&] { return loss_at(net, step); });
    return 0;
  });
  EXPECT_THAT(logged.end(), HasSubstr("the progress line counts samples: give Trainer::step() the size"));
}

TEST(TrainerWarnings, ChangesThatDifferBetweenHostsAreSaid) {
  for (const bool differ : {true, false}) {
    Logged logged;
    on_workers(with_warnings({.workers = 2, .shared_memory = false}), [&](Job& job) {
      Net net = net_of(job);
      Trainer trainer(job, net, sgd_rule());
      trainer.step([&] { return loss_at(net, 0); }, 8);
      trainer.change_parameters([&] { net->parameters()[0].add_(differ && job.rank() == 1 ? 1.0 : 2.0); });
      trainer.finish_epoch();
      return 0;
    });
    const auto said =
        AllOf(HasSubstr("is not the same on all workers any more: of what change_parameters() changed"),
              HasSubstr("each host has a copy"));
    if (differ) {
      EXPECT_THAT(logged.end(), said);
    } else {
      EXPECT_THAT(logged.end(), Not(HasSubstr("not the same")));
    }
  }
}

TEST(TrainerWarnings, RatesThatDifferAreSaidByTheServer) {
  for (const bool differs : {true, false}) {
    Logged logged;
    on_workers(with_warnings(with_server("ps-sync")), [&](Job& job) {
      Net net = net_of(job);
      double factor = 1;
      Trainer trainer(job, net, sgd_rule(), {.schedule = [&](const Position&) { return factor; }});
      for (int step = 0; step < 4; ++step) {
        if (step == 2) factor = differs && job.rank() == 1 ? 0.5 : 0.25;
        trainer.step([&] { return loss_at(net, step); }, 8);
      }
      trainer.finish_epoch();
      return 0;
    });
    const std::string text = logged.end();
    if (differs) {
      EXPECT_THAT(text, AllOf(HasSubstr("the learning rates that workers give for update 3 differ"),
                              HasSubstr("0.05 of worker/1"), HasSubstr("0.025 of worker/0")));
    } else {
      EXPECT_THAT(text, Not(HasSubstr("rates")));
    }
  }
}

TEST(TrainerWarnings, AWorkerThatLeavesInTheMiddleIsSaid) {
  Logged logged;
  on_workers(with_log(with_server("ps-async"), LogLevel::kInfo), [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int step = 0; step < 4; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
    if (job.rank() == 0) trainer.finish_epoch();
    return 0;
  });
  EXPECT_THAT(logged.end(),
              AllOf(HasSubstr("worker/1 ends training after step"),
                    HasSubstr("without finish_epoch(): with parameter servers the others go on"),
                    Not(HasSubstr("worker/0 ends training"))));
}

// The chief, who would save the model, has fewer epochs than the other.
TEST(TrainerWarnings, AWorkerWithFewerEpochsIsSaidByTheServer) {
  Logged logged;
  on_workers(with_log(with_server("ps-sync"), LogLevel::kInfo), [&](Job& job) {
    Net net = net_of(job);
    Trainer trainer(job, net, sgd_rule());
    for (int epoch = 0; epoch < (job.rank() == 0 ? 1 : 3); ++epoch) {
      for (int step = 0; step < 2; ++step) trainer.step([&] { return loss_at(net, step); }, 8);
      trainer.finish_epoch();
    }
    return 0;
  });
  EXPECT_THAT(logged.end(),
              AllOf(HasSubstr("worker/0 has left after step "), Not(HasSubstr("worker/1 has left"))));
}

}  // namespace
}  // namespace muster::detail
