// What nodes have said, megabytes in a job of thousands of ranks, is read in a thread: meanwhile
// this node has to hear heartbeats.
#include "launcher/job_stacks.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "launcher/stall/equal_stacks.h"

namespace ddprun::launcher {
namespace {

// A stall lasts until somebody ends it, and all who see it do so within moments.
constexpr std::chrono::seconds kept_for{20};
constexpr std::chrono::seconds read_limit{8};
// Longer than the others and this node may take (job_view.cpp, watched_job.cpp), and the reading.
constexpr std::chrono::seconds asked_for{30};

}  // namespace

// While the others or this one have not answered.
struct JobStacks::Asked {
  int number = 0;
  int round = 0;
  std::optional<NodeLines> own;
  std::optional<std::vector<rendezvous::NodeTold>> others;
};

JobStacks::JobStacks(asio::io_context& io, const JobView& view, Own own)
    : view_(view), own_(std::move(own)), read_call_(io, "what reads stacks") {}

void JobStacks::collect(int round, std::function<void(const Lines&)> done) {
  const auto now = Clock::now();
  if (round == round_ && now < kept_until_) return done(kept_);
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1 && now < asked_until_) return;
  asked_until_ = now + asked_for;
  auto asked = std::make_shared<Asked>();
  asked->number = ++number_;
  asked->round = round;
  view_.stacks_of_others([this, asked](const std::vector<rendezvous::NodeTold>& nodes) {
    asked->others = nodes;
    read(asked);
  });
  own_([this, asked](NodeLines own) {
    asked->own = std::move(own);
    read(asked);
  });
}

void JobStacks::read(const std::shared_ptr<Asked>& asked) {
  if (asked->number != number_ || !asked->own || !asked->others) return;
  auto lines = std::make_shared<Lines>();
  read_call_.start(
      [asked, lines] {
        std::erase_if(*asked->others, [](const auto& node) { return node.is_own; });
        std::vector<NodeLines> nodes = lines_of(*asked->others);
        nodes.push_back(std::move(*asked->own));
        std::stable_sort(nodes.begin(), nodes.end(), [](const NodeLines& a, const NodeLines& b) {
          return static_cast<unsigned>(a.node_rank) < static_cast<unsigned>(b.node_rank);
        });
        *lines = equal_stack_lines(std::move(nodes));
      },
      read_limit,
      [this, lines, round = asked->round](const std::string& why) {
        if (!why.empty()) return tell({why});
        round_ = round;
        kept_until_ = Clock::now() + kept_for;
        kept_ = *lines;
        tell(kept_);
      });
}

void JobStacks::tell(const Lines& lines) {
  for (const auto& done : std::exchange(waiting_, {})) done(lines);
}

}  // namespace ddprun::launcher
