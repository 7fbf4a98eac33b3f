#include "muster/base/trace.h"

#include <map>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

TEST(Trace, AThreadThatIsNotAttachedRecordsNothing) {
  TraceRecorder recorder("worker/0");
  { TraceSpan span("ignored"); }
  trace_counter("ignored", 1);
  EXPECT_TRUE(recorder.drain().empty());
}

TEST(Trace, SpansNestAndCarryTheirThread) {
  TraceRecorder recorder("worker/0");
  TraceThread thread(recorder, "main");
  {
    TraceSpan outer("outer");
    TraceSpan inner("inner");
    trace_counter("bytes", 42);
  }
  const auto events = recorder.drain();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_STREQ(events[0].name, "bytes");
  EXPECT_EQ(events[0].value, 42);
  EXPECT_STREQ(events[1].name, "inner");
  EXPECT_STREQ(events[2].name, "outer");
  EXPECT_LE(events[2].start_ns, events[1].start_ns);
  EXPECT_GE(events[2].start_ns + events[2].duration_ns, events[1].start_ns + events[1].duration_ns);
  EXPECT_EQ(recorder.threads().at(events[0].thread), "main");
  EXPECT_TRUE(recorder.drain().empty());
}

TEST(Trace, ASpanOpenedBeforeAttachingIsNotRecorded) {
  TraceRecorder recorder("worker/0");
  {
    TraceSpan span("early");
    TraceThread thread(recorder, "main");
  }
  EXPECT_TRUE(recorder.drain().empty());
}

TEST(Trace, ASpanThatEndsInAnotherRecorderIsInNeither) {
  TraceRecorder first("worker/0");
  TraceRecorder second("worker/1");
  std::optional<TraceThread> attached(std::in_place, first, "main");
  std::optional<TraceSpan> span(std::in_place, "moved");
  attached.reset();
  const TraceThread thread(second, "main");
  span.reset();
  EXPECT_TRUE(first.drain().empty());
  EXPECT_TRUE(second.drain().empty());
}

TEST(Trace, TwoRecordersOfOneProcessStayApart) {
  TraceRecorder first("worker/0");
  TraceRecorder second("worker/1");
  std::thread([&] {
    TraceThread thread(first, "a");
    trace_counter("x", 1);
  }).join();
  TraceThread thread(second, "b");
  trace_counter("y", 2);
  EXPECT_EQ(first.drain().size(), 1u);
  EXPECT_EQ(second.drain().size(), 1u);
}

TEST(Trace, DrainBesideTheWritersLosesNothingAndKeepsTheOrder) {
  constexpr int kThreads = 4;
  constexpr int kEvents = 20000;
  TraceRecorder recorder("worker/0");
  std::atomic<int> running = kThreads;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      TraceThread thread(recorder, "writer");
      for (int i = 0; i < kEvents; ++i) trace_counter("i", i);
      --running;
    });
  }
  std::map<uint32_t, int> next;
  const auto take = [&] {
    for (const auto& event : recorder.drain()) EXPECT_EQ(event.value, next[event.thread]++);
  };
  while (running > 0) take();
  for (auto& thread : threads) thread.join();
  take();
  ASSERT_EQ(next.size(), static_cast<size_t>(kThreads));
  for (const auto& [thread, count] : next) EXPECT_EQ(count, kEvents);
  EXPECT_EQ(recorder.dropped(), 0u);
}

TEST(Trace, WhatDoesNotFitIsCounted) {
  TraceRecorder recorder("worker/0", /*capacity=*/10);
  TraceThread thread(recorder, "main");
  for (int i = 0; i < 25; ++i) trace_counter("i", i);
  EXPECT_EQ(recorder.drain().size(), 10u);
  EXPECT_EQ(recorder.dropped(), 15u);
  trace_counter("i", 1);
  EXPECT_EQ(recorder.drain().size(), 1u);
}

}  // namespace
}  // namespace muster::detail
