// What becomes of a hello, as a function of who is there.
#include "rendezvous/job/admission.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

Hello hello_of(const std::string& node, int rank, const std::string& host) {
  Hello hello{.run_id = "job", .node_id = node, .host = host};
  hello.node_rank = rank;
  hello.nnodes_min = hello.nnodes_max = 3;
  return hello;
}

// Node 0 hosts the coordinator, and node 1 is there as well.
struct Door {
  Roster nodes;
  AdmissionRules rules{.run_id = "job",
                       .round = {.nodes_min = 3, .nodes_max = 3},
                       .host_node_id = "node0",
                       .heartbeats = true,
                       .term = 2,
                       .ending = false};
  Door() {
    for (const int rank : {0, 1}) {
      const std::string number = std::to_string(rank);
      nodes.add(static_cast<PeerId>(rank) + 1, hello_of("node" + number, rank, "host" + number),
                Liveness(5s, TimePoint()));
    }
  }
  Admission ask(const Hello& hello) const { return admission_of(hello, nodes, rules); }
};

}  // namespace

TEST_CASE("who fits becomes a member", "[rendezvous][job]") {
  CHECK(Door().ask(hello_of("node2", 2, "host2")).kind == Admission::Kind::Member);
}

TEST_CASE("16.1: who was in a later term is sent there, also when this job ends",
          "[rendezvous][job]") {
  Door door;
  Hello hello = hello_of("node2", 2, "host2");
  hello.term = 2;
  CHECK(door.ask(hello).kind == Admission::Kind::Member);
  hello.term = 3;
  door.rules.ending = GENERATE(false, true);
  CHECK(door.ask(hello).kind == Admission::Kind::Elsewhere);
  // Of another job's terms this one knows nothing.
  hello.run_id = "another";
  CHECK(door.ask(hello).kind == Admission::Kind::Refused);
}

TEST_CASE("a job that ends lets nobody in", "[rendezvous][job]") {
  Door door;
  door.rules.ending = true;

  const Admission admission = door.ask(hello_of("node2", 2, "host2"));

  CHECK(admission.kind == Admission::Kind::Refused);
  CHECK(admission.refusal.told.starts_with("this job is ending"));
  CHECK(admission.refusal.exit_status ==
        exit_status::coordinator_lost);  // Another try is worth it.
}

TEST_CASE("a node_id is there once", "[rendezvous][job]") {
  const Admission admission = Door().ask(hello_of("node1", 2, "host2"));

  CHECK(admission.kind == Admission::Kind::Refused);
  CHECK(admission.refusal.told == "an agent with this node_id is already here");
}

TEST_CASE("a rank is contested by an agent of the host that has it, and by no other",
          "[rendezvous][job]") {
  Door door;
  const Admission admission = door.ask(hello_of("again", 1, "host1"));
  CHECK(admission.kind == Admission::Kind::ContestsRank);
  CHECK(admission.holder == 2);

  CHECK(door.ask(hello_of("again", 1, "elsewhere")).kind == Admission::Kind::Refused);
  // The coordinator's own agent is alive as long as this question can be asked.
  CHECK(door.ask(hello_of("again", 0, "host0")).kind == Admission::Kind::Refused);
  // Something else is wrong as well.
  Hello other_job = hello_of("again", 1, "host1");
  other_job.run_id = "another";
  CHECK(door.ask(other_job).kind == Admission::Kind::Refused);
  // Nobody would be heard.
  door.rules.heartbeats = false;
  CHECK(door.ask(hello_of("again", 1, "host1")).kind == Admission::Kind::Refused);
}
