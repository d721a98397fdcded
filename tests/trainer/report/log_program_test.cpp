// What `train` leaves behind for people to look at: event files, traces, metrics.
#include <algorithm>
#include <map>

#include "tests/testing/catch.h"
#include "tests/testing/process.h"
#include "tests/trainer/train_program.h"

using namespace ddprun::trainer;

namespace {

// `arguments` come after those of a small run over 7 steps an epoch.
void train(const ScratchFolder& folder, const std::string& arguments, int workers = 1) {
  const Result result = run_train(
      workers > 1 ? workers : 0,
      "--dataset synthetic --synthetic-images 112 --synthetic-classes 10 --image-size 20 "
      "--model convnet --batch-size 16 --lr 0.01 --print-freq 1 --workers 0 --device cpu " +
          arguments,
      folder);
  INFO(arguments << "\n" << result.output);
  REQUIRE(result.code == 0);
}

// Of complete events only, in nanoseconds.
struct Span {
  std::string name, category;
  std::int64_t thread, start_ns, end_ns;
  bool within(const Span& other) const {
    return other.start_ns <= start_ns && end_ns <= other.end_ns;
  }
};

std::vector<Span> spans_of(const Json& trace) {
  const auto ns = [](const Json& us) { return std::llround(us.get<double>() * 1000); };
  std::vector<Span> spans;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    spans.push_back({event["name"], event["cat"], event["tid"], ns(event["ts"]),
                     ns(event["ts"]) + ns(event["dur"])});
  }
  return spans;
}

std::vector<Span> named(const std::vector<Span>& spans, const std::string& name) {
  std::vector<Span> found;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(found),
               [&](const Span& span) { return span.name == name; });
  return found;
}

// The spans of each thread lie within each other or apart.
bool nest(const std::vector<Span>& spans) {
  std::map<std::int64_t, std::vector<Span>> threads;
  for (const Span& span : spans) threads[span.thread].push_back(span);
  for (auto& [thread, own] : threads) {
    std::stable_sort(own.begin(), own.end(), [](const Span& a, const Span& b) {
      return std::pair(a.start_ns, -a.end_ns) < std::pair(b.start_ns, -b.end_ns);
    });
    std::vector<Span> open;
    for (const Span& span : own) {
      while (!open.empty() && open.back().end_ns <= span.start_ns) open.pop_back();
      if (!open.empty() && !span.within(open.back())) {
        UNSCOPED_INFO(span.name << " crosses the end of " << open.back().name);
        return false;
      }
      open.push_back(span);
    }
  }
  return true;
}

std::int64_t overlap_ns(const Span& a, const Span& b) {
  return std::max<std::int64_t>(0, std::min(a.end_ns, b.end_ns) - std::max(a.start_ns, b.start_ns));
}

}  // namespace

