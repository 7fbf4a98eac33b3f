#include "muster/runtime/runtime_stream.h"

#include <utility>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/cluster/control_stream_impl.h"
#include "muster/runtime/runtime.grpc.pb.h"
#include "muster/runtime/step_status.h"

namespace muster::detail {

template class ControlStreamServer<RuntimeProtocol>;
template class ControlStreamClient<RuntimeProtocol>;

namespace {

constexpr int kProtocol = 2;
constexpr auto kCheckEvery = std::chrono::milliseconds(50);
constexpr auto kServerSilence = std::chrono::minutes(1);  // then a client takes it for gone

std::string challenge_text(const char* role, const std::string& client_nonce,
                           const std::string& server_nonce) {
  return fmt::format("muster runtime {}\n{} {}", role, client_nonce, server_nonce);
}

}  // namespace

RuntimeStreams::RuntimeStreams(const Options& options, Handler handler)
    : secret_(options.secret), self_(options.self), handler_(std::move(handler)) {
  // No stream is heard before the server is there to answer it.
  const MutexLock starting(mutex_);
  streams_ = std::make_unique<ControlStreamServer<RuntimeProtocol>>(
      std::vector{options.address},
      ControlStreamServer<RuntimeProtocol>::Handler{
          .connected =
              [this](Id id, const std::string& peer) {
                const MutexLock lock(mutex_);
                known_[id].peer = peer;
              },
          .received = [this](Id id, const runtime::FromClient& message) { received(id, message); },
          .disconnected =
              [this](Id id) {
                {
                  const MutexLock lock(mutex_);
                  const auto found = known_.find(id);
                  const bool was_proved = found != known_.end() && found->second.is_proved;
                  if (found != known_.end()) known_.erase(found);
                  if (!was_proved) return;
                }
                handler_.ended(id);
              }},
      options.silence);
}

void RuntimeStreams::refuse(Id id, const std::string& reason) {
  runtime::FromServer message;
  message.mutable_refusal()->set_reason(reason);
  streams_->send(id, std::move(message));
  streams_->close(id);
}

void RuntimeStreams::received(Id id, const runtime::FromClient& message) {
  Stream stream;
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    stream = found->second;
  }
  if (stream.is_proved) {
    if (message.has_request()) handler_.requested(id, message.request());
    return;
  }
  runtime::FromServer answer;
  if (message.has_hello() && stream.server_nonce.empty()) {
    if (message.hello().protocol() != kProtocol)
      return refuse(id, fmt::format("it speaks version {} of the protocol, and this server version {}",
                                    message.hello().protocol(), kProtocol));
    if (message.hello().nonce().size() < 16) return refuse(id, "its nonce is too short");
    stream.client_nonce = message.hello().nonce();
    stream.server_nonce = random_bytes(16);
    answer.mutable_challenge()->set_nonce(stream.server_nonce);
  } else if (message.has_proof() && !stream.server_nonce.empty()) {
    if (!secret_.verify(challenge_text("client", stream.client_nonce, stream.server_nonce),
                        message.proof().proof())) {
      log_warning("{} was refused: it does not know the secret", stream.peer);
      return refuse(id, "the client has another secret than it (MUSTER_SECRET)");
    }
    stream.is_proved = true;
    answer.mutable_welcome()->set_proof(
        secret_.prove(challenge_text("server", stream.client_nonce, stream.server_nonce)));
    *answer.mutable_welcome()->mutable_self() = self_;
  } else {
    return refuse(id, "it asks before it has proved that it knows the job's secret");
  }
  {
    const MutexLock lock(mutex_);
    if (const auto found = known_.find(id); found != known_.end()) found->second = stream;
  }
  streams_->send(id, std::move(answer));
}

void RuntimeStreams::reply(Id stream, const runtime::Reply& reply) {
  runtime::FromServer message;
  *message.mutable_reply() = reply;
  streams_->send(stream, std::move(message));
}

void RuntimeStreams::notice(Id stream, const std::string& text) {
  runtime::FromServer message;
  message.mutable_notice()->set_text(text);
  streams_->send(stream, std::move(message));
}

void RuntimeStreams::shutdown() {
  streams_->shutdown();
}

