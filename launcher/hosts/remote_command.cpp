// The script names no value but the launcher's path: what differs from job to job goes another way.
#include "launcher/hosts/remote_command.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "rendezvous/control/visible_text.h"

namespace ddprun::launcher {
namespace {

constexpr const char* copy_failed = "cannot copy ddprun";

bool said_any(const std::string& said, std::initializer_list<const char*> texts) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const char* text) { return said.find(text) != std::string::npos; });
}

// Of a cause that ssh itself names when it ends with 255; "" where it names none of these.
std::string advice_on_cause(const std::string& said, const std::string& login) {
  if (said_any(said, {"REMOTE HOST IDENTIFICATION HAS CHANGED"})) {
    return "its key is another one than before: make sure that it is the right host, then "
           "ssh-keygen -R and ssh " +
           login + " once by hand";
  }
  if (said_any(said, {"Host key verification failed"})) {
    return "its key is not known here: ssh " + login +
           " once by hand, or --ssh-options='-o StrictHostKeyChecking=accept-new'";
  }
  if (said_any(said, {"Permission denied", "Too many authentication failures"})) {
    return "a login without a password is needed: ssh-copy-id " + login +
           ", an agent (ssh-add), or --ssh-options='-i KEY'";
  }
  if (said_any(said, {"Could not resolve hostname"})) {
    return "check the name, or give it an address in ~/.ssh/config";
  }
  if (said_any(said, {"Connection refused"})) {
    return "is sshd running there, and on this port? Another one: --ssh-options='-p PORT'";
  }
  if (said_any(said, {"timed out", "No route to host", "unreachable"})) {
    return "is it up, and does a firewall let ssh pass?";
  }
  return "";
}

}  // namespace

bool is_turned_away(int status, const std::string& said) {
  if (status != 255) return false;
  // The same words follow the cause where a host on the way cannot be passed.
  return said_any(said, {"kex_exchange_identification", "ssh_exchange_identification"}) &&
         advice_on_cause(said, "").empty() &&
         !said_any(said, {"stdio forwarding failed", "not found"});
}

bool take_copy_wanted(std::string& said) {
  const std::size_t at = said.find(copy_wanted);
  if (at == said.npos) return false;
  said.erase(at, std::string_view(copy_wanted).size());
  return true;
}

std::string shell_word(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return c < 128 && (std::isalnum(c) != 0 ||
                       std::string("_-./:=,@%+").find(static_cast<char>(c)) != std::string::npos);
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  // A quote ends the quoting, stands for itself behind a backslash, and begins it anew. fish, alone
  // among shells, takes a backslash inside for one too, so that stands outside as well.
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'') {
      text += "'\\''";
    } else if (c == '\\') {
      text += "'\\\\'";
    } else {
      text += c;
    }
  }
  return text + "'";
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      inside = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (inside) words.push_back(std::move(word));
      word.clear();
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (quote != 0) throw std::invalid_argument(std::string("a quote ") + quote + " is not closed");
  if (inside) words.push_back(std::move(word));
  return words;
}

std::string remote_command(const std::string& launcher, std::optional<std::size_t> copy_blocks,
                           const std::vector<std::string>& arguments) {
  std::string start;
  for (const std::string& argument : arguments) start += " " + shell_word(argument);
  std::string script = "p=" + shell_word(launcher) + "; ";
  if (!copy_blocks) {
    script += "[ -x \"$p\" ] || p=ddprun; exec \"$p\"" + start;
    return "exec /bin/sh -c " + shell_word(script);
  }
  // Not exec: the shell outlives the copy and removes it, also when that was killed. dd reads whole
  // blocks and nothing beyond, which head does not promise. What it says on success is no matter.
  script += "[ -x \"$p\" ] || p=$(command -v ddprun); [ -z \"$p\" ] || exec \"$p\"" + start +
            "; d=$(mktemp -d \"${TMPDIR:-/tmp}/ddprun.XXXXXXXX\") || exit 1; echo " + copy_wanted +
            "; if e=$(dd of=\"$d/ddprun\" bs=" + std::to_string(copy_block_bytes) +
            " count=" + std::to_string(*copy_blocks) +
            " iflag=fullblock 2>&1); then chmod 700 \"$d/ddprun\" && \"$d/ddprun\"" + start +
            "; s=$?; else s=1; echo \"" + copy_failed + ": $e\" | head -n 1 >&2; fi" +
            "; rm -rf \"$d\"; exit $s";
  return "exec /bin/sh -c " + shell_word(script);
}

