// The one place where events of a run become JSON.
#include "trainer/report/metrics_line.h"

#include <nlohmann/json.hpp>

namespace ddprun::trainer {

std::string metrics_line(const std::string& event, double unix_time_s,
                         const MetricsFields& fields) {
  nlohmann::ordered_json line{{"event", event}, {"time", unix_time_s}};
  for (const MetricsField& field : fields) {
    std::visit([&](const auto& value) { line[field.name] = value; }, field.value);
  }
  return line.dump(-1, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ddprun::trainer
