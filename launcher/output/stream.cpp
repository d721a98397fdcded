// In which order a stream's copies are made: the log first, since the console may be slow.
#include "launcher/output/stream.h"

namespace ddprun::launcher {

void OutputStream::take(std::string_view bytes, bool alone) {
  if (log) log->add(bytes);
  if (filtered) {
    filter->add(bytes, found_);
    filtered->take(found_);
  }
  if (console == nullptr) return;
  using Early = OutputLines::Early;
  const Early early = alone                                   ? Early::All
                      : console->may_redraw(this, local_rank) ? Early::Redraws
                                                              : Early::Nothing;
  lines_.add(bytes, early, [this](std::string_view text) { show(text); });
  console->write_some();
}

// Not where the console is a pipe or a file: who reads it later, or line by line, wants whole
// lines. Nor where equal lines are collapsed, which they could not be any more.
bool OutputStream::holds_open_line() const {
  return console != nullptr && console->is_terminal() && !collapsing && lines_.holds_text();
}

// Another's progress bar, or one of this worker's other stream, makes room and is drawn below:
// waited for, it might be one that stands still because of the question.
void OutputStream::show_open_line() {
  if (!holds_open_line()) return;
  lines_.finish([this](std::string_view text) { show(text); });
  console->write_some();
}

bool OutputStream::congested() const {
  return (console != nullptr && console->congested()) || (log && log->congested()) ||
         (filtered && filtered->congested());
}

void OutputStream::show(std::string_view text) {
  const bool whole = text.back() == '\n';
  if (!whole && text.find('\r') != text.npos) console->claim_redraw(this, local_rank);
  if (collapsing && whole && !line_shown_) return collapsing->add(local_rank, text);
  if (!collapsing) return console->add(this, prefix, text);
  // A line that is shown while it grows: in order with what waits of this rank.
  collapsing->show_of(local_rank);
  const std::size_t end = line_shown_ ? text.find('\n') : text.npos;
  const std::size_t own = end == text.npos ? text.size() : end + 1;
  console->add(this, prefix, text.substr(0, own));
  line_shown_ = text[own - 1] != '\n';
  if (own < text.size()) collapsing->add(local_rank, text.substr(own));
}

void OutputStream::end() {
  asio::error_code ignored;
  descriptor.close(ignored);
  leave_destinations();
}

void OutputStream::leave_destinations() {
  log.reset();
  if (filtered) {
    filter->finish(found_);
    filtered->take(found_);
    filtered.reset();
  }
  filter.reset();
  if (console == nullptr) return;
  lines_.finish([this](std::string_view text) {
    if (collapsing && !line_shown_) {
      collapsing->add(local_rank, std::string(text) + '\n');
    } else {
      console->add(this, prefix, text);
    }
  });
  if (collapsing) collapsing->remove_writer(local_rank);
  collapsing.reset();
  line_shown_ = false;
  console->forget(this);
  console->write_some();
  console = nullptr;
}

}  // namespace ddprun::launcher
