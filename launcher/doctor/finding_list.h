// What is found on one machine, as it is found. A core.
#pragma once

#include <string>
#include <utility>

#include "launcher/doctor/finding.h"

namespace ddprun::launcher {

class FindingList {
 public:
  // `number`: of the host, `where`: its name.
  FindingList(int number, std::string where) : number_(number), where_(std::move(where)) {}

  void green(const std::string& what, const std::string& value) {
    findings_.push_back({Finding::Level::Green, where_, what, value, "", "", {number_}});
  }
  void amber(const std::string& what, const std::string& value, const std::string& reason,
             const std::string& remedy) {
    findings_.push_back({Finding::Level::Amber, where_, what, value, reason, remedy, {number_}});
  }
  void red(const std::string& what, const std::string& value, const std::string& reason,
           const std::string& remedy) {
    findings_.push_back({Finding::Level::Red, where_, what, value, reason, remedy, {number_}});
  }

  Findings take() { return std::move(findings_); }

 private:
  const int number_;
  const std::string where_;
  Findings findings_;
};

}  // namespace ddprun::launcher
