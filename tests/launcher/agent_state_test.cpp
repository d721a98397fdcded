// What an agent does next, event by event.
#include "launcher/agent_state.h"

#include <csignal>

#include "rendezvous/control/first_cause.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;
namespace exit_status = ddprun::rendezvous::exit_status;
using enum AgentAction;
using Actions = std::vector<AgentAction>;
using namespace std::chrono_literals;

namespace {

AgentStateMachine running_agent() {
  AgentStateMachine agent;
  REQUIRE(agent.round_started().actions == Actions{StartWorkers});
  return agent;
}

AgentStateMachine stopping_agent() {
  AgentStateMachine agent = running_agent();
  agent.stop_received(SIGTERM, {});
  return agent;
}

}  // namespace

TEST_CASE("an agent whose workers succeed waits for the verdict", "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();

  CHECK(agent.workers_succeeded().actions == Actions{ReportSucceeded});
  CHECK(agent.state() == AgentState::Succeeded);
  const AgentStep last = agent.finish_received(0);

  CHECK(last.actions == Actions{Exit});
  CHECK(last.exit_status == 0);
}

TEST_CASE("a failed worker is reported before the others are stopped, and only once",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();

  const AgentStep step = agent.worker_failed();
  CHECK(step.actions == Actions{ReportFailure, HoldWorkers});
  CHECK(step.signal == SIGTERM);
  CHECK(agent.worker_failed().actions.empty());
  SECTION("another attempt follows") {
    CHECK(agent.stop_received(SIGTERM, {}).actions == Actions{ParkWorkers});
  }
  SECTION("none follows") { CHECK(agent.stop_received(SIGTERM, 9).actions.empty()); }
  CHECK(agent.workers_reaped().actions == Actions{ReportReaped});

  CHECK(agent.round_started().actions == Actions{StartWorkers});
}

namespace {

AgentStateMachine checking_agent() {
  AgentStateMachine agent({.checks_node = true});
  agent.round_started();
  agent.stop_received(SIGTERM, {});
  REQUIRE(agent.workers_reaped().actions == Actions{CheckNode});
  REQUIRE(agent.awaits_check());
  return agent;
}

}  // namespace

TEST_CASE("workers are reported as reaped when their node is known to be fit",
          "[launcher][agent_state]") {
  AgentStateMachine agent = checking_agent();
  CHECK(agent.stop_received(SIGTERM, {}).actions.empty());
  CHECK(agent.node_is_fit().actions == Actions{ReportReaped});
  CHECK_FALSE(agent.awaits_check());
  CHECK(agent.node_is_unfit(true).actions.empty());
  CHECK(agent.round_started().actions == Actions{StartWorkers});

  AgentStateMachine succeeded({.checks_node = true});
  succeeded.round_started();
  succeeded.workers_succeeded();
  CHECK(succeeded.stop_received(SIGTERM, {}).actions == Actions{CheckNode});
}

TEST_CASE("an unfit node leaves, and ends as unfit whatever the job comes to",
          "[launcher][agent_state]") {
  AgentStateMachine agent = checking_agent();
  const AgentStep step = agent.node_is_unfit(true);
  CHECK(step.actions == Actions{SayLeaving, ReportReaped, AwaitVerdict});
  SECTION("the job goes on") {
    CHECK(agent.finish_received(exit_status::preempted).exit_status == exit_status::unfit);
  }
  SECTION("nobody answers") { CHECK(agent.leaving_overdue().exit_status == exit_status::unfit); }
  SECTION("the job ends") {
    agent.stop_received(SIGTERM, exit_status::preempted);
    CHECK(agent.coordinator_lost().exit_status == exit_status::preempted);
  }
}

TEST_CASE("the parked workers of an unfit node are ended before it leaves",
          "[launcher][agent_state]") {
  AgentStateMachine agent = checking_agent();
  agent.workers_kept(true);
  CHECK(agent.node_is_unfit(true).actions == Actions{SayLeaving, StopWorkers});
  agent.workers_kept(false);
  CHECK(agent.workers_reaped().actions == Actions{ReportReaped, AwaitVerdict});
  CHECK(agent.finish_received(exit_status::preempted).exit_status == exit_status::unfit);
}

TEST_CASE("a node that is not fit joins no job", "[launcher][agent_state]") {
  AgentStateMachine agent({.checks_node = true});
  CHECK(agent.awaits_check());
  const AgentStep step = agent.node_is_unfit(false);
  CHECK(step.actions == Actions{Exit});
  CHECK(step.exit_status == exit_status::unfit);
}