TEST_CASE("TensorBoard's own reader shows a run that was interrupted as one",
          "[trainer][program][oracle]") {
  if (!has_oracle() ||
      run_command(in_quotes(oracle_python) + " -c 'import tensorboard'", "/dev/null") != 0) {
    DDPRUN_SKIP("no tensorboard in .deps/peer (scripts/setup --peer installs it)");
  }
  const ScratchFolder folder;
  const std::string common = "--tensorboard " + in_quotes(folder / "tb") + " --checkpoint-dir " +
                             in_quotes(folder / "checkpoints");
  // Two epochs; then the second one's checkpoint is lost, and the run goes on from the first.
  train(folder, "--epochs 2 --metrics " + in_quotes(folder / "lost") + " " + common);
  std::filesystem::remove(folder / "checkpoints/epoch_0002_step_0000014.safetensors");
  train(folder, "--epochs 3 --metrics " + in_quotes(folder / "metrics") + " " + common);

  // Its log says that later steps were seen before; that is not part of the answer.
  const std::string reader = DDPRUN_SOURCE_DIR "/tests/trainer/report/tensorboard_reader.py";
  const int code = run_command("(" + in_quotes(oracle_python) + " " + in_quotes(reader) + " " +
                                   in_quotes(folder / "tb") + " 2> /dev/null)",
                               folder / "shown");

  REQUIRE(code == 0);
  const Json shown = Json::parse(content_of(folder / "shown"));
  std::vector<Json> expected = events(folder / "lost", "train");
  REQUIRE(expected.size() == 14);
  expected.resize(7);
  for (const Json& event : events(folder / "metrics", "train")) expected.push_back(event);
  REQUIRE(expected.size() == 21);
  const std::map<std::string, std::string> fields{{"train/loss", "loss"},
                                                  {"train/prec1", "prec1"},
                                                  {"train/lr", "lr"},
                                                  {"train/images_per_s", "images_per_s"},
                                                  {"train/exposed_comm_s", "exposed_comm_s"}};
  for (const auto& [tag, field] : fields) {
    INFO(tag);
    REQUIRE(shown["scalars"].contains(tag));
    const Json& points = shown["scalars"][tag];
    REQUIRE(points.size() == 21);
    for (std::size_t i = 0; i < 21; ++i) {
      CHECK(points[i][0] == expected[i]["step"]);
      CHECK(points[i][1].get<float>() == Approx(expected[i][field].get<float>()));
    }
  }
  const Json& validations = shown["scalars"]["val/prec1"];
  REQUIRE(validations.size() == 3);
  CHECK(validations[0][0] == 7);
  CHECK(validations[1][0] == 14);
  CHECK(validations[2][0] == 21);
  REQUIRE(shown["text"]["run"].size() == 2);
  CHECK(contains(shown["text"]["run"][1][1], "--epochs 3"));
}

TEST_CASE("an evaluation takes nothing back of what TensorBoard shows", "[trainer][program]") {
  const ScratchFolder folder;
  // The names of event files, but not of folders.
  const auto files_in = [](const std::filesystem::path& path) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    return files;
  };
  const std::string arguments = "--checkpoint-dir " + in_quotes(folder / "checkpoints") +
                                " --tensorboard " + in_quotes(folder / "tb");
  // Event.session_log with the status START: later steps of other files are dropped.
  const std::string session_start = "\x3a\x02\x08\x01";
  train(folder, "--epochs 1 " + arguments);
  const auto of_training = files_in(folder / "tb");
  REQUIRE(of_training.size() == 1);
  CHECK(contains(content_of(of_training[0]), session_start));

  train(folder, "--evaluate " + arguments);

  // A newer file beside the training's would hide what that has yet to write.
  CHECK(files_in(folder / "tb") == of_training);
  const auto of_evaluation = files_in(folder / "tb/evaluation");
  REQUIRE(of_evaluation.size() == 1);
  const std::string evaluation = content_of(of_evaluation[0]);
  CHECK_FALSE(contains(evaluation, session_start));
  CHECK(contains(evaluation, "val/prec1"));
}

TEST_CASE("a trace of two workers shows communication beside backward", "[trainer][program]") {
  const ScratchFolder folder;
  train(folder,
        "--model resnet18 --batch-size 4 --image-size 32 --steps 6 --no-validation --overlap "
        "--profile-steps 2:5 --profile " +
            in_quotes(folder / "trace"),
        2);

  std::vector<std::vector<Span>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    INFO("rank " << rank);
    const Json trace =
        Json::parse(content_of(folder / ("trace/rank_" + std::to_string(rank) + ".json")));
    for (const Json& event : trace["traceEvents"]) CHECK(event["pid"] == rank);
    CHECK(trace["otherData"]["world_size"] == 2);
    CHECK(trace["otherData"]["dropped_spans"] == 0);
    const std::vector<Span> spans = spans_of(trace);
    ranks.push_back(spans);
    CHECK(nest(spans));

    const auto steps = named(spans, "step");
    REQUIRE(steps.size() == 3);
    for (const char* phase : {"data wait", "forward", "backward", "optimizer", "report"}) {
      INFO(phase);
      const auto found = named(spans, phase);
      REQUIRE(found.size() == 3);
      for (std::size_t i = 0; i < 3; ++i) CHECK(found[i].within(steps[i]));
    }
    const auto reductions = named(spans, "all_reduce");
    const auto waits = named(spans, "wait for gradients");
    REQUIRE(waits.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      const Span backward = named(spans, "backward")[i];
      CHECK(waits[i].within(backward));
      CHECK(waits[i].thread == backward.thread);
      std::int64_t hidden_ns = 0;
      int in_this_step = 0;
      for (const Span& reduction : reductions) {
        if (!reduction.within(backward)) continue;  // The workers' vote whether to stop.
        CHECK(reduction.thread != backward.thread);
        in_this_step += 1;
        hidden_ns += overlap_ns(reduction, backward) - overlap_ns(reduction, waits[i]);
      }
      CHECK(in_this_step >= 3);
      CHECK(hidden_ns > 0);
    }
  }
  // One clock: what the ranks do together overlaps.
  CHECK(overlap_ns(named(ranks[0], "step")[1], named(ranks[1], "step")[1]) > 0);
}

