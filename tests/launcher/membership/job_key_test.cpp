// Which keys a job gets, and what its node is told that has another secret.
#include "launcher/membership/job_key.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "rendezvous/secure/job_secret.h"
#include "rendezvous/secure/psk.h"
#include "rendezvous/secure/security_error.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::testing::check_contains;
using ddprun::testing::message_of;

namespace {

const std::string job_secret(64, 's');

LaunchOptions with_secret_in(const testing::TemporaryFolder& folder) {
  LaunchOptions options;
  options.nnodes_min = options.nnodes_max = 2;
  options.auth = Auth::Secret;
  options.run_id = "job";
  options.secret_file = folder / "secret";
  options.secret_file_given = true;
  std::ofstream(options.secret_file) << job_secret << '\n';
  REQUIRE(::chmod(options.secret_file.c_str(), 0600) == 0);
  return options;
}

// What workers would find behind it.
std::shared_ptr<const rendezvous::WorkerKey> handed(const rendezvous::UniqueFd& key) {
  return rendezvous::handed_worker_key(std::to_string(key.get()));
}

}  // namespace

TEST_CASE("15.1: a job's keys are made of its secret, each for its use", "[launcher][secret]") {
  const testing::TemporaryFolder folder;
  LaunchOptions options = with_secret_in(folder);
  const auto text = rendezvous::SecretBytes::copy_of(job_secret);

  const JobKeys keys = open_job_keys(options);
  REQUIRE(keys.control);
  CHECK(keys.control->key().text() == rendezvous::control_key(text, "job").text());
  const rendezvous::WorkerKey expected(rendezvous::worker_key(text, "job"));
  CHECK(handed(keys.workers)->prove("x") == expected.prove("x"));
  CHECK_FALSE(keys.store);

  options.store_auth = true;
  const JobKeys with_store = open_job_keys(options);
  REQUIRE(with_store.store);
  CHECK(with_store.store->prove("x") == expected.prove("x"));
}

TEST_CASE("15.1: a job of one host has no keys, and one without a secret nothing made of it",
          "[launcher][secret]") {
  LaunchOptions options;
  CHECK_FALSE(open_job_keys(options).control);
  CHECK_FALSE(open_job_keys(options).workers);

  options.auth = Auth::None;
  options.store_auth = true;
  check_contains(message_of<rendezvous::SecurityError>([&] { open_job_keys(options); }),
                 "--store-auth: with --auth none");
  options.store_auth = false;
  options.encrypt_gradients = true;
  check_contains(message_of<rendezvous::SecurityError>([&] { open_job_keys(options); }),
                 "--encrypt-gradients: with --auth none");
}

TEST_CASE("15.1: a secret is made at its usual place, and nowhere else", "[launcher][secret]") {
  const testing::TemporaryFolder folder;
  LaunchOptions options = with_secret_in(folder);
  options.secret_file = folder / "home/ddprun/secret";
  check_contains(message_of<rendezvous::SecurityError>([&] { open_job_keys(options); }),
                 "No such file");

  options.secret_file_given = false;
  const JobKeys made = open_job_keys(options);
  REQUIRE(made.control);
  CHECK(open_job_keys(options).control->key().text() == made.control->key().text());

  options.secret_file = "";
  check_contains(message_of<rendezvous::SecurityError>([&] { open_job_keys(options); }),
                 "--secret-file or DDPRUN_SECRET_FILE");
}

TEST_CASE("15.1: a node with another secret is told where the job's is", "[launcher][secret]") {
  LaunchOptions options;
  options.run_id = "job";
  options.endpoint_host = "node0";
  options.secret_file = "/home/ada/.config/ddprun/secret";

  CHECK(other_secret_advice(options) ==
        "; here the id is \"job\" (--rdzv-id); with the right id, take the secret from there: scp "
        "node0:.config/ddprun/secret /home/ada/.config/ddprun/secret");
  options.secret_file_given = true;
  options.secret_file = "/shared/secret";
  check_contains(other_secret_advice(options), "scp node0:/shared/secret /shared/secret");
  // What has no name there cannot be copied.
  for (const char* unnamed : {"-", "/dev/fd/3", "/dev/stdin"}) {
    options.secret_file = unnamed;
    CHECK(other_secret_advice(options) ==
          std::string("; here the id is \"job\" (--rdzv-id) and the secret came from ") + unnamed);
  }
}
