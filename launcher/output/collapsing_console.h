// A console on which equal lines of several ranks become one: the shell around EqualLines.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <string_view>

#include "launcher/output/console.h"
#include "launcher/output/equal_lines.h"
#include "launcher/output/prefix.h"

namespace ddprun::launcher {

class CollapsingConsole : public std::enable_shared_from_this<CollapsingConsole> {
 public:
  // `console` must outlive it.
  CollapsingConsole(asio::io_context& io, OutputConsole& console, LinePrefix prefix);

  // From here on: in each attempt ranks may be others. What waits is shown with the one before.
  void use_prefix(const LinePrefix& prefix);

  void add_writer(int local_rank) { lines_.add_writer(local_rank); }
  void remove_writer(int local_rank);

  void add(int local_rank, std::string_view whole_lines);
  void show_of(int local_rank);  // What waits of this rank, and all that came before it.
  void show_all();

 private:
  void show(const EqualLines::Line& line);
  void show_due();

  OutputConsole& console_;
  LinePrefix prefix_;
  EqualLines lines_;
  asio::steady_timer timer_;
  bool timer_runs_ = false;
};

}  // namespace ddprun::launcher
