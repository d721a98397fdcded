// For programs that ddprun may keep ready (--spares): what takes long and needs no rank is done
// first, and the rank asked for then.
//
//   int main() {
//     load_libraries(); build_model(); open_data();
//     wait_for_rank();                       // Returns at once in a process that is no spare.
//     const WorkerEnv env = meet_workers(read_worker_env());
//
// LOCAL_RANK and LOCAL_WORLD_SIZE are known before, so a spare can use its GPU. Everything else of
// WorkerEnv is the word "spare" until then, and read_worker_env() throws.
#pragma once

namespace ddprun::worker {

// Whether this process was started as a spare and has no rank yet.
bool is_spare();

// In a spare: tells the launcher that this process is ready, waits without a limit until a worker
// has to be replaced, and takes the new worker's environment over (setenv: no other thread may
// read the environment meanwhile). In any other process it does nothing. A spare that is not
// needed does not return: it is killed when the job is over.
//
// What was read before may be old when this returns: the newest checkpoint, or anything else that a
// job writes, is to be looked for afterwards. Throws WorkerEnvError when the launcher is gone.
void wait_for_rank();

}  // namespace ddprun::worker
