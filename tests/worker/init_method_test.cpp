// What a worker is told on its command line: where to meet, who it is, which interface to use.
#include <asio.hpp>
#include <chrono>
#include <map>

#include "rendezvous/hosted_store.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/text.h"
#include "tests/testing/variables.h"
#include "worker/host_places.h"
#include "worker/network_interface.h"
#include "worker/worker_env.h"
#include "worker/worker_store.h"

using namespace ddprun::worker;

namespace {

using ddprun::testing::check_contains;
using ddprun::testing::lookup_in;
using ddprun::testing::message_of;
using ddprun::testing::Variables;

WorkerEnv read(const InitMethod& method, const Variables& variables = {}) {
  return read_worker_env(method, lookup_in(variables));
}

const std::vector<InterfaceAddress> two_networks = {{"lo", "127.0.0.1", 8, true},
                                                    {"eth0", "10.0.0.5", 24, false},
                                                    {"eth1", "192.168.7.5", 16, false},
                                                    {"ib0", "fd00::5", 64, false}};

std::string chosen(const std::string& text, bool as_nccl = false) {
  return choose_interface({text, "--interface", as_nccl}, two_networks).address;
}

}  // namespace

TEST_CASE("the three ways to meet are told apart by their url", "[init]") {
  CHECK(parse_init_url("env://").kind == MeetingPlace::Kind::Environment);
  const MeetingPlace tcp = parse_init_url("tcp://node-7.cluster:29500");
  CHECK(tcp.kind == MeetingPlace::Kind::Tcp);
  CHECK(tcp.host == "node-7.cluster");
  CHECK(tcp.port == 29500);
  CHECK(parse_init_url("tcp://[fd00::7]:1").host == "fd00::7");
  CHECK(parse_init_url("tcp://10.0.0.1:80/").port == 80);
  const MeetingPlace file = parse_init_url("file:///shared/run 7?rank=2&world_size=4");
  CHECK(file.kind == MeetingPlace::Kind::File);
  CHECK(file.path == "/shared/run 7");
  CHECK(file.rank == 2);
  CHECK(file.world_size == 4);
}

TEST_CASE("a url that leads nowhere is refused with what it may be", "[init]") {
  for (const char* url : {"",
                          "tcp",
                          "tcp://",
                          "tcp://host",
                          "tcp://host:",
                          "tcp://host:0",
                          "tcp://host:65536",
                          "tcp://host:http",
                          "tcp://:29500",
                          "tcp://fd00::7:29500",
                          "tcp://a b:1",
                          "file://",
                          "file://relative/path",
                          "file:///folder/",
                          "http://host:80",
                          "ENV://",
                          "env://x",
                          "env://?rank=-1",
                          "env://?rank=",
                          "env://?world_size=0",
                          "env://?color=red",
                          "tcp://host:99999999999999999999"}) {
    const std::string error = message_of<WorkerEnvError>([&] { parse_init_url(url); });
    CHECK(check_contains(error, "init method \"" + std::string(url) + "\""));
    CHECK(check_contains(error, "expected env://, tcp://HOST:PORT or file:///PATH"));
  }
}

TEST_CASE("options say what variables would say", "[init]") {
  const WorkerEnv env = read({.url = "tcp://host:29500", .rank = 1, .world_size = 4});
  CHECK(env.rank == 1);
  CHECK(env.world_size == 4);
  CHECK(env.master_addr == "host");
  CHECK(env.master_port == 29500);
  CHECK_FALSE(env.use_agent_store);
  CHECK_FALSE(env.local_rank_known);
  CHECK_FALSE(env.local_world_size_known);

  const WorkerEnv file = read({.url = "file:///tmp/meet?rank=0&world_size=2", .local_rank = 3});
  CHECK(file.rendezvous_file == "/tmp/meet");
  CHECK(file.master_port == 0);
  // A port that is left over in the environment has no meaning there.
  CHECK(read({.url = "file:///tmp/meet", .rank = 0, .world_size = 2},
             {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "29500"}})
            .master_port == 0);
  CHECK(file.local_rank == 3);
  CHECK(file.local_rank_known);

  const WorkerEnv by_variables = read(
      {}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}});
  CHECK(by_variables.master_addr == "node0");
  CHECK_FALSE(by_variables.local_world_size_known);
}