TEST_CASE("what ends a job does not wait for the check of a node", "[launcher][agent_state]") {
  AgentStateMachine agent = checking_agent();
  SECTION("no attempt follows") {
    CHECK(agent.stop_received(SIGTERM, 1).actions == Actions{ReportReaped});
  }
  SECTION("none follows, and workers are parked") {
    agent.workers_kept(true);
    CHECK(agent.stop_received(SIGTERM, 1).actions == Actions{StopWorkers});
    agent.workers_kept(false);
    CHECK(agent.workers_reaped().actions == Actions{ReportReaped});
  }
  SECTION("a signal") {
    CHECK(agent.signal_received(SIGTERM, true).actions ==
          Actions{SayLeaving, ReportReaped, AwaitVerdict});
  }
  SECTION("the coordinator is lost") {
    CHECK(agent.coordinator_lost().exit_status == exit_status::coordinator_lost);
  }
  SECTION("it is lost, and workers are parked") {
    agent.workers_kept(true);
    CHECK(agent.coordinator_lost().actions == Actions{StopWorkers});
  }
  SECTION("cut off: what is checked then is whether it may join again") {
    CHECK(agent.cut_off().actions == Actions{Rejoin});
    return;
  }
  CHECK_FALSE(agent.awaits_check());
  CHECK(agent.node_is_fit().actions.empty());
}

TEST_CASE("a stop from the coordinator stops the workers with its signal",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();

  const AgentStep step = agent.stop_received(SIGINT, {});

  CHECK(step.actions == Actions{ParkWorkers});
  CHECK(step.signal == SIGINT);
  AgentStateMachine last = running_agent();
  CHECK(last.stop_received(SIGINT, 1).actions == Actions{StopWorkers});
}

TEST_CASE("16.3: who can park waits for the verdict, and hears it", "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();
  CHECK(agent.worker_failed().actions == Actions{ReportFailure, HoldWorkers});
  agent.workers_kept(true);

  SECTION("another attempt follows") {
    CHECK(agent.stop_received(SIGTERM, {}).actions == Actions{ParkWorkers});
    CHECK(agent.workers_reaped().actions == Actions{ReportReaped});
    CHECK(agent.round_started().actions == Actions{StartWorkers});
  }
  SECTION("none follows") {
    CHECK(agent.stop_received(SIGTERM, 9).actions == Actions{StopWorkers});
    agent.workers_kept(false);
    CHECK(agent.finish_received(9).actions.empty());
    CHECK(agent.workers_reaped().exit_status == 9);
  }
  SECTION("nobody is there to say") {
    CHECK(agent.coordinator_lost().actions == Actions{StopWorkers});
    agent.workers_kept(false);
    CHECK(agent.workers_reaped().exit_status == exit_status::coordinator_lost);
  }
  SECTION("this node was cut off") {
    CHECK(agent.cut_off().actions == Actions{ParkWorkers});
    CHECK(agent.workers_reaped().actions == Actions{Rejoin});
  }
  SECTION("somebody wants the job to end") {
    CHECK(agent.signal_received(SIGTERM, true).actions == Actions{SayLeaving, StopWorkers});
    CHECK(agent.stop_received(SIGTERM, {}).actions.empty());  // The others may go on.
    agent.workers_kept(false);
    CHECK(agent.workers_reaped().actions == Actions{ReportReaped, AwaitVerdict});
  }
}

