#pragma once

// A queue of tensors on a task of a cluster, by which runs hand values to other runs: what a thread or a
// client computes, another one takes. All clients that name the same queue share it, as they share variables.
//
//   muster::Queue queue(graph, "batches", {.capacity = 8, .types = {torch::kFloat, torch::kLong}});
//   muster::Node fill = queue.enqueue({images, labels});
//   std::vector<muster::Output> batch = queue.dequeue();
//
// It is on the task where the scopes of the graph place it. First in, first out. A run that puts something
// into a full queue, or takes something from an empty one, waits; after ten seconds its task says so once.
// A Queue is a small value that belongs to its graph.

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "muster/graph.h"

namespace muster {

struct QueueOptions {
  int64_t capacity = 32;              ///< How many elements it holds at most.
  std::vector<at::ScalarType> types;  ///< Of the tensors of an element; one or more.
};

class Queue {
 public:
  /// Throws InvalidArgument for a name that is taken, a capacity below 1, and no types.
  Queue(Graph& graph, const std::string& name, const QueueOptions& options,
        std::source_location where = std::source_location::current());

  /// Puts an element in. Throws InvalidArgument for another number or other types of tensors. A run fails
  /// with Aborted when the queue is closed.
  Node enqueue(const std::vector<Output>& element,
               std::source_location where = std::source_location::current()) const;

  /// Takes an element out. A run fails with Aborted when the queue is closed and empty.
  std::vector<Output> dequeue(std::source_location where = std::source_location::current()) const;

  /// How many elements it has, as a tensor.
  Output size(std::source_location where = std::source_location::current()) const;

  /// Nothing is put in any more; what is in it can still be taken.
  Node close(std::source_location where = std::source_location::current()) const;

 private:
  detail::GraphNode& make(const char* op, std::source_location where) const;

  detail::GraphNode* node_ = nullptr;
};

}  // namespace muster
