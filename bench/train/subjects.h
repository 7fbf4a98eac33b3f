#pragma once

// The table of what `muster bench train` compares: the models, the subjects, and by which command line each
// is started. Pure, but for the question what is installed.
//
//   muster         the Trainer, under `muster run`
//   ddp            PyTorch's DistributedDataParallel over Gloo at its best; one worker: a loop in Python
//   ddp-installed  the same as it comes: no variable, no flag; several workers only
//   loop           a plain libtorch loop in C++ with torch::optim; one worker
//   alone          several of these side by side that know nothing of each other: what the hardware allows
//
// All but ddp-installed have one thread a worker, and the variables for BLAS that `muster run` chooses.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/driver/peers.h"
#include "bench/driver/subject.h"

namespace muster::detail::bench::train {

/// models.h has the models themselves.
struct Model {
  std::string name;  ///< "a"
  std::string title;
  int64_t batch = 1;  ///< of one worker
};

const std::vector<Model>& models();
const std::vector<std::string>& optimizers();

struct Settings {
  std::vector<std::string> peers;             ///< as choose_from() gives them
  bool floor = false;                         ///< also measure "alone"
  std::filesystem::path programs;             ///< the folder of muster and the peers
  std::filesystem::path baseline = {};        ///< the same of another build; empty: none
  std::string python;                         ///< that has torch
  std::string allocator;                      ///< a library that is loaded before ddp's; empty: none
  std::map<std::string, std::string> tuning;  ///< variables of all but ddp-installed

  /// Muster's own ways to train, to be compared with each other: "allreduce", "ps-async", "ps-sync:1" (of how
  /// many gradients), "ps-ssp:4" (the staleness), "ps-local:8" (steps between averages). Empty: allreduce.
  std::vector<std::string> strategies;
  std::string slow;  ///< as --slow of `muster run`
};

/// The flags of `muster run` for one of Settings::strategies. Throws InvalidArgument.
std::vector<std::string> strategy_flags(const std::string& strategy);

/// All subjects for each of these numbers of workers: Muster first.
std::vector<SubjectCommand> subjects(const Settings& settings, const Model& model,
                                     const std::string& optimizer, const std::vector<int>& workers);

/// ddp, ddp-installed and loop, for choose_from(). `python` is empty when there is none with torch.
std::vector<PeerState> peers(const Surroundings& surroundings, const std::string& python);

}  // namespace muster::detail::bench::train
