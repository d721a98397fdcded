// Control messages to and from JSON (control_message.h). Each message lists its fields once, in
// fields(); a writer and a reader walk that list, so the two directions cannot drift apart.
#include "rendezvous/control/control_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <nlohmann/json.hpp>
#include <utility>

#include "rendezvous/control/clean_text.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/json/json_text.h"

namespace ddprun::rendezvous {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Bytes of each kind of text. Even if each byte needs six in JSON (\u0001), a line with all of them
// stays below control_line_bytes_max.
constexpr std::size_t name_bytes_max = 255;
constexpr std::size_t short_bytes_max = 512;
constexpr std::size_t line_bytes_max = 1'024;
constexpr std::size_t message_bytes_max = 2'048;
constexpr std::size_t output_bytes_max = 4'096;

template <class Visitor>
void fields(Visitor& visit, auto& message);

class Writer {
 public:
  explicit Writer(ordered_json& object) : object_(object) {}

  bool has(const char*) const { return true; }
  void number(const char* name, const auto& value, std::int64_t, std::int64_t) {
    object_[name] = value;
  }
  void number(const char* name, const std::optional<int>& value, std::int64_t, std::int64_t) {
    if (value) object_[name] = *value;
  }
  // Once more, under a name that agents of this version have read it by.
  void again(const char* name, int value) { object_[name] = value; }
  void flag(const char* name, const bool& value) { object_[name] = value; }
  void id(const char* name, const std::string& value, std::size_t bytes_max) {
    object_[name] = clean_text(value, bytes_max);
  }
  void text(const char* name, const std::string& value, std::size_t bytes_max,
            Keep keep = Keep::Head) {
    object_[name] = clean_text(value, bytes_max, keep);
  }
  void lines(const char* name, const std::string& value, std::size_t bytes_max,
             Keep keep = Keep::Head) {
    object_[name] = clean_text(value, bytes_max, keep);
  }
  // An empty list is left out, as it is by agents that do not know of it.
  void ids(const char* name, const std::vector<std::string>& values, std::size_t) {
    if (values.empty()) return;
    ordered_json array = ordered_json::array();
    for (const std::string& value : values) {
      array.push_back(clean_text(value, name_bytes_max, Keep::Head));
    }
    object_[name] = std::move(array);
  }
  // For older agents, which want one and do nothing with it.
  void empty_list(const char* name) { object_[name] = ordered_json::array(); }
  void kind(const char* name, const FirstCause::Kind& value);
  template <class Object>
  void object(const char* name, const Object& value) {
    Writer nested(object_[name]);
    fields(nested, value);
  }
  template <class Object>
  void object(const char* name, const std::optional<Object>& value) {
    if (value) object(name, *value);
  }
  void council(const char* name, const Council& council) {
    ordered_json array = ordered_json::array();
    for (const Seat& seat : council) {
      Writer nested(array.emplace_back());
      fields(nested, seat);
    }
    object_[name] = std::move(array);
  }

 private:
  ordered_json& object_;
};

// Keeps the first complaint; later fields are then left as they are.
class Reader {
 public:
  Reader(const json& object, std::string& error) : object_(object), error_(error) {}

