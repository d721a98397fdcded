// Lines of --metrics to the byte: programs of others read them.
#include "trainer/report/metrics_line.h"

#include <limits>

#include "tests/testing/catch.h"

using namespace ddprun::trainer;

TEST_CASE("a line of metrics has its fields in order, each of its own type", "[trainer][metrics]") {
  const std::size_t replicas = 2;
  CHECK(metrics_line("start", 1.5,
                     {{"rank", 0},
                      {"replicas", replicas},
                      {"taken", true},
                      {"lr", 1.0},
                      {"scale", 0.5F},
                      {"device", "cpu"}}) ==
        R"({"event":"start","time":1.5,"rank":0,"replicas":2,"taken":true,"lr":1.0,"scale":0.5,)"
        R"("device":"cpu"})");
  CHECK(metrics_line("end", 2, {}) == R"({"event":"end","time":2.0})");
}

TEST_CASE("what JSON cannot say leaves a line of metrics that can be read", "[trainer][metrics]") {
  CHECK(metrics_line("train", 0,
                     {{"loss", std::numeric_limits<double>::quiet_NaN()},
                      {"lr", std::numeric_limits<double>::infinity()}}) ==
        R"({"event":"train","time":0.0,"loss":null,"lr":null})");
  CHECK(metrics_line("checkpoint", 0, {{"path", "a\"\n\xff"}}) ==
        "{\"event\":\"checkpoint\",\"time\":0.0,\"path\":\"a\\\"\\n\xef\xbf\xbd\"}");
}
