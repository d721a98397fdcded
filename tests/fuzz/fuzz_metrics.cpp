// Files of a run that anything may have written: what is taken of them can be drawn, and what they
// say is text in the page.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "plot/report_page.h"
#include "plot/run_records.h"
#include "plot/time_charts.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::plot;
using ddprun::fuzz::require;

namespace {

void check(const Curve& curve, std::size_t bytes) {
  require(curve.size() * 20 <= bytes, "more points than there are lines for");
  for (std::size_t i = 0; i < curve.size(); ++i) {
    require(std::isfinite(curve[i].value) && curve[i].at >= 0, "a point that has no place");
    require(i == 0 || curve[i].at > curve[i - 1].at, "steps do not rise");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  RunRecords run;
  run.name = "run";
  rank_of_metrics(text);
  // In two pieces, as of two files.
  add_records(run, text.substr(0, size / 2), "one");
  add_records(run, text.substr(size / 2), "two");
  for (const Curve* curve :
       {&run.train_loss, &run.validation_loss, &run.train_top1, &run.validation_top1,
        &run.averaged_top1, &run.learning_rate, &run.images_per_s}) {
    check(*curve, size);
  }
  for (const auto& [rank, time] : run.ranks) {
    const TimeShares shares = shares_of(time);
    require(shares.data >= 0 && shares.waiting >= 0 && shares.compute >= -1e-9 &&
                std::abs(shares.data + shares.waiting + shares.compute - 1) < 1e-6,
            "shares that are no parts of one");
  }
  const std::string page = report_page({run, run});
  require(page.find("<script") == page.npos, "a page that does more than show");
  return 0;
}
