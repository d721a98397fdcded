// Charts that nothing is known for are left out, not shown empty.
#include "plot/report_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "plot/axis.h"
#include "plot/line_chart.h"
#include "plot/svg_text.h"
#include "plot/time_charts.h"

namespace ddprun::plot {
namespace {

using Kind = ChartCurve::Kind;

struct CurveOfRun {
  Curve RunRecords::*curve;
  const char* name;
  Kind kind;
};

std::vector<ChartMark> restart_marks(const std::vector<RunRecords>& runs) {
  std::vector<ChartMark> marks;
  for (const RunRecords& run : runs) {
    for (std::size_t i = 1; i < run.beginnings.size(); ++i) {
      const Beginning& again = run.beginnings[i];
      marks.push_back(
          {again.step, fmt::format("{}: restart {}, from step {} (step {} had been seen)", run.name,
                                   i, again.step, again.reached)});
    }
  }
  return marks;
}

std::string chart_of(const std::vector<RunRecords>& runs, const char* title, Scale scale,
                     const std::vector<CurveOfRun>& curves) {
  LineChart chart{title, {}, restart_marks(runs), scale};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const CurveOfRun& curve : curves) {
      chart.curves.push_back(
          {fmt::format("{}: {}", runs[i].name, curve.name), i, curve.kind, runs[i].*curve.curve});
    }
  }
  return draw(chart);
}

std::string last_value(const Curve& curve, const char* unit = "") {
  return curve.empty() ? "" : fmt::format("{:.4g}{}", curve.back().value, unit);
}

// Of the weights that count as the best ones: where some are averaged, those alone.
std::string best_value(const RunRecords& run) {
  double best = -1;
  const Curve& curve = run.averaged_top1.empty() ? run.validation_top1 : run.averaged_top1;
  for (const Point& point : curve) best = std::max(best, point.value);
  return best < 0 ? "" : fmt::format("{:.2f} %", best);
}

// Of the middle of the sorted values: one slow line says nothing about the run.
std::string usual_value(const Curve& curve) {
  if (curve.empty()) return "";
  std::vector<double> values;
  for (const Point& point : curve) values.push_back(point.value);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return tick_text(*middle);
}

std::string time_text_of(double seconds) {
  if (!(seconds > 0) || seconds > 1e9) return "";
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 60) return fmt::format("{:.1f} s", seconds);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

// Without metrics the launcher that was heard last tells of it: all of a job end alike, and one
// that was queued again comes later.
std::string end_of(const RunRecords& run) {
  if (!run.ended.empty()) return run.ended == "end" ? "done" : run.ended;
  const auto last = std::max_element(
      run.launchers.begin(), run.launchers.end(),
      [](const LauncherTrack& a, const LauncherTrack& b) { return a.last_s < b.last_s; });
  if (run.began_s > 0 || last == run.launchers.end() || !last->exit_status) return "no end yet";
  return *last->exit_status == 0 ? "done" : fmt::format("exit status {}", *last->exit_status);
}

std::string row_of(const RunRecords& run, std::size_t color) {
  const double step = run.steps_done;
  const std::string steps = run.steps_wanted > 0 ? fmt::format("{} of {}", step, run.steps_wanted)
                                                 : fmt::format("{}", step);
  std::string text = fmt::format(
      "<tr><td><svg class=\"key\" viewBox=\"0 0 10 10\"><rect class=\"fill{}\" width=\"10\" "
      "height=\"10\" rx=\"2\"/></svg> {}</td>",
      color % series_colors, escaped_markup(run.name));
  const std::size_t restarts = run.beginnings.empty() ? 0 : run.beginnings.size() - 1;
  for (const std::string& cell :
       {run.model, run.dataset, run.workers > 0 ? std::to_string(run.workers) : "", steps,
        last_value(run.train_loss), best_value(run), usual_value(run.images_per_s),
        time_text_of(run.last_s - run.began_s), std::to_string(restarts), end_of(run)}) {
    text += "<td>" + escaped_markup(cell) + "</td>";
  }
  return text + "</tr>\n";
}

std::string table_of(const std::vector<RunRecords>& runs) {
  std::string text =
      "<table><tr><th>run<th>model<th>data<th>workers<th>steps<th>train loss<th>best top-1"
      "<th>images/s<th>time<th>restarts<th>end</tr>\n";
  for (std::size_t i = 0; i < runs.size(); ++i) text += row_of(runs[i], i);
  return "<div class=\"wide\">" + text + "</table></div>\n";
}

}  // namespace

std::string page_head(const std::string& title, const std::string& head) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{}</title>\n<style>\n{}\n"
      "body{{margin:0 "
      "auto;max-width:1320px;padding:16px;background:var(--paper);color:var(--words);"
      "font:14px/1.45 system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}}"
      "h1{{font-size:20px;margin:4px 0 12px}}"
      "main{{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),"
      "1fr))}}"
      "figure{{margin:0;padding:10px;background:var(--panel);border:1px solid var(--frame);"
      "border-radius:8px}}figcaption{{font-weight:600;margin-bottom:4px}}svg{{width:100%;height:"
      "auto}}"
      "svg.key{{width:10px;height:10px}}.wide{{overflow-x:auto}}"
      "table{{border-collapse:collapse;margin-bottom:14px}}"
      "th,td{{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--frame);"
      "white-space:nowrap}}th{{font-weight:400;color:var(--quiet)}}"
      "ul{{margin:6px 0 "
      "0;padding-left:18px}}.note{{color:var(--quiet)}}\n</style>{}</head>\n<body>\n",
      escaped_markup(title), page_style(), head);
}

std::string run_charts(const std::vector<RunRecords>& runs) {
  std::string text = chart_of(runs, "Loss: training thin, validation with dots", Scale::LogAllowed,
                              {{&RunRecords::train_loss, "training loss", Kind::Thin},
                               {&RunRecords::validation_loss, "validation loss", Kind::Dots}});
  text +=
      chart_of(runs, "Top-1 accuracy in percent: training thin, validation with dots", Scale::Even,
               {{&RunRecords::train_top1, "training, mean of the epoch", Kind::Thin},
                {&RunRecords::validation_top1, "validation", Kind::Dots},
                {&RunRecords::averaged_top1, "validation of averaged weights", Kind::Dashed}});
  text += chart_of(runs, "Learning rate", Scale::FromZero,
                   {{&RunRecords::learning_rate, "learning rate", Kind::Thin}});
  text += chart_of(runs, "Images per second, of all workers", Scale::FromZero,
                   {{&RunRecords::images_per_s, "images/s", Kind::Thin}});
  for (const RunRecords& run : runs) {
    const std::string of_run = runs.size() == 1 ? "" : ": " + run.name;
    text += draw_shares("Where the time of steps went" + of_run, run.ranks);
    text += draw_timeline("Attempts and failures" + of_run, run.launchers);
  }
  return text;
}

std::string report_page(const std::vector<RunRecords>& runs) {
  std::string title = runs.size() == 1 ? runs.front().name : fmt::format("{} runs", runs.size());
  // Whatever a name in a file may look like: this page loads nothing and runs nothing.
  const std::string policy =
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">";
  std::string text =
      page_head(title, policy) + "<h1>" + escaped_markup(title) + "</h1>\n" + table_of(runs);
  text += "<main>\n" + run_charts(runs) + "</main>\n";
  for (const RunRecords& run : runs) {
    for (const std::string& note : run.notes) {
      text += "<p class=\"note\">" + escaped_markup(note) + "</p>\n";
    }
  }
  return text + "</body></html>\n";
}

}  // namespace ddprun::plot
