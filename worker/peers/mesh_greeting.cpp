// Never more bytes are taken than the greeting has: what follows is the channel's.
#include "worker/peers/mesh_greeting.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "rendezvous/random_id.h"

namespace ddprun::worker {
namespace {

using rendezvous::epoch_text;

constexpr std::uint32_t hello_magic = 0x32484444;           // "DDH2"
constexpr std::uint32_t hello_with_key_magic = 0x324B4444;  // "DDK2"
constexpr std::uint32_t hello_sealed_magic = 0x32534444;    // "DDS2"

static_assert(rendezvous::public_key_bytes == mesh_word_chars, "a public key is sent as a nonce");

std::uint32_t magic_of(bool has_key, bool sealed) {
  return !has_key ? hello_magic : sealed ? hello_sealed_magic : hello_with_key_magic;
}

// Done: all of `size` bytes are there. Failed: the other side has gone.
GreetingState receive_part(int fd, void* to, std::size_t size, std::size_t& received) {
  const ssize_t got = ::recv(fd, static_cast<char*>(to) + received, size - received, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return GreetingState::Waiting;
  if (got <= 0) return GreetingState::Failed;
  received += static_cast<std::size_t>(got);
  return received == size ? GreetingState::Done : GreetingState::Waiting;
}

// A fresh connection's buffer takes these few bytes at once.
int send_part(int fd, const void* data, std::size_t size) {
  const ssize_t sent = ::send(fd, data, size, MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(size) ? 0 : sent < 0 ? errno : EAGAIN;
}

// Of a sealed connection it is a public key, whose other half `agreement` keeps.
std::string fresh_nonce(bool sealed, std::unique_ptr<rendezvous::KeyAgreement>& agreement) {
  if (!sealed) return rendezvous::random_id(mesh_word_chars / 2);
  agreement = std::make_unique<rendezvous::KeyAgreement>();
  return agreement->public_key();
}

// The plain socket, or with what seals and opens its bytes for the side that is the caller, or not.
PeerLink finished_link(UniqueFd socket, const MeshContact& contact, const WorkerKey* key,
                       const rendezvous::KeyAgreement* agreement, const char* caller_nonce,
                       const char* callee_nonce, bool is_caller) {
  if (!contact.sealed) return PeerLink(std::move(socket));
  const rendezvous::SecretBytes agreed =
      agreement->agree({is_caller ? callee_nonce : caller_nonce, mesh_word_chars});
  const auto direction = [&](bool by_caller) {
    return key->derive(agreed, mesh_statement(by_caller, contact, caller_nonce, callee_nonce));
  };
  return PeerLink(std::move(socket), rendezvous::RecordSealer(direction(is_caller)),
                  rendezvous::RecordOpener(direction(!is_caller)));
}

}  // namespace

std::string mesh_statement(bool by_caller, const MeshContact& contact, const char* caller_nonce,
                           const char* callee_nonce) {
  // All parts have a fixed length, so that no two statements read alike.
  std::string text = contact.sealed ? "ddprun seal: " : "ddprun mesh: ";
  text += by_caller ? "caller" : "callee";
  for (const std::uint64_t number : {contact.epoch, Epoch{contact.caller}, Epoch{contact.callee},
                                     static_cast<Epoch>(contact.channel)}) {
    for (int byte = 0; byte < 8; ++byte) text += static_cast<char>(number >> (8 * byte));
  }
  text.append(caller_nonce, mesh_word_chars).append(callee_nonce, mesh_word_chars);
  std::string word = contact.word;
  word.resize(mesh_word_chars);
  return text + word;
}

OutgoingGreeting::OutgoingGreeting(UniqueFd socket, MeshContact contact,
                                   std::shared_ptr<const WorkerKey> key)
    : socket_(std::move(socket)), contact_(std::move(contact)), key_(std::move(key)) {}

int OutgoingGreeting::begin() {
  MeshHello hello;
  hello.magic = magic_of(key_ != nullptr, contact_.sealed);
  hello.epoch = contact_.epoch;
  hello.rank = contact_.caller;
  hello.channel = contact_.channel;
  if (key_) nonce_ = fresh_nonce(contact_.sealed, agreement_);
  const std::string& word = key_ ? nonce_ : contact_.word;
  std::memcpy(hello.word, word.data(), std::min(word.size(), sizeof hello.word));
  return send_part(socket_.get(), &hello, sizeof hello);
}

GreetingState OutgoingGreeting::go_on() {
  if (!key_) return GreetingState::Done;
  const GreetingState state = receive_part(socket_.get(), &answer_, sizeof answer_, received_);
  if (state == GreetingState::Failed) {
    return fail("it closed the connection: it has another secret, none, or is not in " +
                epoch_text(contact_.epoch) + (contact_.sealed ? ", or does not encrypt" : ""));
  }
  if (state == GreetingState::Waiting) return state;
  if (!key_->proves(mesh_statement(false, contact_, nonce_.data(), answer_.nonce), answer_.proof)) {
    return fail("what answers there does not have the job's secret");
  }
  const auto proof = key_->prove(mesh_statement(true, contact_, nonce_.data(), answer_.nonce));
  const int error = send_part(socket_.get(), proof.data(), proof.size());
  return error == 0 ? GreetingState::Done : fail(std::strerror(error));
}

PeerLink OutgoingGreeting::take() {
  return finished_link(std::move(socket_), contact_, key_.get(), agreement_.get(), nonce_.data(),
                       answer_.nonce, true);
}

GreetingState OutgoingGreeting::fail(const std::string& why) {
  why_ = why;
  return GreetingState::Failed;
}

IncomingGreeting::IncomingGreeting(UniqueFd socket, Epoch epoch, int rank, std::string word,
                                   std::shared_ptr<const WorkerKey> key, bool sealed)
    : socket_(std::move(socket)), key_(std::move(key)) {
  contact_.sealed = sealed;
  contact_.epoch = epoch;
  contact_.callee = static_cast<std::uint32_t>(rank);
  contact_.word = std::move(word);
}

GreetingState IncomingGreeting::go_on() {
  if (answered_) {
    const GreetingState state = receive_part(socket_.get(), &proof_, sizeof proof_, received_);
    if (state != GreetingState::Done) return state;
    return key_->proves(mesh_statement(true, contact_, hello_.word, answer_.nonce), proof_)
               ? GreetingState::Done
               : GreetingState::Failed;
  }
  const GreetingState state = receive_part(socket_.get(), &hello_, sizeof hello_, received_);
  if (state != GreetingState::Done) return state;
  if (hello_.magic != magic_of(key_ != nullptr, contact_.sealed)) return GreetingState::Failed;
  if (hello_.epoch != contact_.epoch) {
    why_ = "rank " + std::to_string(hello_.rank) + " was turned away: it is in " +
           epoch_text(hello_.epoch) + ", and this is " + epoch_text(contact_.epoch);
    return GreetingState::Failed;
  }
  contact_.caller = hello_.rank;
  contact_.channel = hello_.channel;
  if (key_) return answer();
  const bool right = contact_.word.size() == sizeof hello_.word &&
                     std::memcmp(hello_.word, contact_.word.data(), sizeof hello_.word) == 0;
  return right ? GreetingState::Done : GreetingState::Failed;
}

GreetingState IncomingGreeting::answer() {
  const std::string nonce = fresh_nonce(contact_.sealed, agreement_);
  std::memcpy(answer_.nonce, nonce.data(), sizeof answer_.nonce);
  answer_.proof = key_->prove(mesh_statement(false, contact_, hello_.word, answer_.nonce));
  answered_ = true;
  received_ = 0;
  return send_part(socket_.get(), &answer_, sizeof answer_) == 0 ? GreetingState::Waiting
                                                                 : GreetingState::Failed;
}

PeerLink IncomingGreeting::take() {
  return finished_link(std::move(socket_), contact_, key_.get(), agreement_.get(), hello_.word,
                       answer_.nonce, false);
}

}  // namespace ddprun::worker
