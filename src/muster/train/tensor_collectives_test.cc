#include "muster/tensor_collectives.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/tensor/tensor_memory.h"
#include "muster/testing/rank_group.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::RankGroup;
using torch::Tensor;

const std::vector<torch::ScalarType> kAllTypes = {torch::kFloat32,  torch::kFloat64, torch::kFloat16,
                                                  torch::kBFloat16, torch::kInt8,    torch::kInt32,
                                                  torch::kInt64};

// How the elements of a tensor lie in memory. With kMixed, otherwise on each rank.
enum class Layout : uint8_t { kContiguous, kTransposed, kWithGaps, kMixed };
constexpr std::array kLayouts = {Layout::kContiguous, Layout::kTransposed, Layout::kWithGaps, Layout::kMixed};

// Runs the body on 1, 2 and 3 ranks, of one host and of as many.
void on_ranks(const std::function<void(Communicator&)>& body) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<int> apart(static_cast<size_t>(ranks));
    std::iota(apart.begin(), apart.end(), 0);
    for (const auto& hosts : {std::vector<int>{}, apart})
      EXPECT_THAT(RankGroup({.ranks = ranks, .hosts = hosts}).run(body), Each(""));
  }
}

// A value of rank `rank`: [6, 4], small integers, so that sums are exact in every type.
Tensor value(int rank, torch::ScalarType type = torch::kFloat32) {
  return (torch::arange(24).view({6, 4}) % 5 + rank).to(type);
}

Tensor values_of_all(const Communicator& ranks, torch::ScalarType type = torch::kFloat32) {
  std::vector<Tensor> all;
  for (int rank = 0; rank < ranks.size(); ++rank) all.push_back(value(rank, type));
  return torch::stack(all);
}

Tensor sum_of_all(const Communicator& ranks, torch::ScalarType type = torch::kFloat32) {
  return values_of_all(ranks).sum(0).to(type);
}

Tensor laid_out(const Tensor& tensor, Layout layout, int rank) {
  switch (layout == Layout::kMixed ? kLayouts[static_cast<size_t>(rank) % 3] : layout) {
    case Layout::kTransposed:
      return tensor.t().contiguous().t();
    case Layout::kWithGaps:
      return torch::stack({tensor, tensor}, 2).select(2, 1);
    default:
      return tensor.clone();
  }
}

// What lies in the gaps of a tensor with gaps.
Tensor gaps_of(const Tensor& tensor) {
  return tensor.as_strided(tensor.sizes(), tensor.strides(), 0);
}

void for_types_and_layouts(const std::function<void(Communicator&, const Tensor& mine)>& body) {
  on_ranks([&](Communicator& ranks) {
    for (const auto type : kAllTypes) {
      for (const auto layout : kLayouts)
        body(ranks, laid_out(value(ranks.rank(), type), layout, ranks.rank()));
    }
  });
}