std::vector<std::string> ssh_command(const std::vector<std::string>& options,
                                     const std::string& login, const std::string& command) {
  std::vector<std::string> argv{"ssh"};
  argv.insert(argv.end(), options.begin(), options.end());
  // Nobody is there to be asked, a host that is down must not take minutes, and one that goes away
  // is to be noticed. Forwardings of the user's configuration could be had by one node alone. Who
  // shares a connection of ours would lose it with us, and hold us up at our end; one that is there
  // we do use (not ControlPath=none), since a second factor may have been asked for it.
  for (const char* option :
       {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=10", "ServerAliveCountMax=3",
        "ForwardX11=no", "ClearAllForwardings=yes", "ControlMaster=no"}) {
    argv.insert(argv.end(), {"-o", option});
  }
  argv.insert(argv.end(), {"-T", login, command});
  return argv;
}

StartFailure start_failure(const std::string& program, int error_number) {
  const std::string what = "cannot start " + program + ": " + std::strerror(error_number);
  switch (error_number) {
    case ENOENT:
      return {what, program == "ssh" ? "install ssh (openssh-client), or see that it is on PATH"
                                     : "is this program still there?"};
    case EMFILE:
    case ENFILE:
      return {what, "each host takes four open files: raise the limit (ulimit -Hn)"};
    case EAGAIN:
      return {what, "the limit of processes is reached (ulimit -u)"};
    default:
      return {what, "does it start by hand?"};
  }
}

std::string last_words_of(const std::string& said) {
  constexpr std::size_t lines_max = 3, bytes_max = 1000;
  const std::size_t end = said.find_last_not_of(" \r\n\t") + 1;  // 0 where nothing is said.
  std::size_t begin = end;
  for (std::size_t lines = 0; begin > 0 && end - begin < bytes_max; --begin) {
    if (said[begin - 1] == '\n' && ++lines == lines_max) break;
  }
  std::string words;
  for (const char c : said.substr(begin, end - begin)) {
    if (c == '\n') {
      words += " / ";
    } else if (c != '\r') {
      words += c;
    }
  }
  return rendezvous::visible_text(words, rendezvous::Lines::Escape);
}

std::string ssh_failure(int status, const std::string& said, const std::string& login,
                        bool copies_self) {
  const std::string words = last_words_of(said);
  const std::string told = words.empty() ? "" : ": " + words;
  const std::string ended = "ended with status " + std::to_string(status);
  if (status == 255) {
    std::string advice = advice_on_cause(said, login);
    if (is_turned_away(status, said)) {
      advice =
          "its sshd, or that of a host on the way (ProxyJump), refuses so many logins at "
          "once: raise MaxStartups there";
    }
    if (advice.empty()) advice = "try: ssh " + login + " true";
    return "ssh " + ended + told + "; " + advice;
  }
  if (said_any(said, {"error while loading shared libraries", "GLIBC"})) {
    return "ddprun cannot run there" + told + "; install the libraries that it needs";
  }
  if (status == 127 || status == 126) {
    return "ddprun could not be started there" + told + "; " +
           (copies_self ? "a copy must be allowed to run in TMPDIR there (no noexec)"
                        : "install it at the same path or on the PATH of ssh " + login +
                              " 'echo $PATH', or give --copy-self");
  }
  if (copies_self && said_any(said, {copy_failed, "mktemp:"})) {
    return "it takes no copy of ddprun" + told +
           "; make room in TMPDIR there, or a folder that can be written, or install ddprun";
  }
  return "the launcher there " + ended + told + "; try: ssh " + login + " ddprun --version";
}

}  // namespace ddprun::launcher