TEST_CASE("16.3: whatever ends the job, or this node's part in it, ends parked workers first",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();
  agent.stop_received(SIGTERM, {});
  agent.workers_kept(true);
  REQUIRE(agent.workers_reaped().actions == Actions{ReportReaped});
  const auto ends_with = [&](const AgentStep& step, int status) {
    CHECK(step.state == AgentState::Stopping);
    CHECK(step.actions.back() == StopWorkers);
    agent.workers_kept(false);
    const AgentStep last = agent.workers_reaped();
    CHECK(last.actions.back() == Exit);
    CHECK(last.exit_status == status);
  };

  SECTION("the job is over") { ends_with(agent.finish_received(71), 71); }
  SECTION("the coordinator is lost") {
    ends_with(agent.coordinator_lost(), exit_status::coordinator_lost);
  }
  SECTION("no attempt follows after all") {
    CHECK(agent.stop_received(SIGTERM, 75).actions == Actions{StopWorkers});
    CHECK(agent.finish_received(75).actions == Actions{StopWorkers});
    agent.workers_kept(false);
    CHECK(agent.workers_reaped().exit_status == 75);
  }
  SECTION("a signal, and nobody to say goodbye to") {
    ends_with(agent.signal_received(SIGINT, false), 130);
  }
  SECTION("a signal") {
    const AgentStep step = agent.signal_received(SIGTERM, true);
    CHECK(step.actions == Actions{SayLeaving, StopWorkers});
    CHECK(step.signal == SIGTERM);
    CHECK(agent.signal_received(SIGINT, true).actions == Actions{KillWorkers});
    agent.workers_kept(false);
    CHECK(agent.workers_reaped().actions == Actions{ReportReaped, AwaitVerdict});
  }
  SECTION("cut off for good") {
    CHECK(agent.cut_off().actions == Actions{Rejoin});
    CHECK(agent.cut_off().actions == Actions{Rejoin});
    ends_with(agent.unreachable(), exit_status::coordinator_lost);
  }
  SECTION("cut off, and a signal while nobody can be reached") {
    agent.cut_off();
    ends_with(agent.signal_received(SIGTERM, false), exit_status::preempted);
  }
  SECTION("cut off, and a signal while it waits for a round") {
    agent.cut_off();
    CHECK(agent.signal_received(SIGTERM, true).actions == Actions{SayLeaving, StopWorkers});
    agent.workers_kept(false);
    CHECK(agent.workers_reaped().exit_status == exit_status::preempted);
  }
  SECTION("all of them died") {
    agent.workers_kept(false);
    CHECK(agent.finish_received(71).actions == Actions{Exit});
  }
}

TEST_CASE("an agent that was cut off and is back in a round is one as any other",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();
  agent.cut_off();
  REQUIRE(agent.workers_reaped().actions == Actions{Rejoin});
  REQUIRE(agent.round_started().actions == Actions{StartWorkers});

  CHECK(agent.stop_received(SIGTERM, {}).actions == Actions{ParkWorkers});
  CHECK(agent.stop_received(SIGTERM, {}).actions == Actions{ParkWorkers});
  CHECK(agent.workers_reaped().actions == Actions{ReportReaped});
}

TEST_CASE("an agent that had succeeded takes part in a restart", "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();
  agent.workers_succeeded();

  CHECK(agent.stop_received(SIGTERM, {}).actions == Actions{ReportReaped});
  CHECK(agent.round_started().actions == Actions{StartWorkers});
}

TEST_CASE("workers that cannot be started are a failure with nothing to stop",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();

  CHECK(agent.start_failed().actions == Actions{ReportFailure, ReportReaped});
  CHECK(agent.finish_received(127).exit_status == 127);
}

TEST_CASE("an agent that loses its coordinator stops its workers before it exits",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();

  CHECK(agent.coordinator_lost().actions == Actions{StopWorkers});
  const AgentStep last = agent.workers_reaped();

  CHECK(last.actions == Actions{Exit});
  CHECK(last.exit_status == exit_status::coordinator_lost);
}

TEST_CASE("a coordinator lost after its final word does not change the exit status",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();
  agent.stop_received(SIGTERM, 139);

  agent.coordinator_lost();

  CHECK(agent.workers_reaped().exit_status == 139);
}

TEST_CASE("a finish while workers run stops them first", "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();

  CHECK(agent.finish_received(74).actions == Actions{StopWorkers});
  agent.coordinator_lost();  // The connection ends with it.

  CHECK(agent.workers_reaped().exit_status == 74);
}

TEST_CASE("who was stopped ends as that, also where the job is cut off meanwhile",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();
  agent.signal_received(SIGTERM, true);
  agent.finish_received(72);
  CHECK(agent.workers_reaped().exit_status == 75);

  AgentStateMachine another = running_agent();
  another.finish_received(72);
  CHECK(another.workers_reaped().exit_status == 72);
}

TEST_CASE("16.3: only an attempt that runs makes way for one with more workers",
          "[launcher][agent_state]") {
  AgentStateMachine agent;
  CHECK(agent.replacements_ready().actions.empty());
  agent.round_started();
  CHECK(agent.replacements_ready().actions == Actions{ReportCanGrow});
  CHECK(agent.state() == AgentState::Running);
  SECTION("stopping") { agent.worker_failed(); }
  SECTION("done here") { agent.workers_succeeded(); }
  CHECK(agent.replacements_ready().actions.empty());
}

TEST_CASE("a finish while stopping ends the agent once the workers are reaped",
          "[launcher][agent_state]") {
  AgentStateMachine agent = stopping_agent();

  CHECK(agent.finish_received(9).actions.empty());
  CHECK(agent.workers_reaped().exit_status == 9);
}