void expect_equal(const Tensor& found, const Tensor& expected) {
  EXPECT_EQ(found.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(found.equal(expected)) << found << "\ninstead of\n" << expected;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

TEST(TensorCollectives, AnAllReduceChangesATensorOfAnyTypeAndLayout) {
  for_types_and_layouts([](Communicator& ranks, const Tensor& mine) {
    const auto strides = mine.strides().vec();
    all_reduce(ranks, mine);
    expect_equal(mine, sum_of_all(ranks, mine.scalar_type()));
    EXPECT_EQ(mine.strides(), strides);
  });
}

TEST(TensorCollectives, AnAllReduceLeavesWhatLiesBetweenTheElements) {
  on_ranks([](Communicator& ranks) {
    const Tensor mine = laid_out(value(ranks.rank()), Layout::kWithGaps, ranks.rank());
    all_reduce(ranks, mine);
    expect_equal(gaps_of(mine), value(ranks.rank()));
  });
}

TEST(TensorCollectives, AnAllReduceHasTheOperationsOfTheCommunicator) {
  on_ranks([](Communicator& ranks) {
    const Tensor all = values_of_all(ranks);
    for (const auto& [op, expected] : {std::pair(ReduceOp::kAverage, all.mean(0)),
                                       {ReduceOp::kMin, all.amin(0)},
                                       {ReduceOp::kMax, all.amax(0)},
                                       {ReduceOp::kProduct, all.prod(0)}}) {
      const Tensor mine = value(ranks.rank());
      all_reduce(ranks, mine, op);
      expect_equal(mine, expected);
    }
  });
}

TEST(TensorCollectives, ABroadcastGivesAllTheTensorOfTheRoot) {
  for_types_and_layouts([](Communicator& ranks, const Tensor& mine) {
    const int root = ranks.size() - 1;
    broadcast(ranks, mine, root);
    expect_equal(mine, value(root, mine.scalar_type()));
  });
}

TEST(TensorCollectives, AReduceChangesTheTensorOfTheRootOnly) {
  for_types_and_layouts([](Communicator& ranks, const Tensor& mine) {
    const int root = ranks.size() - 1;
    reduce(ranks, mine, ReduceOp::kSum, root);
    expect_equal(mine, ranks.rank() == root ? sum_of_all(ranks, mine.scalar_type())
                                            : value(ranks.rank(), mine.scalar_type()));
  });
}

TEST(TensorCollectives, AnAllGatherStacksTheTensorsOfAllRanks) {
  for_types_and_layouts([](Communicator& ranks, const Tensor& mine) {
    expect_equal(all_gather(ranks, mine), values_of_all(ranks, mine.scalar_type()));
    expect_equal(mine, value(ranks.rank(), mine.scalar_type()));
  });
}

TEST(TensorCollectives, AReduceScatterGivesEachRankItsPart) {
  for_types_and_layouts([](Communicator& ranks, const Tensor& mine) {
    const auto parts = sum_of_all(ranks, mine.scalar_type()).chunk(ranks.size());
    expect_equal(reduce_scatter(ranks, mine), parts[static_cast<size_t>(ranks.rank())]);
    expect_equal(mine, value(ranks.rank(), mine.scalar_type()));
  });
}

TEST(TensorCollectives, AnAllToAllSendsEachRankItsPart) {
  for_types_and_layouts([](Communicator& ranks, const Tensor& mine) {
    std::vector<Tensor> parts;
    for (int rank = 0; rank < ranks.size(); ++rank)
      parts.push_back(value(rank, mine.scalar_type()).chunk(ranks.size())[static_cast<size_t>(ranks.rank())]);
    expect_equal(all_to_all(ranks, mine), torch::cat(parts));
  });
}

TEST(TensorCollectives, AMessageGoesFromOneRankToAnother) {
  for_types_and_layouts([](Communicator& ranks, const Tensor& mine) {
    if (ranks.size() == 1) return;
    if (ranks.rank() == 0) send(ranks, mine, 1);
    if (ranks.rank() == 1) receive(ranks, mine, 0);
    expect_equal(mine, value(ranks.rank() == 1 ? 0 : ranks.rank(), mine.scalar_type()));
  });
}

TEST(TensorCollectives, ATensorMayHaveNoElementsAndNoDimensions) {
  on_ranks([](Communicator& ranks) {
    const Tensor none = torch::empty({0, 4});
    all_reduce(ranks, none);
    broadcast(ranks, none, 0);
    EXPECT_EQ(all_gather(ranks, none).sizes(), (std::vector<int64_t>{ranks.size(), 0, 4}));
    EXPECT_EQ(reduce_scatter(ranks, none).sizes(), none.sizes());
    EXPECT_EQ(all_to_all(ranks, none).sizes(), none.sizes());
    EXPECT_EQ(all_gather_async(ranks, none).wait().numel(), 0);

    const Tensor number = torch::tensor(static_cast<float>(ranks.rank()));
    expect_equal(all_gather(ranks, number), torch::arange(ranks.size()).to(torch::kFloat32));
    all_reduce(ranks, number, ReduceOp::kMax);
    EXPECT_EQ(number.item<int>(), ranks.size() - 1);
  });
}

TEST(TensorCollectives, AViewWithTheOppositeSignHasTheValuesThatItShows) {
  on_ranks([](Communicator& ranks) {
    const Tensor base = value(ranks.rank());
    const Tensor mine = torch::_neg_view(base);
    expect_equal(all_gather(ranks, mine), -values_of_all(ranks));
    all_reduce(ranks, mine);
    expect_equal(base, sum_of_all(ranks));
  });
}

TEST(TensorCollectives, AContiguousTensorIsNotCopied) {
  int copies = 0;
  TensorMemory memory([&](size_t bytes) {
    ++copies;
    return std::shared_ptr<void>(std::aligned_alloc(4096, bytes), &std::free);
  });
  const auto errors = RankGroup({.ranks = 1}).run([&](Communicator& ranks) {
    const Tensor tensor = torch::ones({50, 50});  // torch transposes larger ones through a buffer of its own
    const TensorMemory::Scope scope(memory);
    all_reduce(ranks, tensor);
    broadcast(ranks, tensor, 0);
    reduce(ranks, tensor, ReduceOp::kSum, 0);
    all_reduce_async(ranks, tensor).wait();
    EXPECT_EQ(copies, 0);
    const Tensor all = all_gather(ranks, tensor);
    EXPECT_EQ(copies, 1) << "only the result is new";
    all_reduce(ranks, tensor.t());
    EXPECT_EQ(copies, 2) << "a tensor with other strides is copied";
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TensorCollectives, AsynchronousOnesGiveTheirResultsInAnyOrder) {
  on_ranks([](Communicator& ranks) {
    for (const auto layout : kLayouts) {
      const auto mine = [&] { return laid_out(value(ranks.rank()), layout, ranks.rank()); };
      const Tensor reduced = mine();
      const Tensor from_root = mine();
      const Tensor to_root = mine();
      std::vector<TensorWork> works = {all_reduce_async(ranks, reduced),
                                       broadcast_async(ranks, from_root, 0),
                                       reduce_async(ranks, to_root, ReduceOp::kMax, 0),
                                       all_gather_async(ranks, mine()),
                                       reduce_scatter_async(ranks, mine()),
                                       all_to_all_async(ranks, mine())};
      const Tensor sum = sum_of_all(ranks);
      const Tensor last = value(ranks.size() - 1);
      std::vector<Tensor> parts;
      for (int rank = 0; rank < ranks.size(); ++rank)
        parts.push_back(value(rank).chunk(ranks.size())[static_cast<size_t>(ranks.rank())]);
      const std::vector<Tensor> expected = {sum,
                                            value(0),
                                            ranks.rank() == 0 ? last : value(ranks.rank()),
                                            values_of_all(ranks),
                                            sum.chunk(ranks.size())[static_cast<size_t>(ranks.rank())],
                                            torch::cat(parts)};
      for (size_t i = works.size(); i-- > 0;) {
        expect_equal(works[i].wait(Deadline::after(60s)), expected[i]);
        EXPECT_TRUE(works[i].done());
      }
      EXPECT_TRUE(works[0].wait().is_same(reduced));
      expect_equal(from_root, expected[1]);
      expect_equal(to_root, expected[2]);
    }
  });
}

TEST(TensorCollectives, AsynchronousMessagesCross) {
  on_ranks([](Communicator& ranks) {
    for (const auto layout : kLayouts) {
      std::vector<TensorWork> sent;
      std::vector<TensorWork> received;
      for (int peer = 0; peer < ranks.size(); ++peer) {
        if (peer == ranks.rank()) continue;
        sent.push_back(send_async(ranks, laid_out(value(ranks.rank()), layout, ranks.rank()), peer));
        received.push_back(receive_async(ranks, laid_out(torch::zeros({6, 4}), layout, ranks.rank()), peer));
      }
      for (size_t i = 0; i < received.size(); ++i) {
        const int peer = static_cast<int>(i) < ranks.rank() ? static_cast<int>(i) : static_cast<int>(i) + 1;
        expect_equal(received[i].wait(), value(peer));
        sent[i].wait();
      }
    }
  });
}

TEST(TensorCollectives, WaitingAgainDoesNotWriteAgain) {
  on_ranks([](Communicator& ranks) {
    const Tensor mine = laid_out(value(ranks.rank()), Layout::kTransposed, ranks.rank());
    TensorWork work = all_reduce_async(ranks, mine);
    TensorWork copy = work;
    work.wait();
    mine.fill_(7);
    copy.wait();
    expect_equal(mine, torch::full({6, 4}, 7.0F));
  });
}

// A tensor that says when its memory is freed.
Tensor watched(std::vector<float>& values, std::atomic<bool>& freed) {
  return torch::from_blob(
      values.data(), {static_cast<int64_t>(values.size())}, [&](void*) { freed = true; }, torch::kFloat32);
}

TEST(TensorCollectives, WhatIsDroppedInFlightIsKeptUntilItIsDone) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& ranks) {
    std::vector<float> values(1000, 1);
    std::atomic<bool> freed = false;
    const Tensor word = torch::ones({1});
    if (ranks.rank() == 0) {
      all_reduce_async(ranks, watched(values, freed));
      EXPECT_FALSE(freed);
      send(ranks, word, 1);
    } else {
      receive(ranks, word, 0);
      all_reduce_async(ranks, watched(values, freed));
    }
    ranks.barrier();  // it comes behind the others
    EXPECT_TRUE(freed);
    EXPECT_THAT(values, Each(2.0F));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TensorCollectives, WhatIsDroppedInFlightChangesATensorOfAnyLayout) {
  on_ranks([](Communicator& ranks) {
    for (const auto layout : kLayouts) {
      const Tensor mine = laid_out(value(ranks.rank()), layout, ranks.rank());
      all_reduce_async(ranks, mine);
      ranks.barrier();  // it comes behind the other
      expect_equal(mine, sum_of_all(ranks));
    }
  });
}

TEST(TensorCollectives, ADeadlineEndsAWait) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& ranks) {
    const Tensor mine = value(0);
    if (ranks.rank() == 0) {
      EXPECT_THROW(all_reduce(ranks, mine, ReduceOp::kSum, Deadline::after(50ms)), DeadlineExceeded);
      EXPECT_THROW(all_gather_async(ranks, mine).wait(), DeadlineExceeded);
      throw Error("as it should be");
    }
    receive(ranks, mine, 0, Deadline::after(30s));
  });
  EXPECT_EQ(errors[0], "as it should be");
  EXPECT_THAT(errors[1], ::testing::Not(""));
}

