// The numbers in the pictures: what a reader of the axes would read off them.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "plot/axis.h"
#include "plot/line_chart.h"
#include "plot/report_page.h"
#include "plot/svg_text.h"
#include "plot/time_charts.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::plot;
using ddprun::testing::contains;

namespace {

double number_after(const std::string& text, const std::string& before, std::size_t& at) {
  at = text.find(before, at);
  if (at == text.npos) return NAN;
  at += before.size();
  return std::strtod(text.c_str() + at, nullptr);
}

struct Tick {
  double place, value;
};

// The grid's lines with the numbers beside them.
std::vector<Tick> value_ticks(const std::string& svg) {
  std::vector<Tick> ticks;
  for (std::size_t at = 0;;) {
    std::size_t line = svg.find("class=\"grid\"", at);
    if (line == svg.npos) return ticks;
    const double y = number_after(svg, "y1=\"", line);
    ticks.push_back({y, number_after(svg, "text-anchor=\"end\">", line)});
    at = line;
  }
}

// Those of steps: words in the middle below the plot.
std::vector<Tick> step_ticks(const std::string& svg) {
  std::vector<Tick> ticks;
  for (std::size_t at = 0;;) {
    const double x = number_after(svg, "<text class=\"quiet\" x=\"", at);
    if (at == svg.npos) return ticks;
    const std::size_t end = svg.find('>', at);
    if (svg.substr(at, end - at).find("middle") == std::string::npos) continue;
    ticks.push_back({x, std::strtod(svg.c_str() + end + 1, nullptr)});
  }
}

double read_off(const std::vector<Tick>& ticks, double place) {
  const Tick &a = ticks.front(), &b = ticks.back();
  return a.value + (place - a.place) / (b.place - a.place) * (b.value - a.value);
}

// The points of the first curve, as the axes say them.
Curve curve_in(const std::string& svg) {
  Curve curve;
  std::size_t at = svg.find("points=\"");
  const std::size_t end = svg.find('"', at + 8);
  const std::string points = svg.substr(at + 8, end - at - 8);
  const auto ticks_x = step_ticks(svg), ticks_y = value_ticks(svg);
  REQUIRE(ticks_x.size() > 1);
  REQUIRE(ticks_y.size() > 1);
  const char* next = points.c_str();
  while (*next != '\0') {
    char* rest = nullptr;
    const double x = std::strtod(next, &rest);
    const double y = std::strtod(rest + 1, &rest);
    curve.push_back({read_off(ticks_x, x), read_off(ticks_y, y)});
    next = rest;
  }
  return curve;
}

}  // namespace

TEST_CASE("a curve's points lie where the axes say their values", "[plot]") {
  const Curve given{{10, 2.5}, {20, 1.75}, {30, 2}, {100, 0.5}};
  LineChart chart{"Loss", {{"run", 0, ChartCurve::Kind::Thin, given}}, {{30, "restart 1"}}};

  const std::string svg = draw(chart);

  const Curve seen = curve_in(svg);
  REQUIRE(seen.size() == given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    CHECK(seen[i].at == Approx(given[i].at).margin(0.1));
    CHECK(seen[i].value == Approx(given[i].value).margin(0.005));
  }
  std::size_t at = svg.find("class=\"mark\"");
  REQUIRE(at != svg.npos);
  CHECK(read_off(step_ticks(svg), number_after(svg, "x1=\"", at)) == Approx(30).margin(0.1));
  CHECK(draw({"Nothing", {{"run", 0, ChartCurve::Kind::Thin, {}}}, {}}) == "");
}

TEST_CASE("a few values are dots that tell their numbers", "[plot]") {
  const std::string svg =
      draw({"Top-1", {{"a: validation", 1, ChartCurve::Kind::Dots, {{7, 91.25}, {14, 93}}}}, {}});
  CHECK(contains(svg, "<title>a: validation, step 7: 91.25</title>"));
  CHECK(contains(svg, "<title>a: validation, step 14: 93</title>"));
}

TEST_CASE("an axis is logarithmic where the first values would hide all others", "[plot]") {
  const Axis axis({0.01, 100}, 0, 400, Scale::LogAllowed);
  CHECK(axis.logarithmic());
  CHECK(axis.place(1) == Approx(200));
  CHECK_FALSE(Axis({1, 30}, 0, 400, Scale::LogAllowed).logarithmic());
  CHECK_FALSE(Axis({0, 100}, 0, 400, Scale::LogAllowed).logarithmic());
  CHECK(Axis({50, 100}, 0, 400, Scale::FromZero).place(50) == Approx(200));
}

TEST_CASE("every axis ends, has ticks within it, and keeps equal values in the middle", "[plot]") {
  const double values[] = {0, 1e-12, 1, 1 + 1e-12, -3, 1e15, 1e15 + 0.25, 1e30, -1e30};
  for (const double a : values) {
    for (const double b : values) {
      for (const Scale scale : {Scale::Even, Scale::FromZero, Scale::LogAllowed}) {
        INFO(a << " " << b);
        const Axis axis({a, b}, 0, 100, scale);
        CHECK(std::isfinite(axis.place(a)));
        CHECK(axis.place(a) >= -1e-6);
        CHECK(axis.place(a) <= 100 + 1e-6);
        CHECK(axis.ticks().size() <= 21);
        for (const double tick : axis.ticks()) CHECK(std::isfinite(axis.place(tick)));
      }
    }
  }
  CHECK(Axis({5, 5}, 0, 100).place(5) == Approx(50));
  CHECK(tick_text(0.1) == "0.1");
  CHECK(tick_text(12500) == "12.5k");
  CHECK(tick_text(-2e6) == "-2M");
}

