#include "muster/other_program.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

struct Word {
  const char* word;
  const char* program;
  const char* help;
  bool keeps_word;  // the program has several
};

constexpr std::array kWords = {
    Word{"bench", "muster-bench",
         "measure collectives, training, parameter servers or sessions beside other libraries (muster-bench)",
         false},
    Word{"server", "muster-graph", "a task of a cluster that runs graphs, or stop one (muster-graph)", true},
    Word{"graph", "muster-graph",
         "look at a graph, at where its nodes would run, or at a pipeline's timetable (muster-graph)", true}};

const Word* find_word(std::string_view text) {
  const auto* found =
      std::find_if(kWords.begin(), kWords.end(), [text](const Word& word) { return text == word.word; });
  return found == kWords.end() ? nullptr : found;
}

}  // namespace

OtherProgram::OtherProgram(CLI::App& parent) {
  for (const auto& word : kWords) parent.add_subcommand(word.word, word.help);
}

bool OtherProgram::chosen(int argc, char** argv) {
  return argc > 1 && find_word(argv[1]) != nullptr;
}

void OtherProgram::run(char** argv) {
  const Word& word = *find_word(argv[1]);
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string program = folder / word.program;
  if (!std::filesystem::exists(program)) {
    raise<InvalidArgument>(
        "{0}: there is no {1} in {2}. It is not installed: in Muster's sources, build it with "
        "scripts/build release {1} (or cmake --build build/release --target {1}), and use "
        "the muster beside it",
        word.word, word.program, folder.string());
  }
  char** arguments = word.keeps_word ? argv : argv + 1;
  arguments[0] = const_cast<char*>(program.c_str());
  execv(program.c_str(), arguments);
  raise<SystemError>("{}: {} can't be executed: {}", word.word, program, describe_errno(errno));
}

}  // namespace muster::detail