RuntimeClient::RuntimeClient(const Address& address, const std::string& secret, Deadline deadline,
                             const Check& check)
    : secret_(secret), address_(address.to_string()), nonce_(random_bytes(16)) {
  stream_ = std::make_unique<ControlStreamClient<RuntimeProtocol>>(
      address,
      ControlStreamClient<RuntimeProtocol>::Handler{
          .received = [this](const runtime::FromServer& message) { received(message); },
          .ended =
              [this](const std::string& why) {
                const MutexLock lock(mutex_);
                has_ended_ = true;
                why_ended_ = why;
                changed_.notify_all();
              }},
      kServerSilence);
  runtime::FromClient hello;
  hello.mutable_hello()->set_protocol(kProtocol);
  hello.mutable_hello()->set_nonce(nonce_);
  stream_->send(std::move(hello));
  MutexLock lock(mutex_);
  while (true) {
    if (!refusal_.empty()) raise<Refused>("the server at {} refuses: {}", address_, refusal_);
    if (is_welcome_) break;
    if (has_ended_) raise<PeerLost>("no server answers at {}: {}", address_, why_ended_);
    if (deadline.expired()) raise<DeadlineExceeded>("the server at {} does not answer", address_);
    wait_for_change(lock, deadline, check);
  }
  server_ = welcomed_by_;
}

RuntimeClient::~RuntimeClient() = default;

void RuntimeClient::received(const runtime::FromServer& message) {
  switch (message.what_case()) {
    case runtime::FromServer::kChallenge: {
      server_nonce_ = message.challenge().nonce();
      runtime::FromClient proof;
      proof.mutable_proof()->set_proof(secret_.prove(challenge_text("client", nonce_, server_nonce_)));
      stream_->send(std::move(proof));
      return;
    }
    case runtime::FromServer::kWelcome: {
      const bool is_ours =
          secret_.verify(challenge_text("server", nonce_, server_nonce_), message.welcome().proof());
      const MutexLock lock(mutex_);
      if (is_ours) {
        is_welcome_ = true;
        welcomed_by_ = message.welcome().self();
      } else {
        refusal_ = "it does not know the job's secret itself, so it is not ours";
      }
      break;
    }
    case runtime::FromServer::kRefusal: {
      const MutexLock lock(mutex_);
      refusal_ = message.refusal().reason();
      break;
    }
    case runtime::FromServer::kNotice: {
      const MutexLock lock(mutex_);
      notices_.push_back(message.notice().text());
      break;
    }
    case runtime::FromServer::kReply: {
      const MutexLock lock(mutex_);
      replies_[message.reply().id()] = message.reply();
      break;
    }
    case runtime::FromServer::WHAT_NOT_SET:
      return;
  }
  changed_.notify_all();
}

bool RuntimeClient::is_alive() const {
  const MutexLock lock(mutex_);
  return !has_ended_;
}

uint64_t RuntimeClient::send(runtime::Request request) {
  uint64_t id = 0;
  {
    const MutexLock lock(mutex_);
    id = ++last_request_;
  }
  request.set_id(id);
  runtime::FromClient message;
  *message.mutable_request() = std::move(request);
  stream_->send(std::move(message));
  return id;
}

void RuntimeClient::wait_for_change(MutexLock& lock, Deadline deadline, const Check& check) {
  if (check) {
    lock.unlock();
    check();
    lock.lock();
  }
  const auto soon = Deadline::after(kCheckEvery);
  changed_.wait_until(lock, (check ? deadline.earlier(soon) : deadline).time_point());
}

runtime::Reply RuntimeClient::wait(uint64_t request, Deadline deadline, const Check& check,
                                   const std::function<void(const std::string&)>& notice) {
  MutexLock lock(mutex_);
  while (true) {
    if (!notices_.empty()) {
      const auto texts = std::exchange(notices_, {});
      lock.unlock();
      for (const auto& text : texts) {
        if (notice) notice(text);
      }
      lock.lock();
      continue;
    }
    if (const auto found = replies_.find(request); found != replies_.end()) {
      const runtime::Reply reply = std::move(found->second);
      replies_.erase(found);
      StepStatus::received(reply.code(), reply.message()).raise_if_failed();
      return reply;
    }
    if (has_ended_) raise<PeerLost>("the server at {} has gone: {}", address_, why_ended_);
    if (deadline.expired()) raise<DeadlineExceeded>("the server at {} does not answer", address_);
    wait_for_change(lock, deadline, check);
  }
}

}  // namespace muster::detail
