// The secret is in this process for as long as these lines take: keys are derived, and it goes.
#include "launcher/membership/job_key.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "launcher/membership/endpoint.h"
#include "rendezvous/secure/job_secret.h"
#include "rendezvous/secure/psk.h"
#include "rendezvous/worker_key.h"

namespace ddprun::launcher {
namespace {

rendezvous::SecretBytes open_secret(const LaunchOptions& options) {
  if (options.secret_file_given) return rendezvous::read_secret(options.secret_file);
  if (options.secret_file.empty()) {
    throw rendezvous::SecurityError(
        "a job of several hosts needs a secret, and there is no home folder to keep it in (HOME "
        "is not set): name a file with --secret-file or DDPRUN_SECRET_FILE");
  }
  bool made = false;
  rendezvous::SecretBytes secret = rendezvous::read_or_make_secret(options.secret_file, made);
  if (made) {
    spdlog::info(
        "made {}, the secret of this user's jobs: nodes without this home folder need a "
        "copy of it",
        options.secret_file);
  }
  return secret;
}

}  // namespace

JobKeys open_job_keys(const LaunchOptions& options) {
  if (!needs_secret(options)) {
    if (options.auth == Auth::None && another_host_may_join(options)) {
      const auto given = options.sources.find("auth");
      spdlog::warn(
          "{}: whoever reaches {} port {} can join this job, end it, and write to its store",
          given == options.sources.end() ? "--auth none" : given->second, options.endpoint_host,
          options.endpoint_port);
    }
    if (options.store_auth) {
      throw rendezvous::SecurityError(
          "--store-auth: with --auth none workers have no secret to prove: leave one of them out");
    }
    if (options.encrypt_gradients) {
      throw rendezvous::SecurityError(
          "--encrypt-gradients: with --auth none there is no secret to make keys of: leave one of "
          "them out");
    }
    // Else a worker would have it before its own input.
    if (options.secret_file_given && rendezvous::secret_comes_on_stdin(options.secret_file)) {
      rendezvous::read_secret(options.secret_file);
    }
    return {};
  }
  const rendezvous::SecretBytes secret = open_secret(options);
  JobKeys keys;
  keys.control =
      std::make_shared<rendezvous::TlsContext>(rendezvous::control_key(secret, options.run_id));
  keys.workers = rendezvous::hand_over_key(rendezvous::worker_key(secret, options.run_id));
  if (options.store_auth) {
    keys.store =
        std::make_shared<rendezvous::WorkerKey>(rendezvous::worker_key(secret, options.run_id));
  }
  return keys;
}

std::string other_secret_advice(const LaunchOptions& options) {
  const std::string id = fmt::format("; here the id is \"{}\" (--rdzv-id)", options.run_id);
  const std::string& file = options.secret_file;
  const bool has_name = file.rfind('/', 0) == 0 && file.rfind("/dev/", 0) != 0;
  if (!has_name) return id + " and the secret came from " + file;
  // Relative paths of scp begin in the home folder, which may have another name there.
  const std::string there = options.secret_file_given ? file : ".config/ddprun/secret";
  return fmt::format("{}; with the right id, take the secret from there: scp {}:{} {}", id,
                     options.endpoint_host, there, file);
}

}  // namespace ddprun::launcher
