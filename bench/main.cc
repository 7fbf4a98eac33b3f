// muster-bench, which `muster bench` becomes: collectives, or by its first word training, parameter servers
// or sessions.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/collective/bench.h"
#include "bench/driver/driver.h"
#include "bench/ps/bench.h"
#include "bench/session/bench.h"
#include "bench/train/bench.h"
#include "muster/base/error.h"
#include "muster/base/flags.h"
#include "muster/collective/algorithm_choice.h"

namespace {

void check_nothing_before(const CLI::App& app, const std::string& word) {
  for (const auto* option : app.get_options()) {
    if (option->count() > 0)
      muster::detail::raise<muster::InvalidArgument>(
          "muster bench {}: its flags come after the word {}; {} stands before it", word, word,
          option->get_name());
  }
}

int run(int argc, char** argv) {
  CLI::App app(
      "measure a collective, training, parameter servers or sessions beside other libraries, on this machine",
      "muster bench");
  muster::detail::bench::collective::Bench collective;
  muster::detail::bench::train::Bench train;
  muster::detail::bench::ps::Bench ps;
  muster::detail::bench::session::Bench session;
  collective.add_flags(app);
  train.add_flags(*app.add_subcommand("train", "measure training instead, beside PyTorch's DDP"));
  ps.add_flags(
      *app.add_subcommand("ps", "measure pushes and pulls of parameters, beside gRPC and PyTorch's RPC"));
  session.add_flags(*app.add_subcommand(
      "session", "measure graphs and sessions, beside plain loops, gRPC and PyTorch's RPC"));
  if (const auto code = muster::detail::parse_flags(app, argc, argv)) return *code;
  for (const auto* subcommand : app.get_subcommands()) {
    const std::string word = subcommand->get_name();
    check_nothing_before(app, word);
    if (word == "train") return muster::detail::bench::run(train);
    if (word == "ps") return muster::detail::bench::run(ps);
    return muster::detail::bench::run(session);
  }
  if (collective.explains()) {
    for (const auto* option : app.get_options()) {
      if (option->count() > 0 && !option->check_name("--explain"))
        muster::detail::raise<muster::InvalidArgument>(
            "muster bench --explain measures nothing, and {} has no effect on it: leave it out",
            option->get_name());
    }
    fmt::print("{}", muster::detail::explain_choices());
    return 0;
  }
  return muster::detail::bench::run(collective);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const muster::InvalidArgument& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return 1;
  }
}
