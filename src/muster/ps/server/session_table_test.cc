#include "muster/ps/server/session_table.h"

#include <list>

#include <gtest/gtest.h>

namespace muster::detail {
namespace {

class SessionTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<Session> make(int worker, int incarnation, const std::vector<uint64_t>& sequences = {}) {
    auto session = std::make_shared<Session>(
        Session{.worker = worker, .incarnation = incarnation, .slot = &slots_.emplace_back()});
    for (const uint64_t sequence : sequences) session->data[sequence] = {};
    return session;
  }

  void add(int worker, int incarnation, const std::vector<uint64_t>& sequences = {}) {
    table_.add(make(worker, incarnation, sequences));
  }

  static GradientSource source(int worker, int incarnation, uint64_t sequence) {
    return {.worker = worker, .sequence = sequence, .incarnation = incarnation};
  }

  std::list<SessionSlot> slots_;
  SessionTable table_;
};

TEST_F(SessionTableTest, FindsTheSessionOfAWorkerUntilItIsRemoved) {
  EXPECT_EQ(table_.find(1), nullptr);
  const auto session = make(1, 0);
  table_.add(session);
  EXPECT_EQ(table_.find(1), session.get());
  EXPECT_EQ(table_.find(0), nullptr);
  EXPECT_EQ(table_.all().size(), 1U);
  EXPECT_EQ(table_.remove(1), session);
  EXPECT_EQ(table_.find(1), nullptr);
  EXPECT_TRUE(table_.all().empty());
  EXPECT_EQ(table_.remove(1), nullptr);
}

TEST_F(SessionTableTest, AGradientIsFoundByItsWorkerItsIncarnationAndItsSequence) {
  add(1, 2, {7});
  EXPECT_EQ(table_.holder_of(source(1, 2, 7)), table_.find(1));
  EXPECT_EQ(table_.holder_of(source(1, 2, 8)), nullptr);
  EXPECT_EQ(table_.holder_of(source(1, 1, 7)), nullptr) << "of an earlier incarnation";
  EXPECT_EQ(table_.holder_of(source(0, 2, 7)), nullptr);
}

TEST_F(SessionTableTest, AnOrphanedSessionKeepsItsGradientsUntilTheyHaveBeenUsed) {
  add(1, 0, {1, 2});
  const auto session = table_.remove(1);
  add(1, 1, {1});
  EXPECT_EQ(table_.holder_of(source(1, 0, 1)), session.get());
  EXPECT_EQ(table_.holder_of(source(1, 1, 1)), table_.find(1)) << "the same sequence of the next incarnation";
  table_.release({.sources = {source(1, 0, 1)}});
  EXPECT_EQ(table_.holder_of(source(1, 0, 1)), nullptr);
  EXPECT_EQ(table_.holder_of(source(1, 0, 2)), session.get());
  table_.release({.sources = {source(1, 0, 2)}});
  EXPECT_EQ(table_.holder_of(source(1, 0, 2)), nullptr);
  EXPECT_EQ(session.use_count(), 1) << "the table holds it no longer";
}

TEST_F(SessionTableTest, AnOrphanedSessionIsForgottenWhenALaterIncarnationIsUsed) {
  add(1, 0, {1});
  const auto session = table_.remove(1);
  add(1, 1, {1});
  table_.release({.sources = {source(1, 1, 1)}});
  EXPECT_EQ(table_.holder_of(source(1, 0, 1)), nullptr);
  EXPECT_EQ(session.use_count(), 1);
}

TEST_F(SessionTableTest, AReleasedGradientIsTheWorkersAgain) {
  add(1, 0, {1, 2});
  const Session& session = *table_.find(1);
  table_.release({.sources = {source(1, 0, 1), source(0, 0, 9)}});
  EXPECT_EQ(session.slot->consumed.load(), 1U);
  EXPECT_FALSE(session.data.contains(1));
  EXPECT_TRUE(session.data.contains(2));
}

}  // namespace
}  // namespace muster::detail
