// ${name} and $name in a text, by the rules of Python's string.Template, as torchrun fills them in.
// A core: no sockets, threads or clock.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace ddprun::launcher {

// "$$" is "$"; names that `values` does not have stay as they are (Template.safe_substitute), and
// are added to `unknown`.
std::string fill_placeholders(const std::string& text,
                              const std::map<std::string, std::string>& values,
                              std::vector<std::string>* unknown = nullptr);

}  // namespace ddprun::launcher
