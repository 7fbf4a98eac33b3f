#include "muster/runtime/replica_commands.h"

#include <bit>
#include <limits>

#include <ATen/ops/tensor.h>

#include "muster/base/error.h"

namespace muster::detail {

at::Tensor pack(const CommandList& list) {
  std::vector<int64_t> numbers = {std::bit_cast<int64_t>(list.coordinator)};
  for (const auto& [number, command] : list.commands) {
    numbers.insert(numbers.end(),
                   {number, static_cast<int64_t>(command.kind), std::bit_cast<int64_t>(command.divisor),
                    std::bit_cast<int64_t>(command.lr), static_cast<int64_t>(command.sources.size())});
    for (const auto& source : command.sources)
      numbers.insert(numbers.end(), {source.worker, std::bit_cast<int64_t>(source.sequence)});
  }
  return at::tensor(numbers, at::TensorOptions(at::kLong));
}

CommandList unpack(const at::Tensor& packed) {
  if (packed.scalar_type() != at::kLong || packed.dim() != 1)
    raise<InvalidArgument>("the commands of a coordinator are no list of integers");
  const at::Tensor dense = packed.contiguous();
  const auto* next = dense.data_ptr<int64_t>();
  const auto* const end = next + dense.numel();
  const auto take = [&next, end] {
    if (next == end) raise<InvalidArgument>("the commands of a coordinator are not complete");
    return *next++;
  };
  CommandList list;
  list.coordinator = std::bit_cast<uint64_t>(take());
  while (next != end) {
    auto& [number, command] = list.commands.emplace_back();
    number = take();
    const int64_t kind = take();
    if (kind < 0 || kind > static_cast<int64_t>(Command::Kind::kDrop))
      raise<InvalidArgument>("a coordinator has no command {}", kind);
    command.kind = static_cast<Command::Kind>(kind);
    command.divisor = std::bit_cast<double>(take());
    command.lr = std::bit_cast<double>(take());
    const int64_t sources = take();
    for (int64_t i = 0; i < sources; ++i) {
      const int64_t worker = take();
      if (worker < 0 || worker > std::numeric_limits<int>::max())
        raise<InvalidArgument>("a command of a coordinator names worker {}", worker);
      command.sources.push_back(
          {.worker = static_cast<int>(worker), .sequence = std::bit_cast<uint64_t>(take())});
    }
  }
  return list;
}

}  // namespace muster::detail
