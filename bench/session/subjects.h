#pragma once

// The table of what `muster bench session` compares: the cases, the subjects, and by which command line each
// is started. Pure, but for the question what is installed.
//
//   case       of              what a run is                                     subjects
//   operators                  100 operators on four floats, in this process     muster, loop
//   cnn                        a step of training a CNN, in this process         muster, loop, loop-kept
//   executor   16x1024 data    nodes that do nothing, in this process            muster
//   step       2               a step in which none of 2 tasks does anything     muster, grpc
//   transfer   64M             a tensor to another task, one added, and back     muster, grpc, torch-rpc
//   graph      100000          from an empty graph of so many nodes to a result  muster
//   pipeline                   a step of a model of two equal stages             zero-bubble, 1f1b, one-task
//   replicas                   a step of two workers and a parameter server      muster, ps-sync
//
// The subjects of one case:
//
//   muster       a session in the program itself, or on a cluster that `muster run` starts
//   loop         the same operators, or the same model with torch::optim, in a plain libtorch loop
//   loop-kept    the same with a heap that keeps what was freed: glibc gives the memory of large tensors back
//                to the system in each step, and faults it in again, where a session keeps it
//   grpc         gRPC over Unix sockets: a unary call to each task, all at once
//   torch-rpc    PyTorch's RPC over TensorPipe, with shared memory
//   zero-bubble  a pipeline on two tasks with this schedule; 1f1b likewise
//   one-task     the same model on one task
//   ps-sync      the same model with a Trainer, under `muster run --strategy ps-sync`
//
// All have one thread a task, and the variables for BLAS that `muster run` chooses.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/driver/peers.h"
#include "bench/driver/subject.h"

namespace muster::detail::bench::session {

/// What is measured at one time.
struct Case {
  std::string name;    ///< "step"
  std::string of;      ///< which of this name, as the table above has it: "2"; empty where there is one only
  int tasks = 1;       ///< of the cluster; 0: none, all is in one process
  double items = 0;    ///< how many of what is counted a run has; 0: nothing is
  std::string unit{};  ///< what is counted: "nodes"

  bool is_training() const { return name == "cnn" || name == "pipeline" || name == "replicas"; }
};

/// The names of all cases.
const std::vector<std::string>& case_names();

struct Choice {
  std::vector<std::string> names;   ///< of cases
  std::vector<int> tasks;           ///< of step
  std::vector<std::string> shapes;  ///< of executor: "16x1024"
  std::vector<int64_t> sizes;       ///< of transfer, in bytes; are rounded up to whole elements
  std::vector<int64_t> nodes;       ///< of graph; are rounded down to thousands
};

/// In the order of the table.
std::vector<Case> cases(const Choice& choice);

struct Settings {
  std::vector<std::string> peers;             ///< as choose_from() gives them
  std::filesystem::path programs;             ///< the folder of muster and the peers
  std::filesystem::path baseline = {};        ///< the same of another build; empty: none
  std::string python;                         ///< that has torch
  std::string allocator;                      ///< a library that is loaded before torch-rpc's; empty: none
  std::map<std::string, std::string> tuning;  ///< variables of all
};

/// Muster first.
std::vector<SubjectCommand> subjects(const Settings& settings, const Case& of);

/// loop, grpc and torch-rpc, for choose_from(). `python` is empty when there is none with torch.
std::vector<PeerState> peers(const Surroundings& surroundings, const std::string& python);

}  // namespace muster::detail::bench::session