TEST_CASE("operations are traced within the phases", "[trainer][program]") {
  const ScratchFolder folder;
  train(folder, "--steps 3 --no-validation --profile-ops --profile-steps 0:2 --profile " +
                    in_quotes(folder / "trace"));

  const auto spans = spans_of(Json::parse(content_of(folder / "trace/rank_0.json")));

  CHECK(nest(spans));
  const auto phases = named(spans, "forward");
  const auto convolutions = named(spans, "aten::conv2d");
  REQUIRE(phases.size() == 2);
  REQUIRE(convolutions.size() == 4);  // Two layers.
  CHECK(convolutions[0].within(phases[0]));
  CHECK(convolutions[3].within(phases[1]));
}

TEST_CASE("a run that ends within the window leaves a trace, one before it a warning",
          "[trainer][program]") {
  const ScratchFolder folder;
  train(folder, "--epochs 1 --profile-steps 5:500 --profile " + in_quotes(folder / "trace"));
  const auto spans = spans_of(Json::parse(content_of(folder / "trace/rank_0.json")));
  CHECK(named(spans, "step").size() == 2);
  CHECK(named(spans, "validation").size() == 1);

  train(folder, "--epochs 1 --profile " + in_quotes(folder / "none"));
  CHECK(contains(content_of(folder / "out"), "--profile: the run ended after 7 steps, before"));
  CHECK_FALSE(std::filesystem::exists(folder / "none/rank_0.json"));

  // Also one that ends with an error: the loss is not a number soon.
  const int code = run_command(by_itself + "TMPDIR=" + in_quotes(folder / ".") +
                                   " '" DDPRUN_TRAIN "' --dataset synthetic --image-size 20 " +
                                   "--model convnet --lr 1e30 --print-freq 2 --device cpu " +
                                   "--profile-steps 0:500 --profile " + in_quotes(folder / "bad"),
                               folder / "out");
  CHECK(code == 1);
  CHECK_FALSE(spans_of(Json::parse(content_of(folder / "bad/rank_0.json"))).empty());
}

TEST_CASE("traces of all ranks are merged into one file", "[trainer][program]") {
  const ScratchFolder folder;
  train(folder,
        "--steps 4 --no-validation --profile-steps 1:3 --profile " + in_quotes(folder / "trace"),
        2);
  // Of an earlier run with more ranks.
  std::string other = content_of(folder / "trace/rank_1.json");
  write_bytes(folder / "trace/rank_2.json", other);

  const int code =
      run_command("'" DDPRUN_SOURCE_DIR "/scripts/merge_traces' " + in_quotes(folder / "trace"),
                  folder / "out");

  INFO(content_of(folder / "out"));
  REQUIRE(code == 0);
  CHECK(contains(content_of(folder / "out"), "rank_2.json"));
  const Json merged = Json::parse(content_of(folder / "trace/all_ranks.json"));
  std::map<int, int> steps;
  for (const Json& event : merged["traceEvents"]) steps[event["pid"]] += event["name"] == "step";
  CHECK(steps == std::map<int, int>{{0, 2}, {1, 2}});
}

