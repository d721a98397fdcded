// Both are rows of bars, with a name at the left.
#include "plot/time_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "plot/axis.h"
#include "plot/svg_text.h"

namespace ddprun::plot {
namespace {

constexpr double rows_width = 620, rows_left = 120, rows_right = 606;
constexpr double row_height = 20, bar_height = 14;
constexpr std::size_t rows_max = 64;
constexpr std::size_t happenings_max = 100;

std::string bar(double from, double to, double y, const char* kind, const std::string& words) {
  // What is too short to be seen is drawn all the same: a failed start may take a millisecond.
  return fmt::format(
      "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" "
      "rx=\"2\"><title>{}</title></rect>\n",
      kind, from, y, std::max(1.0, to - from), bar_height, escaped_markup(words));
}

std::string figure_of_rows(const std::string& title, std::size_t rows, double below,
                           const std::string& shapes) {
  return fmt::format(
      "<figure><figcaption>{0}</figcaption>\n<svg viewBox=\"0 0 {1} {2}\" role=\"img\" "
      "aria-label=\"{0}\">\n{3}</svg>",
      escaped_markup(title), rows_width, static_cast<double>(rows) * row_height + below, shapes);
}

std::string legend(const std::vector<std::pair<const char*, const char*>>& kinds, double y) {
  std::string text;
  double x = rows_left;
  for (const auto& [kind, words] : kinds) {
    text += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" rx=\"2\"/>", kind,
        x, y - 9);
    text += svg_words(x + 15, y, words, "start");
    x += 150;
  }
  return text;
}

std::string shares_row(std::int64_t rank, const RankTime& time, double y) {
  const TimeShares shares = shares_of(time);
  const double width = rows_right - rows_left;
  std::string text = svg_words(rows_left - 8, y + 11, fmt::format("rank {}", rank), "end", "words");
  double x = rows_left;
  const auto part = [&](double share, const char* kind, const char* name) {
    if (share <= 0) return;
    text += bar(x, x + share * width, y, kind,
                fmt::format("rank {}: {} {:.1f} % of {:.3g} s in {} steps", rank, name, 100 * share,
                            time.step_s, time.steps));
    x += share * width;
  };
  part(shares.data, "data", "data");
  part(shares.compute, "compute", time.waiting_s ? "compute" : "compute and communication");
  part(shares.waiting, "waiting", "communication");
  return text;
}

std::string launcher_name(const LauncherTrack& track) {
  constexpr std::size_t letters_max = 16;
  return track.host.size() > letters_max ? track.host.substr(0, letters_max) : track.host;
}

std::string track_row(const LauncherTrack& track, const Axis& times, double begin, double y) {
  std::string text = svg_words(rows_left - 8, y + 11, launcher_name(track), "end", "words");
  for (const AttemptSpan& span : track.attempts) {
    const char* kind = !span.succeeded ? "compute" : *span.succeeded ? "good" : "bad";
    const char* how = !span.succeeded   ? "has no end in the log"
                      : *span.succeeded ? "succeeded"
                                        : "was ended";
    text += bar(times.place(span.began_s - begin), times.place(span.ended_s - begin), y, kind,
                fmt::format("attempt {} on {}: {:.3f} s to {:.3f} s, {}", span.attempt, track.host,
                            span.began_s - begin, span.ended_s - begin, how));
  }
  for (const Happening& happening : track.happenings) {
    const double x = times.place(happening.time_s - begin);
    text += fmt::format(
        "<path class=\"{}\" d=\"M{:.1f} {:.1f}l-4 -5h8z\"><title>{:.3f} s: {}</title></path>\n",
        happening.bad ? "bad" : "words", x, y + 5, happening.time_s - begin,
        escaped_markup(happening.what));
  }
  return text;
}

// Equal words of several launchers, as the verdict of an attempt, once.
std::string list_of(const std::vector<LauncherTrack>& launchers, double begin) {
  struct Row {
    double time_s;
    std::string host, what;
    int launchers;
  };
  std::vector<Row> rows;
  std::map<std::string, std::size_t> row_of_words;
  for (const LauncherTrack& track : launchers) {
    for (const Happening& happening : track.happenings) {
      const auto [found, is_new] = row_of_words.try_emplace(happening.what, rows.size());
      // The same words twice from one launcher are two happenings.
      if (is_new || rows[found->second].host == track.host) {
        found->second = rows.size();
        rows.push_back({happening.time_s - begin, track.host, happening.what, 1});
      } else {
        Row& row = rows[found->second];
        row.time_s = std::min(row.time_s, happening.time_s - begin);
        ++row.launchers;
      }
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.time_s < b.time_s; });
  std::string text;
  for (std::size_t i = 0; i < std::min(rows.size(), happenings_max); ++i) {
    const Row& row = rows[i];
    const std::string who =
        row.launchers > 1 ? fmt::format("{} launchers", row.launchers) : row.host;
    text += fmt::format("<li><b>{:.3f} s</b> {}: {}</li>\n", row.time_s, escaped_markup(who),
                        escaped_markup(row.what));
  }
  if (rows.size() > happenings_max) {
    text += fmt::format("<li>and {} more</li>\n", rows.size() - happenings_max);
  }
  return text.empty() ? "" : "<ul class=\"happenings\">\n" + text + "</ul>\n";
}

}  // namespace

