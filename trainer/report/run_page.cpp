// Read from the files, and not from what this process has told: a run that was started again has
// its first part in them, too.
#include "trainer/report/run_page.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "plot/report_page.h"
#include "plot/run_files.h"
#include "trainer/formats/whole_file.h"

namespace ddprun::trainer {

void require_place(const std::filesystem::path& page) {
  const std::filesystem::path folder = page.has_parent_path() ? page.parent_path() : ".";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  throw std::runtime_error(fmt::format("--report: no file can be made in {}: {}", folder.string(),
                                       std::strerror(errno)));
}

void write_run_page(const std::filesystem::path& page, const std::string& metrics) {
  write_whole_file(page, plot::report_page(plot::read_runs({metrics})));
}

}  // namespace ddprun::trainer