TEST(TensorCollectives, AParameterMayChangeAndResultsRequireNoGradient) {
  on_ranks([](Communicator& ranks) {
    for (const auto layout : kLayouts) {
      const Tensor mine = laid_out(value(ranks.rank()), layout, ranks.rank()).requires_grad_();
      EXPECT_FALSE(all_gather(ranks, mine).requires_grad());
      EXPECT_FALSE(reduce_scatter(ranks, mine).requires_grad());
      EXPECT_FALSE(all_to_all(ranks, mine).requires_grad());
      all_reduce(ranks, mine);
      all_reduce_async(ranks, mine, ReduceOp::kAverage).wait();
      expect_equal(mine, sum_of_all(ranks));
      EXPECT_TRUE(mine.is_leaf());
      EXPECT_TRUE(mine.requires_grad());
    }
  });
}

// Whether autograd refuses to go back through a product with the tensor after `change`.
bool counts_as_a_change(const Tensor& tensor, const std::function<void()>& change) {
  const Tensor loss = (tensor * torch::ones({6, 4}, torch::requires_grad())).sum();
  change();
  try {
    loss.backward();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("modified by an inplace operation"));
    return true;
  }
  return false;
}

TEST(TensorCollectives, AutogradNoticesWhatChanges) {
  on_ranks([](Communicator& ranks) {
    for (const auto layout : kLayouts) {
      const bool is_root = ranks.rank() == 0;
      const Tensor mine = laid_out(value(ranks.rank()), layout, ranks.rank());
      EXPECT_TRUE(counts_as_a_change(mine, [&] { all_reduce(ranks, mine); }));
      EXPECT_TRUE(counts_as_a_change(mine, [&] { all_reduce_async(ranks, mine).wait(); }));
      EXPECT_EQ(counts_as_a_change(mine, [&] { broadcast(ranks, mine, 0); }), !is_root);
      EXPECT_EQ(counts_as_a_change(mine, [&] { reduce(ranks, mine, ReduceOp::kMax, 0); }), is_root);
      EXPECT_FALSE(counts_as_a_change(mine, [&] { all_gather(ranks, mine); }));
      if (ranks.size() == 1) continue;
      if (ranks.rank() == 0) {
        EXPECT_FALSE(counts_as_a_change(mine, [&] { send(ranks, mine, 1); }));
      } else if (ranks.rank() == 1) {
        EXPECT_TRUE(counts_as_a_change(mine, [&] { receive(ranks, mine, 0); }));
      }
    }
  });
}