TEST_CASE("metrics say what steps cost, and how many there were", "[trainer][program]") {
  const ScratchFolder folder;
  train(folder, "--epochs 1 --metrics " + in_quotes(folder / "rank_{rank}.jsonl"), 2);

  for (const char* name : {"rank_0.jsonl", "rank_1.jsonl"}) {
    INFO(name);
    const auto steps = events(folder / name, "train");
    REQUIRE(steps.size() == 4);
    for (const Json& step : steps) {
      CHECK(step["step_s"] > 0);
      CHECK(step["data_s"] <= step["step_s"]);
      CHECK(step["exposed_comm_s"] >= 0);
      CHECK(step["exposed_comm_s"] < step["step_s"]);
      CHECK(step["rss_bytes"] > 10'000'000);
      CHECK(step["rss_peak_bytes"] >= step["rss_bytes"]);
      CHECK_FALSE(step.contains("gpu_allocated_bytes"));
    }
    const Json end = events(folder / name, "end").at(0);
    CHECK(end["steps_per_worker"] == 4);
    CHECK(end["step_s_avg"].get<double>() * 4 == Approx(end["train_s"].get<double>()));
  }
  const std::string out = content_of(folder / "out");
  CHECK(contains(out, "4 steps per worker of 0."));
  CHECK(contains(out, "ETA 0:"));
}

TEST_CASE("a page with pictures is written anew while a run goes on and at its end",
          "[trainer][program]") {
  const ScratchFolder folder;
  const std::string arguments = "--epochs 2 --metrics " + in_quotes(folder / "m_{rank}.jsonl") +
                                " --report " + in_quotes(folder / "run.html");
  train(folder, arguments + " --checkpoint-dir " + in_quotes(folder / "kept") + " --steps 5", 2);
  const std::string first = content_of(folder / "run.html");
  CHECK(contains(first, "<td>5 of 5</td>"));
  CHECK(contains(first, "rank 1: data"));

  // A run that goes on from there has both parts in its page.
  train(folder, arguments + " --checkpoint-dir " + in_quotes(folder / "kept") + " --resume auto",
        2);
  const std::string second = content_of(folder / "run.html");
  CHECK(contains(second, "<td>8 of 8</td>"));
  CHECK(contains(second, "restart 1, from step 5"));
  CHECK_FALSE(std::filesystem::exists(folder / "run.html.new"));
}

TEST_CASE("a full disk costs logs and no training", "[trainer][program]") {
  const ScratchFolder folder;
  std::string arguments = "--dataset synthetic --synthetic-images 960 --synthetic-classes 10";
  arguments += " --image-size 20 --model convnet --batch-size 16 --print-freq 1 --workers 0";
  arguments += " --device cpu --no-validation --epochs 1 --tensorboard " + in_quotes(folder / "tb");
  arguments += " --metrics " + in_quotes(folder / "metrics");

  // No file may grow beyond 4 KiB. What is printed goes through a pipe, which has no such limit.
  const int code = run_command("{ (ulimit -f 8; " + by_itself + "'" DDPRUN_TRAIN "' " + arguments +
                                   "; echo \"code $?\") 2>&1 | cat; }",
                               folder / "out");

  const std::string out = content_of(folder / "out");
  INFO(out);
  CHECK(code == 0);
  CHECK(contains(out, "--tensorboard: cannot write to "));
  CHECK(contains(out, "--metrics: cannot write to "));
  CHECK(contains(out, "--metrics: lines that are missing at the end of "));
  CHECK(contains(out, "Done: 60 steps"));
  CHECK(contains(out, "code 0"));
  CHECK(std::filesystem::file_size(folder / "metrics") <= 4096);
}

TEST_CASE("a console that was full for a moment says so, and what comes next",
          "[trainer][program]") {
  const ScratchFolder folder;
  const auto console = folder / "console";
  // A file may not grow beyond 4 KiB; here it is emptied whenever it is full.
  ddprun::testing::Process process(
      {"/bin/sh", "-c",
       "ulimit -f 8; exec " + by_itself +
           "'" DDPRUN_TRAIN "' --dataset synthetic "
           "--synthetic-images 960 --synthetic-classes 10 --image-size 20 --model convnet "
           "--batch-size "
           "16 --print-freq 1 --workers 0 --device cpu --no-validation --steps 1000000 >> " +
           in_quotes(console) + " 2>&1"});

  const bool told = process.wait_until([&] {
    const std::string shown = content_of(console);
    const std::size_t gap = shown.find(" bytes of output are missing here: File too large\n");
    if (gap != std::string::npos) return contains(shown.substr(gap), "Epoch: [");
    if (shown.size() >= 4096) std::filesystem::resize_file(console, 0);
    return false;
  });

  INFO(content_of(console));
  CHECK(told);
}

