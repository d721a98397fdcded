// --report: what this run's metrics say so far, as a page with pictures.
#pragma once

#include <filesystem>
#include <string>

namespace ddprun::trainer {

// Throws std::runtime_error where write_run_page() could not write it.
void require_place(const std::filesystem::path& page);

// `metrics` as --metrics was given: with {rank} in it the page is of all ranks' files. Replaces the
// page that was there. Throws std::runtime_error that says what cannot be read or written.
void write_run_page(const std::filesystem::path& page, const std::string& metrics);

}  // namespace ddprun::trainer
