// The messages between agents and the coordinator: one JSON object a line
// (docs/control_protocol.md).
//
// A core: text in, values out. parse_control_message() is what a stranger on the port can reach, so
// it never throws, bounds every field, says in words what is wrong with a line, and makes control
// characters visible (visible_text.h): in lines of text newlines and tabs stay, elsewhere not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/control/council.h"
#include "rendezvous/control/first_cause.h"

namespace ddprun::rendezvous {

// 3: what is said of an attempt names its round's term. An older agent's words of a later term's
// attempt would be taken for an older round's, and nobody would wait for it with a limit.
// 4: `reaped` and `round` carry nproc; a coordinator that passed over it would give out wrong
// ranks.
constexpr int control_protocol_version = 4;
constexpr std::size_t control_line_bytes_max = 64 * 1024;  // With the newline.
// Of a `told`. JSON in JSON: each byte of it may need two.
constexpr std::size_t told_piece_bytes_max = 16 * 1024;
// No machine has as many cores or devices. A claim of more costs every node of the job: each counts
// the workers of all. The product of the two fits in an int, as world sizes must.
constexpr int nodes_limit = 65'536;
constexpr int workers_per_node_limit = 4'096;

// ---- agent -> coordinator ----

// An agent's place in a round, in its own words.
struct RoundSeat {
  int term = 0;  // In which the round was closed: two terms may each have one of the same number.
  int attempt = 0;
  int group_rank = 0;
  bool founder = false;
};

// The first line of an agent: it asks to take part.
struct Hello {
  int version = control_protocol_version;
  std::string run_id;   // --rdzv-id: which job.
  std::string node_id;  // Random, new for every start of an agent.
  std::string host;     // Host name, for messages only.
  std::string address;  // Where other nodes reach this one; "" = as the coordinator sees it.
  std::optional<int> node_rank;  // static: always; c10d: when --node-rank was given.
  int nproc = 1;                 // Workers on this node.
  std::string role;
  bool elastic = false;  // c10d, not static.
  int nnodes_min = 1;
  int nnodes_max = 1;
  int max_restarts = 0;  // The coordinator's own value rules.
  int pid = 0;           // Of the agent.
  std::string replaces;  // An earlier node_id of this agent, whose connection it lost; "" = none.
  int standby_port = 0;  // Where it would be the coordinator if this one were lost; 0 = nowhere.
  int term = 0;          // The latest one in which it was a member of this job.
  int attempt = -1;      // The latest of this job that it has heard of.
  bool tells = false;    // It answers `query`.
  // To a coordinator that took over: what this agent is in the round that goes on; otherwise none.
  std::optional<RoundSeat> resumes = {};
  // The address that its connection comes from: the coordinator's own knowledge, never on the wire.
  std::string from = {};
};

// Each of these is of the round with this attempt and term (RoundStart has them): of another one it
// is not heard, however alike the numbers are.
struct Started {  // After `round`: all workers of this node run.
  int attempt = 0;
  int term = 0;
};
struct WorkerFailed {  // The first worker of this node that failed in this attempt.
  int attempt = 0;
  FirstCause cause = {};
  int term = 0;
};
struct WorkersSucceeded {  // All workers of this node exited with 0.
  int attempt = 0;
  int term = 0;
};
struct Reaped {  // After `stop`: no worker of this node is left.
  int attempt = 0;
  // An error that one of them had recorded before the stop came, though none had ended by itself.
  std::optional<FirstCause> cause = {};
  int term = 0;
  int nproc = 0;  // Workers that the next round is to have here; 0: as many as before.
};
struct CanGrow {  // More workers could run here than do: those that had been lost are replaced.
  int attempt = 0;
  int term = 0;
  int nproc = 0;  // So many.
};
struct Leaving {  // The launcher got this signal and goes away when its workers are gone.
  int signal = 0;
  std::string unfit = {};  // Not by a signal: what its --node-check has found wrong with the node.
  bool starter_gone = false;  // Nor by this one: it has lost the session that had started it.
};
struct Heartbeat {};  // Both ways.

// ---- agent <-> agent, when the coordinator is lost (rendezvous/takeover/takeover.h) ----

// The only line of a connection to another agent's standby port. Without a candidate it only asks
// who leads.
struct AskVote {
  std::string run_id;
  std::string to;  // node_id: an agent that joined anew sits in no council any more.
  std::string candidate;
  int term = 0;
  // Of the last succession that the candidate has heard: the term in which it was said (which may
  // be above that of its round), and its attempt.
  int heard_term = 0;
  int attempt = -1;
};
struct Vote {  // The answer.
  int term = 0;
  bool granted = false;
  Seat coordinator = {};  // Whom this agent follows, or itself; "" while it seeks one.
};
// An agent that has taken over says so where it is looked for: to the council, and to whoever
// listens at the job's first endpoint. Who coordinates the job in a later term answers with a vote
// that says so; any other vote means nothing.
struct Leads {
  std::string run_id;
  int term = 0;
  Seat coordinator = {};
};

// ---- somebody looks at the job (docs/watching.md) ----

// To the coordinator: the only line of a connection of somebody who takes no part in the job. From
// it: to an agent that has said that it `tells`.
struct Query {
  int number = 0;      // Comes back with each piece of the answer.
  std::string run_id;  // --rdzv-id: which job.
  std::string what;    // "snapshot", "stacks", "equal stacks", "logs"; to an agent also "paces".
  int rank = -1;       // This one's alone; -1: all.
  int lines = 0;       // Of each file of logs, the last ones; 0: as many as fit.
};
// The answer, in pieces of at most told_piece_bytes_max: a JSON object for the launcher, whose
// texts are as their writers left them.
struct Told {
  int number = 0;
  std::string text;
  bool more = false;  // Another piece follows.
};

// ---- coordinator -> agent ----

struct Welcome {
  int version = control_protocol_version;
  int heartbeat_interval_ms = 0;  // Send one this often; 0 = none are expected, none will come.
  int heartbeat_timeout_ms = 0;   // Silence for this long means the other side is lost.
};
struct Refused {  // Sent instead of a welcome; the connection is closed after it.
  std::string reason;
  int exit_status = exit_status::refused;
};
// Sent instead of a welcome by an agent that listens for the job and does not coordinate it: the
// one that does is there. An empty address: not known here (yet); try again.
struct Moved {
  Seat coordinator = {};
};
// Who may take over if the coordinator is lost: before each `round`, after each `welcome`, and once
// more, without `before`, when the round is settled (rendezvous/job/quorum.h), or when one of those
// that could have votes no more.
struct Succession {
  int term = 0;
  RoundName round = {};  // Its term stays when another coordinator goes on with it.
  int nodes = 0;         // In the round.
  int restarts_used = 0;
  int failures_in_a_row = 0;  // Since an attempt that brought something ...
  std::int64_t progress = 0;  // ... further than this (rendezvous/contract/progress_key.h).
  std::optional<int> max_restarts = {};  // Whoever leads on keeps to it; nothing: to its own.
  std::string coordinator;               // node_id
  Council council;                       // Of this round.
  Council before;               // Of the last settled round, as long as this one is not ...
  RoundName before_round = {};  // ... and which one that is.
  // With an arbiter: the job's random name there, so that no word of an earlier job counts.
  std::string job = {};
  // node_ids with a seat here that vote no more and are not waited for: they said goodbye, or have
  // come back under another one.
  std::vector<std::string> resigned = {};
};
struct Waiting {  // The round is open; sent when the number of nodes changes, and now and then.
  int joined = 0;
  int wanted = 0;
  std::string text;  // Which nodes are missing, and for how long they are waited for.
};
struct RoundStart {  // The round is closed: start your workers.
  int attempt = 0;
  int term = 0;  // In which it was closed; stays when another coordinator goes on with it.
  int max_restarts = 0;
  int group_rank = 0;
  int group_world_size = 1;
  int rank_base = 0;  // Rank of this node's local rank 0.
  int nproc = 0;      // Workers of this node; 0: as `hello` said.
  int world_size = 1;
  int role_rank_base = 0;
  int role_world_size = 1;
  std::string master_addr;  // The store.
  int master_port = 0;
  bool founder = false;                   // This node belongs to the job since its first attempt.
  std::string coordinator = {};           // node_id of who has closed it.
  std::optional<int> restarts_used = {};  // Of `max_restarts`; nothing: an older one leaves it out.
};
struct Stop {  // The attempt is over: stop your workers, then say `reaped`.
  int attempt = 0;
  int signal = 0;              // What the workers get first.
  std::string why;             // One line.
  bool final_verdict = false;  // No further attempt: the job ends with `exit_status`.
  int exit_status = 0;
  std::optional<FirstCause> cause;
  int term = 0;  // Of its round.
};
// This coordinator's node leaves (SIGTERM): choose another one now. It votes itself, and stays a
// member of the round until its workers are gone.
struct HandOver {};
struct Finish {  // The job is over, the same on every node ...
  int exit_status = 0;
  std::string why;
  std::optional<FirstCause> cause;
  bool may_rejoin = false;  // ... or goes on without this node, which may come back as a new one.
};

using ControlMessage =
    std::variant<Hello, Started, WorkerFailed, WorkersSucceeded, Reaped, CanGrow, Leaving,
                 Heartbeat, AskVote, Vote, Leads, Query, Told, Welcome, Refused, Moved, Succession,
                 Waiting, RoundStart, Stop, HandOver, Finish>;

// Which round a message about an attempt is about.
inline RoundName round_name(const auto& message) { return {message.term, message.attempt}; }

struct ParsedLine {
  std::optional<ControlMessage> message;
  std::string error;  // Why there is no message: what was expected, and what was found.
};

// `line` with or without its newline. Never throws for bad input.
ParsedLine parse_control_message(std::string_view line);

// One line with its newline, at most control_line_bytes_max long. Texts that are too long are cut
// (a worker's last output keeps its end), bytes that are not UTF-8 become '?'.
std::string encode(const ControlMessage& message);

// The "type" of a message on the wire.
std::string_view type_name(const ControlMessage& message);

// `text`, which is UTF-8, as an answer to the query of this number. At least one piece.
std::vector<Told> told_pieces(int number, std::string_view text);

}  // namespace ddprun::rendezvous