TimeShares shares_of(const RankTime& time) {
  if (time.step_s <= 0) return {0, 0, 1};
  TimeShares shares;
  // The three are measured apart from each other, and may add up to a little more than the step.
  shares.data = std::min(1.0, time.data_s / time.step_s);
  shares.waiting = std::min(1 - shares.data, time.waiting_s.value_or(0) / time.step_s);
  shares.compute = 1 - shares.data - shares.waiting;
  return shares;
}

std::string draw_shares(const std::string& title, const std::map<std::int64_t, RankTime>& ranks) {
  if (ranks.empty()) return "";
  std::vector<std::pair<std::int64_t, RankTime>> shown(ranks.begin(), ranks.end());
  std::string left_out;
  if (shown.size() > rows_max) {
    std::stable_sort(shown.begin(), shown.end(), [](const auto& a, const auto& b) {
      return shares_of(a.second).compute > shares_of(b.second).compute;
    });
    shown.resize(rows_max);
    left_out = fmt::format(", the {} of {} ranks that computed longest", rows_max, ranks.size());
  }
  std::string shapes;
  double y = 4;
  for (const auto& [rank, time] : shown) {
    shapes += shares_row(rank, time, y);
    y += row_height;
  }
  const bool waits_known = std::any_of(
      shown.begin(), shown.end(), [](const auto& row) { return row.second.waiting_s.has_value(); });
  shapes +=
      waits_known
          ? legend({{"data", "data"}, {"compute", "compute"}, {"waiting", "communication"}}, y + 18)
          : legend({{"data", "data"}, {"compute", "compute, communication"}}, y + 18);
  return figure_of_rows(title + left_out, shown.size(), 34, shapes) + "</figure>\n";
}

std::string draw_timeline(const std::string& title, const std::vector<LauncherTrack>& launchers) {
  if (launchers.empty()) return "";
  double begin = launchers.front().began_s, end = begin;
  for (const LauncherTrack& track : launchers) {
    begin = std::min(begin, track.began_s);
    end = std::max(end, track.last_s);
    for (const AttemptSpan& span : track.attempts) begin = std::min(begin, span.began_s);
  }
  const Axis times({0, end - begin}, rows_left, rows_right);
  const std::size_t rows = std::min(launchers.size(), rows_max);
  std::string shapes;
  double y = 8;
  for (std::size_t i = 0; i < rows; ++i, y += row_height) {
    shapes += track_row(launchers[i], times, begin, y);
  }
  for (const double tick : times.ticks()) {
    if (tick >= 0) shapes += svg_words(times.place(tick), y + 14, tick_text(tick) + " s", "middle");
  }
  shapes += legend({{"good", "succeeded"}, {"bad", "failed or stopped"}, {"compute", "no end yet"}},
                   y + 34);
  const std::string left_out =
      launchers.size() > rows ? fmt::format(", {} of {} launchers", rows, launchers.size()) : "";
  return figure_of_rows(title + left_out, rows, 50, shapes) + list_of(launchers, begin) +
         "</figure>\n";
}

}  // namespace ddprun::plot