TEST_CASE("refusal and an endpoint that nobody answers have their own exit status",
          "[launcher][agent_state]") {
  CHECK(AgentStateMachine().refused(73).exit_status == 73);
  CHECK(AgentStateMachine().unreachable().exit_status == exit_status::rendezvous_timeout);
  CHECK(AgentStateMachine().coordinator_lost().exit_status == exit_status::coordinator_lost);
}

TEST_CASE("Ctrl-C with nobody connected ends at once", "[launcher][agent_state]") {
  AgentStateMachine agent;

  const AgentStep step = agent.signal_received(SIGINT, /*connected=*/false);

  CHECK(step.actions == Actions{Exit});
  CHECK(step.exit_status == 130);
}

TEST_CASE("Ctrl-C while waiting for nodes asks the coordinator, but not for long",
          "[launcher][agent_state]") {
  AgentStateMachine agent;

  const AgentStep step = agent.signal_received(SIGINT, true);
  CHECK(step.actions == Actions{SayLeaving, AwaitVerdict});
  CHECK(step.verdict_limit == 500ms);
  CHECK(agent.leaving_overdue().exit_status == 130);
}

TEST_CASE("SIGTERM gives the workers their grace and ends with 75", "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();

  const AgentStep step = agent.signal_received(SIGTERM, true);
  CHECK(step.actions == Actions{SayLeaving, StopWorkers});
  CHECK(step.signal == SIGTERM);
  CHECK(agent.workers_reaped().actions == Actions{ReportReaped, AwaitVerdict});

  CHECK(agent.leaving_overdue().exit_status == exit_status::preempted);
}

TEST_CASE("a second Ctrl-C kills, a second SIGTERM does not", "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();
  agent.signal_received(SIGTERM, true);

  CHECK(agent.signal_received(SIGTERM, true).actions.empty());
  CHECK(agent.signal_received(SIGINT, true).actions == Actions{KillWorkers});
  CHECK(agent.signal_received(SIGQUIT, true).actions == Actions{KillWorkers});
}

TEST_CASE("a signal while workers are being stopped is passed on", "[launcher][agent_state]") {
  AgentStateMachine agent = stopping_agent();

  CHECK(agent.signal_received(SIGTERM, true).actions == Actions{SayLeaving});
  CHECK(agent.workers_reaped().actions == Actions{ReportReaped, AwaitVerdict});
}

TEST_CASE("a second Ctrl-C while waiting for the others leaves without them",
          "[launcher][agent_state]") {
  AgentStateMachine agent;
  agent.signal_received(SIGINT, true);

  CHECK(agent.signal_received(SIGINT, true).actions == Actions{Exit});
}

TEST_CASE("nothing happens after the end", "[launcher][agent_state]") {
  AgentStateMachine agent;
  agent.finish_received(0);

  CHECK(agent.round_started().actions.empty());
  CHECK(agent.stop_received(SIGTERM, 1).actions.empty());
  CHECK(agent.coordinator_lost().actions.empty());
  CHECK(agent.signal_received(SIGINT, true).actions.empty());
  CHECK(agent.workers_reaped().actions.empty());
}

