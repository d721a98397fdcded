// Three variables without PET_ before them, because they are set once for a machine or a cluster
// and not for a job.
#include "launcher/options/secret_options.h"

#include <utility>

#include "launcher/options/endpoint_options.h"
#include "launcher/options/values.h"
#include "rendezvous/secure/job_secret.h"

namespace ddprun::launcher {

void add_secret_variables(SplitArguments& split, const EnvironmentLookup& environment) {
  for (const auto& [option, variable] :
       {std::pair("secret-file", "DDPRUN_SECRET_FILE"), std::pair("auth", "DDPRUN_AUTH"),
        std::pair("encrypt-gradients", "DDPRUN_ENCRYPT_GRADIENTS")}) {
    const auto value = environment(variable);
    if (!value || value->empty() || split.find(option) != nullptr) continue;
    split.options[option] = {*value, std::string(variable) + "=" + *value};
  }
}

void decide_secret(const SplitArguments& given, const EnvironmentLookup& environment,
                   LaunchOptions& result) {
  const auto* auth = given.find("auth");
  if (auth != nullptr && !auth->value.empty()) {
    result.auth = parse_choice(*auth, {"secret", "none"}) == "none" ? Auth::None : Auth::Secret;
  }
  const auto* file = given.find("secret-file");
  if (file != nullptr && !file->value.empty()) {
    if (!is_printable(file->value)) {
      throw usage_error(file->source + ": expected the name of a file, or - for stdin");
    }
    result.secret_file = file->value;
    result.secret_file_given = true;
    if (result.auth == Auth::None) {
      result.notes.push_back(file->source + " has no effect: " + auth->source);
    }
    return;
  }
  result.secret_file = rendezvous::usual_secret_file(environment);
}

}  // namespace ddprun::launcher