TEST(TensorCollectives, ATensorThatCanNotBeTakenIsAnErrorWithTheRemedy) {
  const auto errors = RankGroup({.ranks = 1}).run([](Communicator& ranks) {
    const auto reducing = [&](const Tensor& tensor) {
      const std::string error = error_of([&] { all_reduce(ranks, tensor); });
      EXPECT_EQ(error_of([&] { all_reduce_async(ranks, tensor); }), error);
      return error;
    };
    EXPECT_EQ(reducing({}), "all_reduce: the tensor is undefined: a gradient, say, that is not there yet");
    EXPECT_EQ(
        reducing(torch::empty({2, 3}, torch::kMeta)),
        "all_reduce: a tensor of shape [2, 3] and type Float is on meta, and Muster works on the CPU: pass "
        "tensor.cpu()");
    EXPECT_EQ(
        reducing(torch::eye(3).to_sparse()),
        "all_reduce: a tensor of shape [3, 3] and type Float has the layout Sparse: pass a dense one, as "
        "tensor.to_dense()");
    const std::string types = "float32, float64, float16, bfloat16, int8, int32, int64";
    EXPECT_EQ(reducing(torch::ones({2}, torch::kBool)),
              "all_reduce: a tensor of shape [2] and type Bool: the type must be one of " + types +
                  "; pass what tensor.to() makes of it");
    EXPECT_EQ(error_of([&] { broadcast(ranks, torch::ones({2}, torch::kUInt8), 0); }),
              "broadcast: a tensor of shape [2] and type Byte: the type must be one of " + types +
                  "; pass its bytes, tensor.view(torch::kInt8)");
    EXPECT_THAT(reducing(torch::ones({2}, torch::kComplexFloat)),
                HasSubstr("pass torch::view_as_real(tensor)"));
    EXPECT_THAT(reducing(torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQInt8)),
                HasSubstr("pass tensor.dequantize()"));
    EXPECT_EQ(
        reducing(torch::ones({1, 3}).expand({2, 3})),
        "all_reduce: a tensor of shape [2, 3] and type Float with strides [0, 1] has several elements in one "
        "place, which can't change one by one: pass tensor.clone()");
    expect_equal(all_gather(ranks, torch::ones({1, 3}).expand({2, 3})), torch::ones({1, 2, 3}));
    EXPECT_THAT(error_of([&] { broadcast(ranks, torch::ones({2}), 1); }), HasSubstr("there is no rank 1"));
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { broadcast(ranks, {}, 0); }, [&] { reduce(ranks, {}, ReduceOp::kSum, 0); },
             [&] { all_gather(ranks, {}); }, [&] { reduce_scatter(ranks, {}); },
             [&] { all_to_all(ranks, {}); }, [&] { send(ranks, {}, 0); }, [&] { receive(ranks, {}, 0); }})
      EXPECT_THAT(error_of(call), HasSubstr("the tensor is undefined"));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TensorCollectives, PartsMustBeEqual) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& ranks) {
    EXPECT_EQ(
        error_of([&] {
          reduce_scatter(ranks, torch::ones({3, 2}));
        }),
        "reduce_scatter: dimension 0 of a tensor of shape [3, 2] and type Float can't be cut in 2 equal "
        "parts, one for each rank of world: pad it to a multiple of 2");
    EXPECT_THAT(error_of([&] { all_to_all(ranks, torch::ones({5})); }), HasSubstr("in 2 equal parts"));
    EXPECT_THAT(error_of([&] { all_to_all_async(ranks, torch::tensor(1.0F)); }),
                HasSubstr("in 2 equal parts"));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TensorCollectives, OtherTypesOrSizesOnTheRanksAreAnErrorOnAll) {
  const std::vector<std::function<void(Communicator&)>> calls = {
      [](Communicator& ranks) { all_reduce(ranks, torch::ones({ranks.rank() + 1})); },
      [](Communicator& ranks) {
        all_gather(ranks, torch::ones({2}, ranks.rank() == 0 ? torch::kFloat32 : torch::kInt32));
      }};
  for (const auto& call : calls) {
    const auto errors =
        RankGroup({.ranks = 2}).run([&](Communicator& ranks) { EXPECT_THROW(call(ranks), InvalidArgument); });
    EXPECT_THAT(errors, Each(HasSubstr("float32 x"))) << "the group is broken";
  }
}

TEST(TensorCollectives, ShapesMayDifferWhereSizesDoNot) {
  const auto errors = RankGroup({.ranks = 2}).run([](Communicator& ranks) {
    const Tensor mine = ranks.rank() == 0 ? torch::arange(6) : torch::arange(6).view({2, 3});
    all_reduce(ranks, mine);
    expect_equal(mine.flatten(), torch::arange(6) * 2);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace muster::detail
