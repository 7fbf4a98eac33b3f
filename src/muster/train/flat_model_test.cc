#include "muster/train/flat_model.h"

#include <cstdlib>

#include "muster/base/error.h"
#include "muster/train/trainer_test.h"

namespace muster::detail {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const FlatModel& model) {
  std::vector<std::string> names;
  for (const auto& info : model.infos()) names.push_back(info.name);
  return names;
}

std::shared_ptr<std::byte> memory_of(const FlatLayout& layout) {
  return {static_cast<std::byte*>(std::aligned_alloc(64, layout.bytes())), std::free};
}

TEST(FlatModel, HasTheTrainedParametersEachOnce) {
  torch::nn::Module module;
  torch::nn::Linear tied(2, 3);
  tied->bias.set_requires_grad(false);
  module.register_module("a", tied);
  module.register_module("b", tied);
  module.register_parameter("c", torch::zeros({4}, torch::kBFloat16));
  module.register_buffer("d", torch::zeros({1}));
  const FlatModel model(module);
  EXPECT_THAT(names_of(model), ::testing::UnorderedElementsAre("c", "a.weight"));
  EXPECT_THAT(model.signature(), HasSubstr("frozen parameter b.bias Float [3]\n"));
  EXPECT_THAT(model.signature(), HasSubstr("buffer d Float [1]\n"));
  EXPECT_EQ(model.buffers().size(), 1U);
  EXPECT_EQ(model.tensors().size(), 6U);  // those of the tied module twice
}

TEST(FlatModel, RefusesTypesThatCannotBeTrained) {
  torch::nn::Module module;
  module.register_parameter("z", torch::zeros({2}, torch::kComplexFloat));
  try {
    const FlatModel model(module);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("the parameter z is of type ComplexFloat"));
  }
}

TEST(FlatModel, NotesTheOrderInWhichGradientsCome) {
  Net net;
  FlatModel model(*net);
  std::vector<std::string> seen;
  model.watch([&](size_t parameter) { seen.push_back(model.info(parameter).name); });
  net->fc2(torch::ones({1, 8})).sum().backward();
  EXPECT_EQ(seen.size(), 2U);
  const auto order = model.order();  // those without a gradient last, from the last to the first
  EXPECT_THAT(order, ::testing::AnyOf(ElementsAre(2, 3, 1, 0), ElementsAre(3, 2, 1, 0)));
  model.reorder({3, 2, 1, 0});
  EXPECT_THAT(names_of(model), ElementsAre("fc2.bias", "fc2.weight", "fc1.bias", "fc1.weight"));
  seen.clear();
  net->fc1(torch::ones({1, 6})).sum().backward();
  EXPECT_THAT(seen, ::testing::UnorderedElementsAre("fc1.weight", "fc1.bias"));
}

TEST(FlatModel, NobodyIsCalledOnceItIsGone) {
  Net net;
  int calls = 0;
  {
    FlatModel model(*net);
    model.watch([&](size_t) { ++calls; });
    net(torch::ones({1, 6})).sum().backward();
  }
  EXPECT_EQ(calls, 4);
  net(torch::ones({1, 6})).sum().backward();
  EXPECT_EQ(calls, 4);
}

TEST(FlatModel, ItsParametersAreViewsOfTheMemoryUntilTheyMoveBack) {
  Net net;
  fill(*net);
  const auto before = values_of(*net);
  FlatModel model(*net);
  const FlatLayout layout(model.infos());
  const auto memory = memory_of(layout);
  model.move_to(layout, memory, /*fill=*/true);
  expect_near(values_of(*net), before, 0);
  auto* first = reinterpret_cast<float*>(memory.get() + layout.offset(0));
  EXPECT_EQ(net->fc1->weight.data_ptr(), first);
  EXPECT_TRUE(net->fc1->weight.is_leaf());
  EXPECT_TRUE(net->fc1->weight.requires_grad());
  *first = 42;
  EXPECT_FLOAT_EQ(net->fc1->weight[0][0].item<float>(), 42);
  model.move_back();
  *first = 43;
  EXPECT_FLOAT_EQ(net->fc1->weight[0][0].item<float>(), 42);
}

TEST(FlatModel, KeepsTheMemoryWhileAParameterIsThere) {
  Net net;
  std::weak_ptr<std::byte> watched;
  {
    FlatModel model(*net);
    const FlatLayout layout(model.infos());
    const auto memory = memory_of(layout);
    watched = memory;
    model.move_to(layout, memory, /*fill=*/true);
  }
  EXPECT_FALSE(watched.expired());
  net = nullptr;
  EXPECT_TRUE(watched.expired());
}

