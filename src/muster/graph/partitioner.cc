#include "muster/graph/partitioner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::detail {

namespace {

class Partitioner {
 public:
  Partitioner(const Signature& signature, const std::vector<GraphNode*>& nodes,
              const GraphPlacement& placement)
      : signature_(signature), nodes_(nodes), placement_(placement), parts_(placement.tasks().size()) {
    for (size_t i = 0; i < signature.feeds.size(); ++i) feeds_.emplace(key_of(signature.feeds[i]), i);
    if (!nodes.empty()) {
      const auto size = static_cast<size_t>(nodes.back()->id) + 1;
      depths_.resize(size);
    }
  }

  Partition cut() {
    for (auto* node : nodes_) add(*node);
    for (size_t i = 0; i < signature_.fetches.size(); ++i) {
      const Output& fetch = signature_.fetches[i];
      // What is fed and fetched comes back from where it is used, or from anywhere.
      const bool is_fed = feeds_.contains(key_of(fetch));
      Piece& piece = piece_of(is_fed ? task_that_has(fetch) : placement_.task(*fetch.get()));
      piece.part->signature.fetches.push_back(local(piece, fetch));
      piece.part->fetches.push_back(i);
    }
    for (const auto& target : signature_.targets) {
      Piece& piece = piece_of(placement_.task(*target.get()));
      piece.part->signature.targets.emplace_back(copy_of(piece, *target.get()));
    }
    for (auto& piece : parts_) {
      if (!piece.part) continue;
      auto& peers = piece.part->peers;
      std::sort(peers.begin(), peers.end());
      peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
      cut_.parts.push_back(std::move(*piece.part));
    }
    return std::move(cut_);
  }

 private:
  using Key = std::pair<const GraphNode*, int>;

  struct Piece {
    std::optional<Part> part;
    std::unordered_map<const GraphNode*, GraphNode*> copies;
    std::map<Key, Output> received;                           // of other tasks
    std::unordered_map<const GraphNode*, GraphNode*> waited;  // nodes of other tasks that have run
    std::map<size_t, Output> fed;
  };

  static Key key_of(const Output& output) { return {output.get(), output.index()}; }

  Piece& piece_of(size_t task) {
    Piece& piece = parts_[task];
    if (!piece.part) {
      piece.part.emplace(Part{.task = task});
      if (!nodes_.empty()) piece.part->graph.data().gradient_calls = nodes_.front()->graph->gradient_calls;
    }
    return piece;
  }