TEST_CASE("options win over variables", "[init]") {
  const Variables variables = {{"RANK", "0"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "0"},
                               {"MASTER_ADDR", "other"},
                               {"MASTER_PORT", "1"},
                               {"OMPI_COMM_WORLD_RANK", "5"},
                               {"OMPI_COMM_WORLD_SIZE", "6"}};
  const WorkerEnv env =
      read({.url = "tcp://host:29500", .rank = 1, .world_size = 2, .local_rank = 1}, variables);
  CHECK(env.rank == 1);
  CHECK(env.world_size == 2);
  CHECK(env.local_rank == 1);
  CHECK(env.master_addr == "host");
  CHECK(env.master_port == 29500);
}

TEST_CASE("the launcher's store is used at the launcher's port only", "[init]") {
  const Variables launched = {{"RANK", "0"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "0"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  CHECK(read({.url = "tcp://localhost:29500"}, launched).use_agent_store);
  CHECK_FALSE(read({.url = "tcp://localhost:29501"}, launched).use_agent_store);
  const WorkerEnv by_file = read({.url = "file:///tmp/meet"}, launched);
  CHECK_FALSE(by_file.use_agent_store);
  CHECK(by_file.rank == 0);
  CHECK(by_file.local_world_size_known);
}

TEST_CASE("a rank that cannot be is refused with the world size", "[init]") {
  const std::string url = "tcp://host:1";
  CHECK(check_contains(
      message_of<WorkerEnvError>([&] { read({.url = url, .rank = 4, .world_size = 4}); }),
      "rank 4 in a world of 4: ranks are 0..3"));
  CHECK(check_contains(
      message_of<WorkerEnvError>([&] { read({.url = url, .rank = -1, .world_size = 4}); }),
      "rank -1"));
  CHECK(check_contains(message_of<WorkerEnvError>([&] { read({.url = url, .world_size = 0}); }),
                       "a world size of 0"));
  CHECK(check_contains(message_of<WorkerEnvError>([&] { read({.url = url, .world_size = 4}); }),
                       "nothing says which worker this is"));
  CHECK(check_contains(message_of<WorkerEnvError>([&] { read({.url = url}); }),
                       "give a rank and the world size"));
  CHECK(check_contains(message_of<WorkerEnvError>([&] { read({.url = "file:///a"}); }),
                       "file:///a says where to meet"));
  CHECK(check_contains(message_of<WorkerEnvError>([&] { read({.url = url, .rank = 1}); }),
                       "give the world size too"));
  CHECK(check_contains(message_of<WorkerEnvError>(
                           [&] { read({.url = url + "?rank=1", .rank = 0, .world_size = 2}); }),
                       "rank 0 is given, but tcp://host:1?rank=1 says 1"));
  CHECK(check_contains(message_of<WorkerEnvError>([&] {
                         read({.url = url, .rank = 0, .world_size = 2, .local_rank = -1});
                       }),
                       "local rank -1"));
  // By the launcher's variables a rank is known.
  CHECK(read({.url = url}, {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}})
            .rank == 1);
}

TEST_CASE("rank 0 whose port is taken says so, and by whom it is not", "[init]") {
  asio::io_context io;
  asio::ip::tcp::acceptor silent(io, {asio::ip::address_v4::loopback(), 0});
  WorkerEnv env = read({.url = "tcp://127.0.0.1:" + std::to_string(silent.local_endpoint().port()),
                        .rank = 0,
                        .world_size = 2});
  CommunicatorOptions options;
  options.connect_timeout = std::chrono::milliseconds(200);
  std::string error;
  try {
    open_store(env, options);
  } catch (const CommunicatorError& thrown) {
    error = thrown.what();
  }
  CHECK(check_contains(error, "rank 0 cannot host the store: cannot listen on 127.0.0.1, port " +
                                  std::to_string(env.master_port) +
                                  ": bind: Address already in use"));
  CHECK(check_contains(error, "serves no store to this job"));
  CHECK(check_contains(error, "give this job another port"));

  // A store that is there already is the job's.
  const ddprun::rendezvous::HostedStore there("127.0.0.1", 0);
  env.master_port = there.port();
  CHECK(open_store(env, CommunicatorOptions{}).port == there.port());
}

TEST_CASE("MPI needs no place to meet", "[init]") {
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  CHECK(read({.needs_store = false}, mpirun).rank == 3);
  CHECK(check_contains(message_of<WorkerEnvError>([&] { read({}, mpirun); }),
                       "MASTER_PORT is not set"));
  CHECK(
      check_contains(message_of<WorkerEnvError>([&] { read({}, mpirun); }), "give --backend mpi"));
  CHECK(check_contains(message_of<WorkerEnvError>([&] { read({}, mpirun); }),
                       "start the workers with ddprun"));
}

TEST_CASE("local ranks follow the ranks on each host", "[init]") {
  const auto note = [](const std::string& host, int local_rank = -1) {
    return WorkerNote{.host = host, .local_rank = local_rank};
  };
  const std::vector<WorkerNote> mixed = {note("a"), note("b"), note("a"), note("b"), note("a")};
  const HostPlace last = place_of(4, mixed);
  CHECK(last.local_rank == 2);
  CHECK(last.local_world_size == 3);
  CHECK(last.group_rank == 0);
  CHECK(last.group_world_size == 2);
  const HostPlace third = place_of(3, mixed);
  CHECK(third.local_rank == 1);
  CHECK(third.local_world_size == 2);
  CHECK(third.group_rank == 1);
  // Each was given one device of its own, which it sees as number 0.
  CHECK(place_of(1, {note("a", 0), note("a", 0)}).local_rank == 0);
}

TEST_CASE("what a worker says of itself survives the store", "[init]") {
  const WorkerNote note{"boot 1", "pid 7 on\nnode", "10.0.0.1", 4, 2, "77.7"};
  const WorkerNote read_back = parse_worker_note(to_text(note));
  CHECK(read_back.host == note.host);
  CHECK(read_back.name == "pid 7 on node");
  CHECK(read_back.address == note.address);
  CHECK(read_back.world_size == 4);
  CHECK(read_back.local_rank == 2);
  CHECK(read_back.identity == note.identity);
  CHECK(parse_worker_note("half a note").identity.empty());
  CHECK(parse_worker_note("host\nname\n10.0.0.1\n4\nnone\n77.7\n").local_rank == -1);
}

TEST_CASE("an interface is chosen by name, address or network", "[interface]") {
  CHECK(chosen("eth1") == "192.168.7.5");
  CHECK(chosen("10.0.0.5") == "10.0.0.5");
  CHECK(chosen("192.168.0.0/16") == "192.168.7.5");
  CHECK(chosen("10.0.0.4/30") == "10.0.0.5");
  CHECK(chosen("0.0.0.0/0") == "127.0.0.1");
  CHECK(chosen("fd00::/16") == "fd00::5");
  CHECK(chosen("FD00::0005") == "fd00::5");
  CHECK(chosen("wlan0,eth0") == "10.0.0.5");  // The first that is here.
}

TEST_CASE("an interface that is not there is refused with those that are", "[interface]") {
  for (const char* wrong : {"eth7", "eth", "10.0.0.6", "172.16.0.0/12", "10.0.0.0/33", "10.0.0.0/",
                            "/8", ",", "^eth0", "=eth0"}) {
    const std::string error = message_of<WorkerEnvError>([&] { chosen(wrong); });
    CHECK(check_contains(error, "--interface \"" + std::string(wrong) + "\""));
    CHECK(check_contains(error, "lo (127.0.0.1/8), eth0 (10.0.0.5/24), eth1"));
  }
}

TEST_CASE("NCCL's variable is read as NCCL reads it", "[interface]") {
  CHECK(chosen("eth", true) == "10.0.0.5");
  CHECK(chosen("=eth1", true) == "192.168.7.5");
  CHECK(chosen("^eth0,docker", true) == "192.168.7.5");
  CHECK(check_contains(message_of<WorkerEnvError>([&] { chosen("=eth", true); }), "\"=eth\""));
  CHECK(
      check_contains(message_of<WorkerEnvError>([&] { chosen("^eth,ib", true); }), "\"^eth,ib\""));
}

TEST_CASE("the option comes first, then Gloo's variable, then NCCL's", "[interface]") {
  const auto lookup = lookup_in({{"GLOO_SOCKET_IFNAME", "eth0"}, {"NCCL_SOCKET_IFNAME", "eth"}});
  CHECK(find_interface_choice("ib0", lookup)->text == "ib0");
  CHECK(find_interface_choice("", lookup)->said_in == "GLOO_SOCKET_IFNAME");
  CHECK(find_interface_choice("", lookup_in({{"NCCL_SOCKET_IFNAME", "eth"}}))->names_are_prefixes);
  CHECK_FALSE(find_interface_choice("", lookup_in({{"NCCL_SOCKET_IFNAME", ""}})));
}

TEST_CASE("this host has a loopback address, from which it reaches itself", "[interface]") {
  const auto all = interface_addresses();
  CHECK(choose_interface({"lo", "", false}, all).address == "127.0.0.1");
  CHECK(address_towards("127.0.0.1") == "127.0.0.1");
  CHECK(address_towards("node7").empty());
}
