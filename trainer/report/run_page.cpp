// Read from the files, and not from what this process has told: a run that was started again has
// its first part in them, too.
#include "trainer/report/run_page.h"

#include <stdexcept>

#include "plot/report_page.h"
#include "plot/run_files.h"
#include "trainer/formats/whole_file.h"

namespace ddprun::trainer {

void require_place(const std::filesystem::path& page) {
  try {
    require_place_for_file(page);
  } catch (const FileAccessError& error) {
    throw std::runtime_error(std::string("--report: ") + error.what());
  }
}

void write_run_page(const std::filesystem::path& page, const std::string& metrics) {
  write_whole_file(page, plot::report_page(plot::read_runs({metrics})));
}

}  // namespace ddprun::trainer