  // For fields that came later: when they are missing, the default stays.
  bool has(const char* name) const { return object_.contains(name); }
  void number(const char* name, auto& value, std::int64_t min, std::int64_t max) {
    const json* field = find(name);
    if (field == nullptr) return;
    const bool fits = field->is_number_unsigned()
                          ? field->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                          : field->is_number_integer();
    if (!fits || field->get<std::int64_t>() < min || field->get<std::int64_t>() > max) {
      return complain(name, fmt::format("must be a whole number from {} to {}", min, max));
    }
    value = static_cast<std::remove_reference_t<decltype(value)>>(field->get<std::int64_t>());
  }
  void number(const char* name, std::optional<int>& value, std::int64_t min, std::int64_t max) {
    if (!object_.contains(name)) return;
    int number_value = 0;
    number(name, number_value, min, max);
    value = number_value;
  }
  void again(const char*, int) const {}
  void empty_list(const char*) const {}
  void flag(const char* name, bool& value) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_boolean()) return complain(name, "must be true or false");
    value = field->get<bool>();
  }
  // What is compared and never shown as it is.
  void id(const char* name, std::string& value, std::size_t bytes_max) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_string() || field->get_ref<const std::string&>().size() > bytes_max) {
      return complain(name, fmt::format("must be a text of at most {} bytes", bytes_max));
    }
    value = field->get_ref<const std::string&>();
  }
  // Made visible here, once, because each text of a peer ends in a log, a report or on a terminal,
  // and nobody who prints one can be trusted to remember where it came from.
  void text(const char* name, std::string& value, std::size_t bytes_max, Keep = Keep::Head) {
    id(name, value, bytes_max);
    value = visible_text(value, Lines::Escape);
  }
  void lines(const char* name, std::string& value, std::size_t bytes_max, Keep = Keep::Head) {
    id(name, value, bytes_max);
    value = visible_text(value, Lines::Keep);
  }
  // As id(), of which there may be several.
  void ids(const char* name, std::vector<std::string>& values, std::size_t count_max) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_array() || field->size() > count_max) {
      return complain(name, fmt::format("must be a list of at most {} texts", count_max));
    }
    for (const json& item : *field) {
      if (!item.is_string() || item.get_ref<const std::string&>().size() > name_bytes_max) {
        return complain(name, fmt::format("must hold texts of at most {} bytes", name_bytes_max));
      }
      values.push_back(item.get_ref<const std::string&>());
    }
  }
  void kind(const char* name, FirstCause::Kind& value);
  template <class Object>
  void object(const char* name, Object& value) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_object()) return complain(name, "must be an object");
    Reader nested(*field, error_);
    fields(nested, value);
  }
  template <class Object>
  void object(const char* name, std::optional<Object>& value) {
    if (object_.contains(name)) object(name, value.emplace());
  }
  void council(const char* name, Council& council) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_array() || field->size() > council_max) {
      return complain(name, fmt::format("must be a list of at most {} seats", council_max));
    }
    for (const json& item : *field) {
      if (!item.is_object()) return complain(name, "must hold objects");
      Reader nested(item, error_);
      fields(nested, council.emplace_back());
    }
  }

 private:
  const json* find(const char* name) {
    if (!error_.empty()) return nullptr;
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    error_ = fmt::format("\"{}\" is missing", name);
    return nullptr;
  }
  void complain(const char* name, const std::string& expected) {
    error_ = fmt::format("\"{}\" {}", name, expected);
  }

  const json& object_;
  std::string& error_;
};

constexpr std::array<std::pair<FirstCause::Kind, const char*>, 4> kind_names{{
    {FirstCause::Kind::WorkerFailed, "worker_failed"},
    {FirstCause::Kind::StartFailed, "start_failed"},
    {FirstCause::Kind::NodeLost, "node_lost"},
    {FirstCause::Kind::Interrupted, "interrupted"},
}};

void Writer::kind(const char* name, const FirstCause::Kind& value) {
  object_[name] = kind_names.at(static_cast<std::size_t>(value)).second;
}

void Reader::kind(const char* name, FirstCause::Kind& value) {
  std::string word;
  text(name, word, name_bytes_max);
  if (!error_.empty()) return;
  for (const auto& [kind_value, kind_name] : kind_names) {
    if (word == kind_name) {
      value = kind_value;
      return;
    }
  }
  complain(name, "must be worker_failed, start_failed, node_lost or interrupted");
}

// ---- the fields of each message, once ----

template <class T, class Message>
constexpr bool is = std::is_same_v<std::remove_const_t<Message>, T>;

template <class Visitor>
void cause_fields(Visitor& visit, auto& cause) {
  visit.kind("kind", cause.kind);
  visit.text("host", cause.host, name_bytes_max);
  visit.number("node_rank", cause.node_rank, -1, nodes_limit);
  visit.number("rank", cause.rank, -1, INT_MAX);
  visit.number("local_rank", cause.local_rank, -1, workers_per_node_limit);
  visit.number("pid", cause.pid, 0, INT_MAX);
  visit.number("exit_code", cause.exit_code, 0, 255);
  visit.number("signal", cause.signal, 0, 64);
  visit.flag("core_dumped", cause.core_dumped);
  visit.flag("retriable", cause.retriable);
  visit.number("attempt", cause.attempt, 0, INT_MAX);
  visit.number("ran_ms", cause.ran_ms, 0, INT64_MAX);
  visit.lines("message", cause.message, message_bytes_max);
  visit.lines("last_stderr", cause.last_stderr, output_bytes_max, Keep::Tail);
  if (visit.has("oom_killed")) visit.flag("oom_killed", cause.oom_killed);
  if (visit.has("memory_limit_bytes")) {
    visit.number("memory_limit_bytes", cause.memory_limit_bytes, 0, INT64_MAX);
  }
  if (visit.has("memory_peak_bytes")) {
    visit.number("memory_peak_bytes", cause.memory_peak_bytes, 0, INT64_MAX);
  }
  if (visit.has("core")) visit.lines("core", cause.core, short_bytes_max);
  if (visit.has("log_files")) visit.lines("log_files", cause.log_files, short_bytes_max);
  if (visit.has("advice")) visit.lines("advice", cause.advice, short_bytes_max);
  if (visit.has("ended_first")) visit.text("ended_first", cause.ended_first, short_bytes_max);
  if (visit.has("hung_ms")) visit.number("hung_ms", cause.hung_ms, 0, INT64_MAX);
  if (visit.has("age_ms")) visit.number("age_ms", cause.age_ms, 0, INT64_MAX);
  if (visit.has("usage_error")) visit.flag("usage_error", cause.usage_error);
  if (visit.has("starter_gone")) visit.flag("starter_gone", cause.starter_gone);
  if (visit.has("of_a_peer")) visit.flag("of_a_peer", cause.of_a_peer);
  if (visit.has("halted")) visit.flag("halted", cause.halted);
}

