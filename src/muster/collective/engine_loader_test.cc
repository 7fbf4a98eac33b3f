#include "muster/collective/engine_loader.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::string& engine, const std::vector<std::string>& folders) {
  GroupState state;
  try {
    load_engine({.engine = engine}, state, folders);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(EngineLoader, AnUnknownNameIsRefusedWithTheOnesThereAre) {
  EXPECT_THAT(error_of("gluo", engine_folders()),
              AllOf(HasSubstr("there is no engine 'gluo'"), HasSubstr("did you mean gloo")));
  EXPECT_THROW(Communicator({.engine = "pigeon"}), InvalidArgument);
}

TEST(EngineLoader, AnEngineThatWasNotBuiltSaysWhatIsMissing) {
  EXPECT_THAT(error_of("mpi", {"/nowhere"}),
              AllOf(HasSubstr("the engine 'mpi' was not found"), HasSubstr("/nowhere"),
                    HasSubstr("install libopenmpi-dev and build again")));
  EXPECT_THAT(error_of("gloo", {"/nowhere"}), HasSubstr("install libgloo-dev and libtorch-dev"));
}

TEST(EngineLoader, AFileThatIsNoModuleIsAnErrorThatNamesIt) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "muster_engine_loader_test";
  std::filesystem::create_directories(folder);
  const auto file = folder / "libmuster_engine_mpi.so";
  std::ofstream(file) << "no module";
  EXPECT_THAT(error_of("mpi", {folder}), AllOf(HasSubstr("can't be loaded"), HasSubstr(file.string())));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace muster::detail