  size_t task_that_has(const Output& feed) const {
    const size_t index = feeds_.at(key_of(feed));
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].fed.contains(index)) return i;
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].part) return i;
    }
    return 0;
  }

  GraphNode& make(Piece& piece, OperatorPtr op, const std::string& name, const GraphNode& of) {
    GraphNode& made =
        piece.part->graph.data().make(std::move(op), name, /*is_name_given=*/false, std::source_location());
    made.where = of.where;
    return made;
  }

  // The node's depth is that of what it takes, and one more for what comes from elsewhere.
  void add(GraphNode& node) {
    const size_t task = placement_.task(node);
    Piece& piece = piece_of(task);
    int32_t depth = 0;
    const auto deepen = [&](const GraphNode& before) {
      const int32_t step = placement_.task(before) == task ? 0 : 1;
      depth = std::max(depth, depths_[static_cast<size_t>(before.id)] + step);
    };
    node.each_input([&](const Output& input) {
      if (!feeds_.contains(key_of(input))) deepen(*input.get());
    });
    for (const auto* before : node.control) deepen(*before);
    depths_[static_cast<size_t>(node.id)] = depth;

    std::vector<Argument> arguments;
    if (node.op->kind() == OperatorKind::kSumGradients) {
      arguments.emplace_back(gradients_by_task(piece, node));
    } else {
      for (size_t i = 0; i < node.arguments.size(); ++i)
        arguments.push_back(local(piece, node.arguments[i], node.op->writes(i)));
    }
    std::vector<GraphNode*> control;
    for (const auto* before : node.control) control.push_back(local_control(piece, task, *before));

    GraphNode& made =
        piece.part->graph.data().make(node.op, node.name, /*is_name_given=*/true, std::source_location());
    made.arguments = std::move(arguments);
    made.control = std::move(control);
    made.where = node.where;
    made.outputs = node.outputs;
    made.depth = depth;
    made.filler = node.filler;
    if (node.op->kind() == OperatorKind::kVariable) piece.part->graph.data().variables.push_back(&made);
    piece.copies.emplace(&node, &made);
  }

  GraphNode* copy_of(Piece& piece, const GraphNode& node) {
    const auto found = piece.copies.find(&node);
    MUSTER_CHECK(found != piece.copies.end(), "{} is not where it was placed", node.describe());
    return found->second;
  }

  Argument local(Piece& piece, const Argument& argument, bool is_written) {
    if (argument.is_value()) return argument;
    if (is_written) return Output(variable(piece, *argument.outputs().front().get()), 0);
    std::vector<Output> outputs;
    for (const auto& output : argument.outputs())
      outputs.push_back(output.defined() ? local(piece, output) : Output());
    if (argument.is_list()) return outputs;
    return outputs.front();
  }

  // A variable that is changed here may be read nowhere.
  GraphNode* variable(Piece& piece, GraphNode& node) {
    if (const auto found = piece.copies.find(&node); found != piece.copies.end()) return found->second;
    GraphNode& made =
        piece.part->graph.data().make(node.op, node.name, /*is_name_given=*/true, std::source_location());
    made.arguments = node.arguments;
    made.where = node.where;
    made.outputs = node.outputs;
    piece.part->graph.data().variables.push_back(&made);
    piece.copies.emplace(&node, &made);
    return &made;
  }

  Output local(Piece& piece, const Output& output) {
    if (const auto fed = feeds_.find(key_of(output)); fed != feeds_.end()) return feed(piece, fed->second);
    GraphNode& node = *output.get();
    const size_t from = placement_.task(node);
    if (from == piece.part->task) return {copy_of(piece, node), output.index()};
    if (const auto found = piece.received.find(key_of(output)); found != piece.received.end())
      return found->second;
    Piece& source = piece_of(from);
    const Output received = carry(source, Output(copy_of(source, node), output.index()), piece, output);
    return piece.received.emplace(key_of(output), received).first->second;
  }

  // Sends a value of a part to another one; `of` is what it is in the whole graph.
  Output carry(Piece& source, const Output& value, Piece& destination, const Output& of) {
    const GraphNode& node = *of.get();
    const auto& info = node.outputs[static_cast<size_t>(of.index())];
    const std::string type = info.type->annotation_str();
    static_cast<void>(type_that_travels(type, node.describe()));
    GraphNode& received = send(source, Argument(value), destination, node, type);
    received.arguments[3] =
        info.dtype ? Argument(c10::IValue(static_cast<int64_t>(*info.dtype))) : Argument(c10::IValue());
    received.outputs = {{.type = info.type, .dtype = info.dtype}};
    cut_.edges.push_back({.output = of, .from = source.part->task, .to = destination.part->task});
    return {&received, 0};
  }

  // What the users of an output on one task say of its gradient is added up there, by their own pass of
  // autograd, and sent once.
  std::vector<Output> gradients_by_task(Piece& piece, const GraphNode& sum) {
    std::map<size_t, std::vector<Output>> others;
    std::vector<Output> parts;
    for (const auto& part : sum.arguments[0].outputs()) {
      const size_t from = placement_.task(*part.get());
      if (from == piece.part->task || feeds_.contains(key_of(part))) {
        parts.push_back(local(piece, part));
      } else {
        others[from].push_back(part);
      }
    }
    for (const auto& [task, gradients] : others) {
      if (gradients.size() == 1) {
        parts.push_back(local(piece, gradients.front()));
        continue;
      }
      Piece& source = piece_of(task);
      std::vector<Output> summed;
      for (const auto& gradient : gradients)
        summed.emplace_back(copy_of(source, *gradient.get()), gradient.index());
      GraphNode& made = make(source, sum.op, sum.name, sum);
      made.outputs = sum.outputs;
      for (const auto& gradient : summed) made.depth = std::max(made.depth, gradient.get()->depth);
      made.arguments = {Argument(std::move(summed))};
      parts.push_back(carry(source, Output(&made, 0), piece, gradients.front()));
    }
    return parts;
  }

  GraphNode* local_control(Piece& piece, size_t task, GraphNode const& before) {
    const size_t from = placement_.task(before);
    if (from == task) return copy_of(piece, before);
    if (const auto found = piece.waited.find(&before); found != piece.waited.end()) return found->second;
    Piece& source = piece_of(from);
    GraphNode* const sender = copy_of(source, before);
    GraphNode& received = send(source, Argument(c10::IValue()), piece, before, "NoneType");
    received.arguments[3] = Argument(c10::IValue());
    received.outputs = {{.type = c10::NoneType::get()}};
    last_send_->control.push_back(sender);
    cut_.edges.push_back(
        {.output = Output(const_cast<GraphNode*>(&before), 0), .from = from, .to = task, .is_control = true});
    piece.waited.emplace(&before, &received);
    return &received;
  }

  // Adds the pair; gives the receiving node.
  GraphNode& send(Piece& source, const Argument& value, Piece& destination, const GraphNode& of,
                  const std::string& type) {
    const int64_t key = next_key_++;
    const auto to = static_cast<int64_t>(destination.part->task);
    const auto from = static_cast<int64_t>(source.part->task);
    GraphNode& sent = make(source, Operator::find("muster::send"), fmt::format("send/{}", of.name), of);
    sent.arguments = {value, Argument(c10::IValue(key)), Argument(c10::IValue(to))};
    last_send_ = &sent;
    source.part->signature.targets.emplace_back(&sent);
    source.part->peers.push_back(destination.part->task);
    GraphNode& received =
        make(destination, Operator::find("muster::receive"), fmt::format("receive/{}", of.name), of);
    received.arguments = {Argument(c10::IValue(key)), Argument(c10::IValue(from)),
                          Argument(c10::IValue(type)), Argument(c10::IValue())};
    return received;
  }

  Output feed(Piece& piece, size_t index) {
    if (const auto found = piece.fed.find(index); found != piece.fed.end()) return found->second;
    const Output& whole = signature_.feeds[index];
    const auto& info = info_of(whole);
    GraphNode& made = make(piece, Operator::find("muster::placeholder"), whole.get()->name, *whole.get());
    // Whoever feeds it has compared its shape with what is expected.
    made.arguments = {
        info.dtype ? Argument(c10::IValue(static_cast<int64_t>(*info.dtype))) : Argument(c10::IValue()),
        Argument(c10::IValue())};
    made.outputs = {{.type = info.type, .dtype = info.dtype}};
    piece.part->signature.feeds.emplace_back(&made, 0);
    piece.part->feeds.push_back(index);
    return piece.fed.emplace(index, Output(&made, 0)).first->second;
  }

  const Signature& signature_;
  const std::vector<GraphNode*>& nodes_;
  const GraphPlacement& placement_;
  std::vector<Piece> parts_;  // by task
  std::map<Key, size_t> feeds_;
  std::vector<int32_t> depths_;
  GraphNode* last_send_ = nullptr;
  int64_t next_key_ = 0;
  Partition cut_;
};

}  // namespace

void check_is_whole(const GraphData& graph) {
  for (const auto& node : graph.nodes) {
    if (node.op->kind() == OperatorKind::kSend || node.op->kind() == OperatorKind::kReceive)
      raise<InvalidArgument>("{}: a session makes such nodes itself", node.describe());
  }
}

Partition partition(const Signature& signature, const std::vector<GraphNode*>& nodes,
                    const GraphPlacement& placement) {
  return Partitioner(signature, nodes, placement).cut();
}

}  // namespace muster::detail