template <class Visitor>
void hello_fields(Visitor& visit, auto& hello) {
  visit.number("version", hello.version, 0, INT_MAX);
  visit.id("run_id", hello.run_id, line_bytes_max);
  visit.id("node_id", hello.node_id, name_bytes_max);
  visit.text("host", hello.host, name_bytes_max);
  visit.text("address", hello.address, name_bytes_max);
  visit.number("node_rank", hello.node_rank, 0, nodes_limit - 1);
  visit.number("nproc", hello.nproc, 1, workers_per_node_limit);
  visit.text("role", hello.role, name_bytes_max);
  visit.flag("elastic", hello.elastic);
  visit.number("nnodes_min", hello.nnodes_min, 1, nodes_limit);
  visit.number("nnodes_max", hello.nnodes_max, 1, nodes_limit);
  visit.number("max_restarts", hello.max_restarts, 0, INT_MAX);
  visit.number("pid", hello.pid, 0, INT_MAX);
  if (visit.has("replaces")) visit.id("replaces", hello.replaces, name_bytes_max);
  if (visit.has("standby_port")) visit.number("standby_port", hello.standby_port, 0, 65'535);
  if (visit.has("term")) visit.number("term", hello.term, 0, INT_MAX);
  if (visit.has("attempt")) visit.number("attempt", hello.attempt, -1, INT_MAX);
  if (visit.has("tells")) visit.flag("tells", hello.tells);
  visit.object("resumes", hello.resumes);
}

template <class Visitor>
void seat_fields(Visitor& visit, auto& seat) {
  visit.id("node_id", seat.node_id, name_bytes_max);
  visit.number("group_rank", seat.group_rank, 0, nodes_limit);
  visit.text("host", seat.host, name_bytes_max);
  visit.text("address", seat.address, name_bytes_max);
  visit.number("port", seat.port, 0, 65'535);
  if (visit.has("founder")) visit.flag("founder", seat.founder);
}

template <class Visitor>
void succession_fields(Visitor& visit, auto& succession) {
  visit.number("term", succession.term, 0, INT_MAX);
  visit.number("attempt", succession.round.attempt, -1, INT_MAX);
  if (visit.has("round_term")) visit.number("round_term", succession.round.term, 0, INT_MAX);
  visit.number("nodes", succession.nodes, 0, nodes_limit);
  visit.number("restarts_used", succession.restarts_used, 0, INT_MAX);
  if (visit.has("max_restarts")) visit.number("max_restarts", succession.max_restarts, 0, INT_MAX);
  if (visit.has("failures_in_a_row")) {
    visit.number("failures_in_a_row", succession.failures_in_a_row, 0, INT_MAX);
  }
  if (visit.has("progress")) visit.number("progress", succession.progress, 0, INT64_MAX);
  visit.id("coordinator", succession.coordinator, name_bytes_max);
  visit.council("council", succession.council);
  visit.council("before", succession.before);
  if (visit.has("before_term")) {
    visit.number("before_term", succession.before_round.term, 0, INT_MAX);
  }
  if (visit.has("before_attempt")) {
    visit.number("before_attempt", succession.before_round.attempt, -1, INT_MAX);
  }
  visit.again("round_attempt", succession.round.attempt);
  if (visit.has("job")) visit.id("job", succession.job, name_bytes_max);
  if (visit.has("resigned")) visit.ids("resigned", succession.resigned, 2 * council_max);
}

template <class Visitor>
void ask_fields(Visitor& visit, auto& ask) {
  visit.id("run_id", ask.run_id, line_bytes_max);
  visit.id("to", ask.to, name_bytes_max);
  visit.id("candidate", ask.candidate, name_bytes_max);
  visit.number("term", ask.term, 0, INT_MAX);
  visit.number("round_term", ask.heard_term, 0, INT_MAX);  // The name is older than its meaning.
  visit.number("attempt", ask.attempt, -1, INT_MAX);
}

template <class Visitor>
void query_fields(Visitor& visit, auto& query) {
  visit.number("number", query.number, 0, INT_MAX);
  visit.id("run_id", query.run_id, line_bytes_max);
  visit.text("what", query.what, name_bytes_max);
  visit.number("rank", query.rank, -1, INT_MAX);
  visit.number("lines", query.lines, 0, INT_MAX);
}

template <class Visitor>
void told_fields(Visitor& visit, auto& told) {
  visit.number("number", told.number, 0, INT_MAX);
  // Pieces of one text cannot be made visible each by itself: whoever puts them together does.
  visit.id("text", told.text, told_piece_bytes_max);
  visit.flag("more", told.more);
}

template <class Visitor>
void round_name_fields(Visitor& visit, auto& message) {
  visit.number("attempt", message.attempt, 0, INT_MAX);
  visit.number("term", message.term, 0, INT_MAX);
}

template <class Visitor>
void round_fields(Visitor& visit, auto& round) {
  round_name_fields(visit, round);
  visit.number("max_restarts", round.max_restarts, 0, INT_MAX);
  visit.number("group_rank", round.group_rank, 0, nodes_limit);
  visit.number("group_world_size", round.group_world_size, 1, nodes_limit);
  visit.number("rank_base", round.rank_base, 0, INT_MAX);
  if (visit.has("nproc")) visit.number("nproc", round.nproc, 0, workers_per_node_limit);
  visit.number("world_size", round.world_size, 1, INT_MAX);
  visit.number("role_rank_base", round.role_rank_base, 0, INT_MAX);
  visit.number("role_world_size", round.role_world_size, 1, INT_MAX);
  visit.text("master_addr", round.master_addr, name_bytes_max);
  visit.number("master_port", round.master_port, 1, 65'535);
  visit.empty_list("addresses");
  if (visit.has("founder")) visit.flag("founder", round.founder);
  if (visit.has("coordinator")) visit.id("coordinator", round.coordinator, name_bytes_max);
  if (visit.has("restarts_used")) {
    visit.number("restarts_used", round.restarts_used, 0, INT_MAX);
  }
}

template <class Visitor>
void verdict_fields(Visitor& visit, auto& verdict) {
  visit.number("exit_status", verdict.exit_status, 0, 255);
  visit.text("why", verdict.why, line_bytes_max);
  visit.object("cause", verdict.cause);
}

template <class Visitor>
void fields(Visitor& visit, auto& message) {
  using Message = std::remove_reference_t<decltype(message)>;
  if constexpr (is<FirstCause, Message>) {
    cause_fields(visit, message);
  } else if constexpr (is<Seat, Message>) {
    seat_fields(visit, message);
  } else if constexpr (is<RoundSeat, Message>) {
    visit.number("term", message.term, 0, INT_MAX);
    visit.number("attempt", message.attempt, 0, INT_MAX);
    visit.number("group_rank", message.group_rank, 0, nodes_limit);
    visit.flag("founder", message.founder);
  } else if constexpr (is<Hello, Message>) {
    hello_fields(visit, message);
  } else if constexpr (is<Started, Message> || is<WorkersSucceeded, Message>) {
    round_name_fields(visit, message);
  } else if constexpr (is<WorkerFailed, Message>) {
    round_name_fields(visit, message);
    visit.object("cause", message.cause);
  } else if constexpr (is<Reaped, Message>) {
    round_name_fields(visit, message);
    visit.object("cause", message.cause);
    if (visit.has("nproc")) visit.number("nproc", message.nproc, 0, workers_per_node_limit);
  } else if constexpr (is<CanGrow, Message>) {
    round_name_fields(visit, message);
    visit.number("nproc", message.nproc, 1, workers_per_node_limit);
  } else if constexpr (is<Leaving, Message>) {
    visit.number("signal", message.signal, 1, 64);
    if (visit.has("unfit")) visit.text("unfit", message.unfit, short_bytes_max);
    if (visit.has("starter_gone")) visit.flag("starter_gone", message.starter_gone);
  } else if constexpr (is<Heartbeat, Message> || is<HandOver, Message>) {
    return;
  } else if constexpr (is<AskVote, Message>) {
    ask_fields(visit, message);
  } else if constexpr (is<Vote, Message>) {
    visit.number("term", message.term, 0, INT_MAX);
    visit.flag("granted", message.granted);
    visit.object("coordinator", message.coordinator);
  } else if constexpr (is<Leads, Message>) {
    visit.id("run_id", message.run_id, line_bytes_max);
    visit.number("term", message.term, 0, INT_MAX);
    visit.object("coordinator", message.coordinator);
  } else if constexpr (is<Query, Message>) {
    query_fields(visit, message);
  } else if constexpr (is<Told, Message>) {
    told_fields(visit, message);
  } else if constexpr (is<Moved, Message>) {
    visit.object("coordinator", message.coordinator);
  } else if constexpr (is<Succession, Message>) {
    succession_fields(visit, message);
  } else if constexpr (is<Welcome, Message>) {
    visit.number("version", message.version, 0, INT_MAX);
    visit.number("heartbeat_interval_ms", message.heartbeat_interval_ms, 0, INT_MAX);
    visit.number("heartbeat_timeout_ms", message.heartbeat_timeout_ms, 0, INT_MAX);
  } else if constexpr (is<Refused, Message>) {
    visit.number("exit_status", message.exit_status, 1, 255);
    visit.text("reason", message.reason, message_bytes_max);
  } else if constexpr (is<Waiting, Message>) {
    visit.number("joined", message.joined, 0, nodes_limit);
    visit.number("wanted", message.wanted, 0, nodes_limit);
    visit.text("text", message.text, message_bytes_max);
  } else if constexpr (is<RoundStart, Message>) {
    round_fields(visit, message);
  } else if constexpr (is<Stop, Message>) {
    round_name_fields(visit, message);
    visit.number("signal", message.signal, 1, 64);
    visit.flag("final", message.final_verdict);
    verdict_fields(visit, message);
  } else {
    static_assert(is<Finish, Message>);
    verdict_fields(visit, message);
    if (visit.has("may_rejoin")) visit.flag("may_rejoin", message.may_rejoin);
  }
}

// In the order of ControlMessage's alternatives.
constexpr std::array<std::string_view, std::variant_size_v<ControlMessage>> type_names{
    "hello",      "started",  "worker_failed", "workers_succeeded",
    "reaped",     "can_grow", "leaving",       "heartbeat",
    "ask",        "vote",     "leads",         "query",
    "told",       "welcome",  "refused",       "moved",
    "succession", "waiting",  "round",         "stop",
    "hand_over",  "finish"};

template <std::size_t I = 0>
ControlMessage message_of_type(std::size_t index) {
  if constexpr (I + 1 < std::variant_size_v<ControlMessage>) {
    if (index != I) return message_of_type<I + 1>(index);
  }
  return std::variant_alternative_t<I, ControlMessage>{};
}

ParsedLine bad(std::string error) { return {std::nullopt, std::move(error)}; }

}  // namespace

std::string_view type_name(const ControlMessage& message) { return type_names[message.index()]; }

ParsedLine parse_control_message(std::string_view line) {
  if (line.size() > control_line_bytes_max) {
    return bad(fmt::format("a line of {} bytes is longer than the limit of {}", line.size(),
                           control_line_bytes_max));
  }
  const json object = json_of(line);
  if (!object.is_object()) return bad("the line is not a JSON object");
  const auto type = object.find("type");
  if (type == object.end() || !type->is_string()) return bad("\"type\" is missing");
  const auto& name = type->get_ref<const std::string&>();
  for (std::size_t i = 0; i < type_names.size(); ++i) {
    if (type_names[i] != name) continue;
    ControlMessage message = message_of_type(i);
    std::string error;
    Reader reader(object, error);
    std::visit([&](auto& alternative) { fields(reader, alternative); }, message);
    if (!error.empty()) return bad(fmt::format("{}: {}", name, error));
    return {std::move(message), ""};
  }
  return bad(fmt::format("unknown \"type\" \"{}\"",
                         visible_text(clean_text(name, 40, Keep::Head), Lines::Escape)));
}

std::string encode(const ControlMessage& message) {
  ordered_json object;
  object["type"] = type_name(message);
  Writer writer(object);
  std::visit([&](const auto& alternative) { fields(writer, alternative); }, message);
  return json_line(object) + '\n';
}

std::vector<Told> told_pieces(int number, std::string_view text) {
  std::vector<Told> pieces;
  do {
    std::size_t size = std::min(text.size(), told_piece_bytes_max);
    // Not in the middle of a character: half of one would not pass as text.
    const auto is_middle = [&](std::size_t at) {
      return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
    };
    for (int i = 0; i < 3 && size < text.size() && is_middle(size); ++i) --size;
    pieces.push_back({number, std::string(text.substr(0, size)), size < text.size()});
    text.remove_prefix(size);
  } while (!text.empty());
  return pieces;
}

}  // namespace ddprun::rendezvous
