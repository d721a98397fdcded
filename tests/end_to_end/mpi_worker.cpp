// A rank whose MPI communicator fails, for mpi_test.cpp: mpi_worker MODE FOLDER. What its call said
// goes into FOLDER/RANK; it ends when all ranks have said something, because mpirun ends the others
// together with the first one.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/patience.h"
#include "worker/communicator.h"

using namespace ddprun::worker;

namespace {

std::unique_ptr<Communicator> global;  // Destroyed by exit(), after MPI has ended.

void reduce(Communicator& communicator, std::size_t count) {
  std::vector<float> data(count, 1.0f);
  communicator.all_reduce(data.data(), count, DataType::Float32, ReduceOp::Sum);
}

bool all_have_spoken(const std::filesystem::path& folder, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    if (!std::filesystem::exists(folder / std::to_string(rank))) return false;
  }
  return true;
}

template <typename Condition>
void wait_until(Condition condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + ddprun::testing::patience(std::chrono::seconds{30});
  while (!condition() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
}

// Rank 0 expects one element more than rank 1 sends it, and the others wait for them.
void exchange(Communicator& communicator) {
  std::vector<float> data(10);
  if (communicator.rank() == 0) communicator.recv(data.data(), 10, DataType::Float32, 1);
  if (communicator.rank() == 1) communicator.send(data.data(), 9, DataType::Float32, 0);
  communicator.barrier();
}

// Rank 0 gives up a call to which the others come later. What MPI receives for it by then must not
// lie in memory that was freed, which rank 0 has filled with something else.
void come_late(std::unique_ptr<Communicator>& communicator, const std::filesystem::path& folder,
               const WorkerEnv& env) {
  const auto came = [&](int rank) { return folder / ("came" + std::to_string(rank)); };
  if (env.rank != 0) {
    wait_until([&] { return std::filesystem::exists(folder / "gave up"); });
    try {
      communicator->barrier();
    } catch (const CommunicatorError&) {
    }
    std::ofstream(came(env.rank)) << "came";
    throw CommunicatorError("came late");
  }
  try {
    communicator->barrier();
  } catch (const CommunicatorError&) {
  }
  communicator.reset();
  std::vector<std::vector<unsigned char>> others;
  for (std::size_t bytes = 16; bytes <= 1024; bytes += 8) {
    for (int i = 0; i < 8; ++i) others.emplace_back(bytes, 0xA5);
  }
  std::ofstream(folder / "gave up") << "gave up";
  wait_until([&] {
    for (int rank = 1; rank < env.world_size; ++rank) {
      if (!std::filesystem::exists(came(rank))) return false;
    }
    return true;
  });
  try {  // In which MPI takes in what has come; nobody else makes one.
    make_mpi_communicator(env, {.connect_timeout = std::chrono::milliseconds{300}});
  } catch (const CommunicatorError&) {
  }
  for (const auto& other : others) {
    for (const unsigned char byte : other) {
      if (byte != 0xA5)
        throw CommunicatorError("MPI wrote to memory that was not its own any more");
    }
  }
  throw CommunicatorError("MPI wrote to nothing else");
}

// Rank 0 gives up a meeting to which the others come later, and tries again.
void meet_late(const std::filesystem::path& folder, const WorkerEnv& env) {
  const CommunicatorOptions soon{.connect_timeout = std::chrono::milliseconds{300}};
  if (env.rank != 0) {
    wait_until([&] { return std::filesystem::exists(folder / "gave up"); });
    make_mpi_communicator(env, soon);
    return;
  }
  try {
    make_mpi_communicator(env, soon);
  } catch (const CommunicatorError&) {
    std::ofstream(folder / "gave up") << "gave up";
    make_mpi_communicator(env, soon);
  }
}

// Rank 1 does what the mode says; the others reduce.
void act(const std::string& mode, std::unique_ptr<Communicator>& communicator,
         const std::filesystem::path& folder, const WorkerEnv& env) {
  reduce(*communicator, 100);
  if (mode == "late") return come_late(communicator, folder, env);
  if (mode == "late-to-meet") return meet_late(folder, env);
  if (mode == "global") {
    global = std::move(communicator);
    return;
  }
  if (mode == "other-message") return exchange(*communicator);
  if (communicator->rank() != 1) return reduce(*communicator, 5000);
  if (mode == "other-count") {
    reduce(*communicator, 4999);
  } else if (mode == "other-call") {
    communicator->barrier();
  } else if (mode == "null") {
    communicator->all_reduce(nullptr, 5000, DataType::Float32, ReduceOp::Sum);
  } else if (mode == "abort") {
    std::thread([&] { communicator->abort("the user pressed stop"); }).join();
    communicator->barrier();
  } else if (mode == "global-leaves") {
    global = std::move(communicator);
  } else if (mode == "leave") {
    communicator.reset();
    throw CommunicatorError("left");
  } else {  // absent
    wait_until([&] { return std::filesystem::exists(folder / "0"); });
    communicator->barrier();
  }
}

}  // namespace

int main(int, char** argv) {
  const std::filesystem::path folder = argv[2];
  const WorkerEnv env = read_worker_env(InitMethod{.needs_store = false});
  CommunicatorOptions options;
  const std::string mode = argv[1];
  options.collective_timeout =
      std::chrono::milliseconds{mode == "absent" || mode == "late" ? 400 : 20'000};
  std::unique_ptr<Communicator> communicator;
  std::string said = "nothing was wrong";
  try {
    communicator = make_mpi_communicator(env, options);
    act(mode, communicator, folder, env);
  } catch (const CommunicatorError& error) {
    said = error.what();
  }
  const auto temporary = folder / (std::to_string(env.rank) + ".part");
  std::ofstream(temporary) << said;
  std::filesystem::rename(temporary, folder / std::to_string(env.rank));
  if (global) return 0;
  wait_until([&] { return all_have_spoken(folder, env.world_size); });
  return 3;
}