TEST_CASE("train with closed standard streams writes nothing of the console into its files",
          "[trainer][program]") {
  const ScratchFolder folder;
  // Its own output is closed, too, so it cannot be run_command's.
  const int code = run_command("(" + by_itself +
                                   "'" DDPRUN_TRAIN
                                   "' --dataset synthetic --synthetic-images 20 "
                                   "--synthetic-classes 2 --image-size 16 --model convnet "
                                   "--batch-size 10 --workers 1 --device "
                                   "cpu --print-freq 1 --steps 5 --metrics " +
                                   in_quotes(folder / "metrics") + " --tensorboard " +
                                   in_quotes(folder / "tb") + " <&- >&- 2>&-)",
                               folder / "out");

  CHECK(code == 0);
  CHECK(events(folder / "metrics", "train").size() == 5);  // Each line is JSON.
  for (const auto& file : std::filesystem::directory_iterator(folder / "tb")) {
    CHECK_FALSE(contains(content_of(file.path()), "Epoch: ["));
  }
}

TEST_CASE("a trace on a GPU shows when the GPU did what", "[trainer][program]") {
  if (!std::filesystem::exists("/dev/nvidiactl")) DDPRUN_SKIP("this machine has no NVIDIA device");
  const ScratchFolder folder;
  train(folder, "--steps 6 --no-validation --device cuda --profile-steps 2:5 --profile " +
                    in_quotes(folder / "trace"));

  const Json trace = Json::parse(content_of(folder / "trace/rank_0.json"));

  std::map<std::string, std::int64_t> threads;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") threads[event["args"]["name"]] = event["tid"];
  }
  REQUIRE(threads.count("GPU: phases") == 1);
  const auto spans = spans_of(trace);
  CHECK(nest(spans));
  const auto steps = named(spans, "step");
  for (const char* phase : {"forward", "backward", "optimizer"}) {
    auto on_gpu = named(spans, phase);
    std::erase_if(on_gpu, [&](const Span& span) { return span.thread != threads["GPU: phases"]; });
    REQUIRE(on_gpu.size() == 3);
    for (const Span& span : on_gpu) CHECK(span.end_ns > span.start_ns);
    // The host queued it before the GPU did it; a microsecond is what the clocks may differ by.
    CHECK(on_gpu[0].start_ns + 1000 >= steps[0].start_ns);
  }
}

TEST_CASE("folders that cannot be written are refused before training", "[trainer][program]") {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "proc/none.html");
  for (const std::string& option :
       {std::string("--tensorboard /proc/none"), std::string("--profile /proc/none"),
        std::string("--report /proc/none/r.html"), std::string("--report /proc/none.html"),
        "--report " + in_quotes(folder / "proc/none.html")}) {
    const int code = run_command(
        by_itself + "'" DDPRUN_TRAIN "' --dataset synthetic --device cpu --steps 1 " +
            "--model convnet --image-size 16 --metrics " + in_quotes(folder / "m") + " " + option,
        folder / "out");
    INFO(content_of(folder / "out"));
    CHECK(code == 2);
    CHECK(contains(content_of(folder / "out"), option.substr(0, option.find(' ')) + ": "));
    CHECK(contains(content_of(folder / "out"), "/proc/none"));
    CHECK(contains(content_of(folder / "out"), "name a place where this user may write"));
  }
}

