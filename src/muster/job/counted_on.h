#pragma once

// Somebody who counts on what this worker does next, as the parameter servers of a model do. The others must
// not wait for it there while it waits for them elsewhere, so a JobContext tells of such waits.
//
// All of it is called by the job's own thread, and throws what broke the job. away() and back() ask a server
// and return; go_on() and resume() wait for leave to go on.

namespace muster::detail {

class CountedOn {
 public:
  virtual ~CountedOn() = default;

  /// Around a wait for other tasks through the coordinator. Once all who waited for each other are back, each
  /// goes on.
  virtual void away() {}
  virtual void back() {}
  virtual void go_on() {}

  /// Around a time, between steps, in which this worker finishes another model's epoch and brings nothing
  /// here. resume() waits until all workers have paused.
  virtual void pause() {}
  virtual void resume() {}
};

}  // namespace muster::detail
