// The module: OpenSSL's functions, and of its algorithms those that ddprun calls.
//
// OpenSSL looks up an algorithm by making an object for each one of its kind, of 130 ciphers for
// one. A provider that offers only what is needed saves half a millisecond of every start.
#include "rendezvous/secure/openssl_copy.h"

#include <openssl/core.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/provider.h>

#include <algorithm>
#include <array>
#include <cstddef>

// Not in OpenSSL's headers, but in its static library: what OpenSSL itself calls as "default". Its
// type is that of every provider's entry.
extern "C" OSSL_provider_init_fn ossl_default_provider_init;

namespace ddprun::rendezvous {
namespace {

// The first name of each. TLS 1.3 with one cipher suite, HKDF and HMAC; AES-256-GCM for gradients;
// CTR and ECB of AES-256 are what the random numbers are made with. ECDSA is only offered: a
// ClientHello must name some signature.
constexpr std::array<std::string_view, 14> needed = {
    "SHA2-256",  "AES-128-GCM", "AES-256-GCM", "AES-256-CTR", "AES-256-ECB", "HMAC", "HKDF",
    "TLS13-KDF", "CTR-DRBG",    "SEED-SRC",    "X25519",      "EC",          "ECDH", "ECDSA"};
// Groups for the key exchange; OpenSSL tries each that it hears of, and has fifty.
constexpr std::array<std::string_view, 2> needed_groups = {"x25519", "P-256"};

constexpr int operations = OSSL_OP_SIGNATURE + 1;  // Those that come later are of no use here.
constexpr std::size_t kept_max = 3 * needed.size() + operations;  // And an end mark for each.
constexpr std::size_t functions_max = 15;

struct Needed {
  OSSL_FUNC_provider_query_operation_fn* all = nullptr;
  OSSL_FUNC_provider_get_capabilities_fn* all_capabilities = nullptr;
  std::array<OSSL_ALGORITHM, kept_max> kept{};
  std::array<const OSSL_ALGORITHM*, operations> of_operation{};
  std::array<OSSL_DISPATCH, functions_max + 1> functions{};
};
// Written while the provider is loaded, by the thread that opens OpenSSL; afterwards only read.
Needed provider;

bool is_needed(std::string_view names) {
  const std::string_view first = names.substr(0, names.find(':'));
  return std::find(needed.begin(), needed.end(), first) != needed.end();
}

bool choose_algorithms(void* context) {
  std::size_t used = 0;
  for (int operation = 1; operation < operations; ++operation) {
    int no_store = 0;
    const OSSL_ALGORITHM* all = provider.all(context, operation, &no_store);
    // One that may not be kept would have to be asked for each time.
    if (all == nullptr || no_store != 0) continue;
    provider.of_operation[operation] = &provider.kept[used];
    for (; all->algorithm_names != nullptr; ++all) {
      if (!is_needed(all->algorithm_names)) continue;
      if (used + 2 > kept_max) return false;
      provider.kept[used++] = *all;
    }
    provider.kept[used++] = OSSL_ALGORITHM{};
  }
  return true;
}

const OSSL_ALGORITHM* query_needed(void*, int operation, int* no_store) {
  *no_store = 0;
  return operation > 0 && operation < operations ? provider.of_operation[operation] : nullptr;
}

struct GroupListener {
  OSSL_CALLBACK* tell;
  void* argument;
};

int tell_if_needed(const OSSL_PARAM group[], void* listener) {
  const auto* to = static_cast<const GroupListener*>(listener);
  const OSSL_PARAM* name = OSSL_PARAM_locate_const(group, OSSL_CAPABILITY_TLS_GROUP_NAME);
  const char* text = nullptr;
  if (name == nullptr || OSSL_PARAM_get_utf8_string_ptr(name, &text) != 1) return 1;
  if (std::find(needed_groups.begin(), needed_groups.end(), text) == needed_groups.end()) return 1;
  return to->tell(group, to->argument);
}

int needed_capabilities(void* context, const char* capability, OSSL_CALLBACK* tell,
                        void* argument) {
  GroupListener listener{tell, argument};
  return provider.all_capabilities(context, capability, tell_if_needed, &listener);
}

// Everything else of the provider stays OpenSSL's.
bool replace_functions(const OSSL_DISPATCH* functions) {
  std::size_t count = 0;
  for (; functions->function_id != 0; ++functions) {
    if (count == functions_max) return false;
    OSSL_DISPATCH& mine = provider.functions[count++] = *functions;
    if (functions->function_id == OSSL_FUNC_PROVIDER_QUERY_OPERATION) {
      provider.all = OSSL_FUNC_provider_query_operation(functions);
      mine.function = reinterpret_cast<void (*)()>(query_needed);
    } else if (functions->function_id == OSSL_FUNC_PROVIDER_GET_CAPABILITIES) {
      provider.all_capabilities = OSSL_FUNC_provider_get_capabilities(functions);
      mine.function = reinterpret_cast<void (*)()>(needed_capabilities);
    }
  }
  return provider.all != nullptr && provider.all_capabilities != nullptr;
}

int init_needed(const OSSL_CORE_HANDLE* handle, const OSSL_DISPATCH* core,
                const OSSL_DISPATCH** functions, void** context) {
  if (ossl_default_provider_init(handle, core, functions, context) != 1 ||
      !replace_functions(*functions) || !choose_algorithms(*context)) {
    return 0;
  }
  *functions = provider.functions.data();
  return 1;
}

}  // namespace
}  // namespace ddprun::rendezvous

// Called once, before OpenSSL is used otherwise: a provider that was loaded by hand keeps OpenSSL
// from loading its own.
extern "C" [[gnu::visibility("default")]] bool ddprun_fill_from_openssl_copy(
    ddprun::rendezvous::OpenSsl* table, std::uint64_t table_names) {
  using namespace ddprun::rendezvous;
  if (table_names != openssl_table_names) return false;
#define DDPRUN_OPENSSL_FILL(name) table->name = &::name;
  DDPRUN_OPENSSL_FUNCTIONS(DDPRUN_OPENSSL_FILL)
#undef DDPRUN_OPENSSL_FILL
  start_openssl(*table);
  return OSSL_PROVIDER_add_builtin(nullptr, "ddprun", init_needed) == 1 &&
         OSSL_PROVIDER_load(nullptr, "ddprun") != nullptr;
}