TEST(FlatModel, GivesGradientsDenseAndWithTheParametersStrides) {
  torch::nn::Module module;
  auto parameter = module.register_parameter("p", torch::zeros({2, 3}));
  FlatModel model(module);
  EXPECT_EQ(model.gradient(0), nullptr);
  parameter.mutable_grad() = torch::arange(6).to(torch::kFloat32).view({3, 2}).t();
  const auto* transposed = static_cast<const float*>(model.gradient(0));
  EXPECT_THAT(std::vector<float>(transposed, transposed + 6), ElementsAre(0, 2, 4, 1, 3, 5));
  parameter.mutable_grad() =
      torch::sparse_coo_tensor(torch::tensor({{1}, {2}}), torch::tensor({5.0F}), {2, 3});
  const auto* sparse = static_cast<const float*>(model.gradient(0));
  EXPECT_THAT(std::vector<float>(sparse, sparse + 6), ElementsAre(0, 0, 0, 0, 0, 5));
  parameter.mutable_grad() = torch::ones({2, 3});
  EXPECT_EQ(model.gradient(0), parameter.grad().data_ptr()) << "as it is, where it is right";
  model.clear_gradients();
  EXPECT_EQ(model.gradient(0), nullptr);
  EXPECT_FALSE(parameter.grad().defined());
}

TEST(FlatModel, SeesThatParametersWereAddedOrFrozenOrReplaced) {
  Net net;
  const FlatModel model(*net);
  EXPECT_FALSE(model.has_changed());
  net->register_buffer("buffer", torch::zeros({1}));
  EXPECT_FALSE(model.has_changed());
  net->fc1->bias.set_requires_grad(false);
  EXPECT_TRUE(model.has_changed());
  net->register_parameter("other", torch::zeros({8}));
  EXPECT_TRUE(model.has_changed()) << "as many as before, but not the same";
}

TEST(FlatModel, AParameterIsHeldWhileTheGraphHasItOrItsMemory) {
  Net net;
  FlatModel model(*net);
  model.note_references_after();
  EXPECT_FALSE(model.held(2));
  auto loss = net->fc2(torch::ones({1, 8}).requires_grad_()).sum();
  EXPECT_TRUE(model.held(2));
  EXPECT_FALSE(model.held(0));
  loss.backward();
  EXPECT_FALSE(model.held(2)) << "backward has passed it";
  auto detached = torch::ones({1, 8}).requires_grad_().matmul(net->fc2->weight.detach().t());
  EXPECT_TRUE(model.held(2));
  detached.reset();
  EXPECT_FALSE(model.held(2));
}

TEST(FlatModel, AGraphThatIsThereBeforeAStepHoldsAParameterToo) {
  Net net;
  FlatModel model(*net);
  model.note_references_after();
  auto loss = net->fc2(torch::ones({1, 8}).requires_grad_()).sum();
  model.note_references_before();
  EXPECT_TRUE(model.held(2));
  loss.backward();
  EXPECT_FALSE(model.held(2));
}

TEST(FlatModel, GradientsThatAreSetAsideAreAddedToThoseThatCameSince) {
  torch::nn::Module module;
  auto parameter = module.register_parameter("a", torch::ones({2}));
  auto unused = module.register_parameter("b", torch::ones({2}));
  FlatModel model(module);
  (parameter * 3).sum().backward();
  model.set_gradients_aside();
  EXPECT_FALSE(parameter.grad().defined());
  ((parameter + unused) * 5).sum().backward();
  model.put_gradients_back();
  EXPECT_TRUE(parameter.grad().eq(8).all().item<bool>());
  EXPECT_TRUE(unused.grad().eq(5).all().item<bool>());
  model.set_gradients_aside();
  ((parameter + unused) * 7).sum().backward();
  model.drop_gradients();
  model.put_gradients_back();
  EXPECT_TRUE(parameter.grad().eq(8).all().item<bool>());
  model.set_gradients_aside();
  model.clear_gradients();
  model.put_gradients_back();
  EXPECT_FALSE(parameter.grad().defined());
}

TEST(FlatModel, AutogradRefusesAGraphWhoseParametersWereUpdated) {
  torch::nn::Module module;
  auto parameter = module.register_parameter("a", torch::ones({2}));
  auto unused = module.register_parameter("b", torch::ones({2}));
  FlatModel model(module);
  (parameter * 3).sum().backward();
  const auto square = parameter.square().sum();
  const auto other = unused.square().sum();
  model.note_update();
  EXPECT_THROW(square.backward(), c10::Error);
  EXPECT_NO_THROW(other.backward());
}

TEST(FlatModel, AParameterOfAnotherIsRefusedByItsNameAsLongAsThatLives) {
  Net net;
  torch::nn::Module other;
  other.register_module("head", net->fc2.ptr());
  {
    const FlatModel model(*net);
    try {
      const FlatModel refused(other);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("head.weight is trained by another Trainer"));
    }
    net->fc2->weight.set_requires_grad(false);
    net->fc2->bias.set_requires_grad(false);
    const FlatModel frozen(other);
    EXPECT_EQ(frozen.size(), 0U);
    net->fc2->weight.set_requires_grad(true);
    net->fc2->bias.set_requires_grad(true);
  }
  const FlatModel model(other);
  EXPECT_EQ(model.size(), 2U);
}

}  // namespace
}  // namespace muster::detail
