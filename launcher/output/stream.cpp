// In which order a stream's copies are made: the log first, since the console may be slow.
#include "launcher/output/stream.h"

#include <cstring>

namespace ddprun::launcher {
namespace {

std::string complaint(const OutputLog& log, int error) {
  return "ddprun: cannot write the log file " + log.path() + ": " + std::strerror(error) +
         "; the worker goes on without it";
}

}  // namespace

void OutputStream::take(std::string_view bytes, bool alone, const Complain& complain) {
  if (log) {
    if (const int error = log->write(bytes)) {
      // A full disk costs the log, and not the worker.
      const std::string text = complaint(*log, error);
      log.reset();
      complain(text);
    }
  }
  if (filtered) keep_filtered(bytes, complain);
  if (console == nullptr) return;
  using Early = OutputLines::Early;
  const Early early = alone                                   ? Early::All
                      : console->may_redraw(this, local_rank) ? Early::Redraws
                                                              : Early::Nothing;
  lines_.add(bytes, early, [this](std::string_view text) { show(text); });
  console->write_some();
}

void OutputStream::keep_filtered(std::string_view bytes, const Complain& complain) {
  filter->add(bytes, found_);
  if (found_.empty()) return;
  const int error = filtered->write(found_);
  found_.clear();
  if (error == 0) return;
  complain(complaint(*filtered, error));
  filtered.reset();
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
    filtered->write(found_);
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