TEST_CASE("of very many points the highest and the lowest stay", "[plot]") {
  Curve many;
  for (int i = 0; i < 100'000; ++i) many.push_back({double(i), std::sin(i * 0.001)});
  many[54'321].value = 50;
  many[54'322].value = -50;

  const Curve few = thinned(many, 500);

  CHECK(few.size() <= 1002);
  CHECK(few.front() == many.front());
  CHECK(few.back() == many.back());
  CHECK(std::count(few.begin(), few.end(), many[54'321]) == 1);
  CHECK(std::count(few.begin(), few.end(), many[54'322]) == 1);
  CHECK(std::is_sorted(few.begin(), few.end(), [](auto& a, auto& b) { return a.at < b.at; }));
  CHECK(thinned(few, 500) == few);
}

TEST_CASE("the parts of a rank's bar are as long as its times", "[plot]") {
  RankTime time{10, 2, 3.0, 20};
  CHECK(shares_of(time).data == Approx(0.2));
  CHECK(shares_of(time).waiting == Approx(0.3));
  CHECK(shares_of(time).compute == Approx(0.5));

  const std::string svg = draw_shares("Time", {{4, time}});
  std::size_t at = 0;
  double widths[3];
  for (double& width : widths) width = number_after(svg, "width=\"", at = svg.find("<rect", at));
  const double whole = widths[0] + widths[1] + widths[2];
  CHECK(widths[0] / whole == Approx(0.2).margin(0.001));
  CHECK(widths[1] / whole == Approx(0.5).margin(0.001));
  CHECK(widths[2] / whole == Approx(0.3).margin(0.001));
  CHECK(contains(svg, "rank 4: data 20.0 % of 10 s in 20 steps"));
  CHECK(contains(svg, "rank 4: communication 30.0 %"));
  // On a GPU nobody knows the wait apart.
  time.waiting_s.reset();
  CHECK(contains(draw_shares("Time", {{0, time}}), "compute and communication 80.0 %"));
}

TEST_CASE("of a thousand ranks those that hold up the others are shown", "[plot]") {
  std::map<std::int64_t, RankTime> ranks;
  for (int i = 0; i < 1000; ++i) ranks[i] = {10, 1, i == 777 ? 0.0 : 4.0, 20};
  const std::string svg = draw_shares("Time", ranks);
  CHECK(contains(svg, "the 64 of 1000 ranks that computed longest"));
  CHECK(contains(svg, "rank 777"));
  CHECK_FALSE(contains(svg, "rank 900"));
}

TEST_CASE("a timeline's bars are as long as the attempts", "[plot]") {
  LauncherTrack track{"node-1", 7, 100, 140, {}, {}};
  track.attempts = {{0, 100, 110, false}, {1, 120, 140, true}};
  track.happenings = {{109, "rank 3 ended by SIGKILL", true}};
  LauncherTrack other = track;
  other.host = "node-2";

  const std::string svg = draw_timeline("Attempts", {track, other});

  std::size_t at = svg.find("class=\"bad\" x=\"");
  const double failed = number_after(svg, "width=\"", at);
  at = svg.find("class=\"good\" x=\"");
  CHECK(number_after(svg, "width=\"", at) / failed == Approx(2).margin(0.01));
  CHECK(contains(svg, "attempt 0 on node-1: 0.000 s to 10.000 s, was ended"));
  CHECK(contains(svg, "<b>9.000 s</b> 2 launchers: rank 3 ended by SIGKILL"));
}

TEST_CASE("a run of event logs alone ends as the launcher that was heard last", "[plot]") {
  RunRecords run;
  LauncherTrack first, second;
  first.last_s = 1;
  first.exit_status = 75;
  second.last_s = 2;
  run.launchers = {first, second};
  CHECK(contains(report_page({run}), "<td>no end yet</td>"));
  run.launchers[1].exit_status = 3;
  CHECK(contains(report_page({run}), "<td>exit status 3</td>"));
  run.launchers[1].exit_status = 0;
  CHECK(contains(report_page({run}), "<td>done</td>"));
}

TEST_CASE("the best accuracy is that of the weights that are kept", "[plot]") {
  RunRecords run;
  run.validation_top1 = {{10, 61}, {20, 64}, {30, 62}};
  CHECK(contains(report_page({run}), "<td>64.00 %</td>"));
  // With --ema the averaged ones are, also where the others would be better.
  run.averaged_top1 = {{10, 40}, {20, 63}, {30, 62.5}};
  CHECK(contains(report_page({run}), "<td>63.00 %</td>"));
  run.validation_top1.clear();
  run.averaged_top1.clear();
  CHECK_FALSE(contains(report_page({run}), " %</td>"));
}

TEST_CASE("what a file says is text in the page and nothing else", "[plot]") {
  RunRecords run;
  run.name = "<script>alert(1)</script>&\"'\x01";
  run.model = "</style><b>";
  run.train_loss = {{1, 1}, {2, 2}};
  run.notes = {"<i>"};
  run.launchers = {{"<u>", 1, 0, 1, {{0, 0, 1, true}}, {{0, "<s>", true}}}};
  const std::string page = report_page({run});
  for (const char* tag : {"<script", "</style><b>", "<i>", "<u>", "<s>", "\x01"}) {
    INFO(tag);
    CHECK_FALSE(contains(page, tag));
  }
  CHECK(contains(page, "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39; "));
  // Nothing is fetched from anywhere.
  CHECK_FALSE(contains(page, "://"));
  CHECK_FALSE(contains(page, "src="));
  CHECK(contains(page, "prefers-color-scheme:dark"));
}