TEST_CASE("the endpoint's host waits for the verdict as long as the others' workers may take",
          "[launcher][agent_state]") {
  AgentStateMachine host({.grace = 30'000ms});
  host.endpoint_opened();
  host.round_started();
  CHECK(host.signal_received(SIGTERM, true).verdict_limit == 0ms);  // Its own workers come first.

  const AgentStep step = host.workers_reaped();

  CHECK(step.actions == Actions{ReportReaped, AwaitVerdict});
  CHECK(step.verdict_limit == 40'000ms);
}

TEST_CASE("the verdict is awaited once, and by nobody who did not say that it leaves",
          "[launcher][agent_state]") {
  AgentStateMachine leaver;
  leaver.signal_received(SIGTERM, true);
  CHECK(leaver.signal_received(SIGTERM, true).actions.empty());
  CHECK(leaver.stop_received(SIGTERM, 75).actions.empty());

  AgentStateMachine other = stopping_agent();
  CHECK(other.workers_reaped().actions == Actions{ReportReaped});
  CHECK(other.leaving_overdue().actions.empty());
}

TEST_CASE("a round that takes in a node again ends its wait for the verdict",
          "[launcher][agent_state]") {
  AgentStateMachine agent;
  agent.signal_received(SIGTERM, true);

  CHECK(agent.round_started().actions == Actions{StartWorkers});
  CHECK(agent.leaving_overdue().actions.empty());
}

TEST_CASE("the endpoint stays open for the others, but not for somebody at a keyboard",
          "[launcher][agent_state]") {
  AgentStateMachine ended = running_agent();
  ended.workers_succeeded();
  CHECK(ended.finish_received(0).linger == 5'000ms);

  AgentStateMachine interrupted;
  interrupted.signal_received(SIGINT, true);
  CHECK(interrupted.finish_received(130).linger == 500ms);
}

TEST_CASE("every step of an agent has its reason, whatever comes in whatever state",
          "[launcher][agent_state]") {
  using Event = AgentStep (*)(AgentStateMachine&);
  const std::vector<Event> events = {
      [](AgentStateMachine& agent) { return agent.round_started(); },
      [](AgentStateMachine& agent) { return agent.stop_received(SIGTERM, {}); },
      [](AgentStateMachine& agent) { return agent.stop_received(SIGTERM, 1); },
      [](AgentStateMachine& agent) { return agent.finish_received(0); },
      [](AgentStateMachine& agent) { return agent.refused(73); },
      [](AgentStateMachine& agent) { return agent.coordinator_lost(); },
      [](AgentStateMachine& agent) { return agent.unreachable(); },
      [](AgentStateMachine& agent) { return agent.worker_failed(); },
      [](AgentStateMachine& agent) { return agent.start_failed(); },
      [](AgentStateMachine& agent) { return agent.workers_succeeded(); },
      [](AgentStateMachine& agent) { return agent.workers_reaped(); },
      [](AgentStateMachine& agent) { return agent.signal_received(SIGTERM, true); },
      [](AgentStateMachine& agent) { return agent.signal_received(SIGINT, false); },
      [](AgentStateMachine& agent) { return agent.leaving_overdue(); },
      [](AgentStateMachine& agent) { return agent.cut_off(); },
      [](AgentStateMachine& agent) { return agent.replacements_ready(); }};
  // All sequences of four events: workers run only inside a round, and are gone before the exit.
  const std::size_t count = events.size();
  bool always_told = true, never_abandoned = true;
  for (std::size_t sequence = 0; sequence < count * count * count * count; ++sequence) {
    AgentStateMachine agent;
    bool running = false;
    std::size_t rest = sequence;
    for (int i = 0; i < 4; ++i, rest /= count) {
      const bool reaped = rest % count == 10 && agent.state() == AgentState::Stopping;
      const bool ended = rest % count == 8 || rest % count == 9;
      if (reaped || (ended && agent.state() == AgentState::Running)) running = false;
      const AgentStep step = events[rest % count](agent);
      always_told = always_told && !step.reason.empty() && step.state == agent.state();
      for (const AgentAction action : step.actions) {
        if (action == StartWorkers) running = true;
        if (action == Exit) never_abandoned = never_abandoned && !running;
      }
    }
  }
  CHECK(always_told);
  CHECK(never_abandoned);
}

TEST_CASE("an agent that was cut off parks or reaps its workers, and joins again",
          "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();

  CHECK(agent.cut_off().actions == Actions{ParkWorkers});
  CHECK(agent.workers_reaped().actions == Actions{Rejoin});
  CHECK(agent.state() == AgentState::Joining);
  CHECK(agent.round_started().actions == Actions{StartWorkers});
}

TEST_CASE("an agent without workers joins again at once", "[launcher][agent_state]") {
  AgentStateMachine waiting, stopped = stopping_agent();
  stopped.workers_reaped();

  CHECK(waiting.cut_off().actions == Actions{Rejoin});
  CHECK(stopped.cut_off().actions == Actions{Rejoin});
}

TEST_CASE("an agent that was cut off for good ends as one whose coordinator is lost",
          "[launcher][agent_state]") {
  AgentStateMachine agent;
  agent.cut_off();

  CHECK(agent.unreachable().exit_status == exit_status::coordinator_lost);
}

TEST_CASE("a signal to an agent that was cut off ends it", "[launcher][agent_state]") {
  AgentStateMachine before = running_agent(), after = running_agent();

  before.signal_received(SIGTERM, true);
  before.cut_off();
  CHECK(before.workers_reaped().exit_status == exit_status::preempted);
  after.cut_off();
  after.signal_received(SIGTERM, false);
  CHECK(after.workers_reaped().exit_status == exit_status::preempted);
}

TEST_CASE("an agent whose workers succeeded does not join again", "[launcher][agent_state]") {
  AgentStateMachine agent = running_agent();
  agent.workers_succeeded();

  CHECK(agent.cut_off().exit_status == exit_status::coordinator_lost);
}