TEST_CASE("a terminal of unknown width gets lines, as mpirun's that may end in a file",
          "[trainer][program][log]") {
  const ScratchFolder folder;
  for (const int columns : {0, 80}) {
    const std::string inner = "stty cols " + std::to_string(columns) + " rows " +
                              std::to_string(columns == 0 ? 0 : 24) + "; exec " + by_itself +
                              DDPRUN_TRAIN +
                              " --dataset synthetic --synthetic-images 112 --synthetic-classes 10"
                              " --image-size 20 --model convnet --batch-size 16 --print-freq 1"
                              " --workers 0 --device cpu --epochs 1 --no-validation";
    const int code = run_command("script -qec \"" + inner + "\" /dev/null", folder / "out");
    const std::string output = content_of(folder / "out");
    INFO(output);
    REQUIRE(code == 0);
    CHECK(contains(output, "\x1b[K") == (columns > 0));
    CHECK(contains(output, "top-1") == (columns > 0));
    CHECK(contains(output, "Epoch: [1][7/7]") == (columns == 0));
  }
}

TEST_CASE("each epoch leaves a line, and a file few others", "[trainer][program][log]") {
  const ScratchFolder folder;
  const std::string arguments =
      "--dataset synthetic --synthetic-images 112 --synthetic-classes 10 --image-size 20 --model "
      "convnet --batch-size 16 --workers 0 --device cpu ";
  const Result saved = run_train(
      0, arguments + "--epochs 2 --checkpoint-dir " + in_quotes(folder / "checkpoints"), folder);
  INFO(saved.output);
  REQUIRE(saved.code == 0);
  CHECK(contains(saved.output, "\nepoch 1/2  1/7  train "));  // The first step: by time.
  CHECK(contains(saved.output, "\nepoch 1/2  train "));
  CHECK(contains(saved.output, "\nepoch 2/2  train "));
  CHECK(contains(saved.output, "  val "));
  CHECK(contains(saved.output, "  saved, best\n"));
  CHECK_FALSE(contains(saved.output, "Epoch: ["));
  CHECK_FALSE(contains(saved.output, "Test: ["));

  const Result plain = run_train(1, arguments + "--steps 9 --no-validation", folder);
  INFO(plain.output);
  REQUIRE(plain.code == 0);
  CHECK(contains(plain.output, "epoch 1/2  train "));
  CHECK(contains(plain.output, "epoch 2/2  2 of 7 steps  train "));
  CHECK_FALSE(contains(plain.output, "  val "));
  CHECK_FALSE(contains(plain.output, "saved"));
  CHECK_FALSE(contains(plain.output, "best"));
}

TEST_CASE("a terminal shows validating and saving, and its bar ends with the run",
          "[trainer][program][log]") {
  const ScratchFolder folder;
  const std::string arguments = DDPRUN_TRAIN
      " --dataset synthetic --synthetic-images 112 --synthetic-classes 10 --image-size 20 --model "
      "convnet --batch-size 16 --workers 0 --device cpu --steps 3 --checkpoint-dir ";
  const auto shown = [&](const std::string& terminal) {
    const std::string inner = "stty cols 80 rows 24; exec " + by_itself + "TERM=" + terminal + " " +
                              arguments + (folder / terminal).string();
    const int code = run_command("script -qec \"" + inner + "\" /dev/null", folder / "out");
    const std::string output = content_of(folder / "out");
    INFO(output);
    REQUIRE(code == 0);
    return output;
  };
  const std::string output = shown("xterm");
  INFO(output);
  CHECK(contains(output, "epoch 1/1  validating ... "));
  CHECK(contains(output, "saving ..."));
  CHECK(contains(output, "epoch 1/1 1/3 |"));  // Of 7 steps --steps lets 3 be.
  const std::string dumb = shown("dumb");
  INFO(dumb);
  CHECK_FALSE(contains(dumb, "\x1b[K"));
}

TEST_CASE("a path that is not UTF-8 does not end the run", "[trainer][program][log]") {
  const ScratchFolder folder;
  const auto odd = folder / "odd\xff";
  train(folder, "--epochs 1 --no-validation --checkpoint-dir " + in_quotes(odd) + " --metrics " +
                    in_quotes(folder / "metrics"));
  CHECK_FALSE(events(folder / "metrics", "checkpoint").empty());
}
