"""What a script for torchrun may rely on, as a list. Each case runs against ddprun, and against
torchrun 2.11 where that is installed, so that the list itself is checked.

In command lines and variables: @port@ a free port, @out@ the folder $OUT where workers report, @log@
and @dir@ folders, @workers@ the folder with the worker programs.
"""
import json
import os
import socket

from job import CHECKED_LATE, Case, Expect, Status, worker_failed


def sh(commands):
    """A worker of shell commands; its own pid is in $pid ("$$" would become "$")."""
    return ["--no-python", "/bin/sh", "-c", "read pid rest < /proc/self/stat; " + commands]


def python(name, *arguments):
    return [f"@workers@/{name}", *arguments]


def ranks(count, text=""):
    return {str(rank): text for rank in range(count)}


PLAIN = ["--master-port=@port@"]  # torchrun's own choice, 29500, may be taken.
ELASTIC = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:@port@", "--rdzv-id=compat"]
REPORT = ": > $OUT/$RANK"  # Each worker touches a file named by its rank.
EVERY_VARIABLE = python("every_variable.py", "@out@")
SENTINEL = {"SENTINEL": "here"}


# What the next cases write: role, rank, node, local rank, local world, role rank, role world, world.
REPORT_ROLES = ("echo $ROLE_NAME $RANK $GROUP_RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $ROLE_RANK "
                "$ROLE_WORLD_SIZE $WORLD_SIZE > $OUT/$RANK")
ROLES = [("master", 1), ("trainer", 2), ("trainer", 3), ("trainer", 1), ("ps", 2), ("ps", 1), ("ps", 1)]


def roles_are_right(result):
    rows = [text.split() for text in result.reports.values()]
    world = sum(workers for _, workers in ROLES)
    assert sorted(int(row[1]) for row in rows) == list(range(world))
    assert sorted({int(row[2]) for row in rows}) == list(range(len(ROLES)))
    for role in {role for role, _ in ROLES}:
        of_role = [row for row in rows if row[0] == role]
        size = sum(workers for name, workers in ROLES if name == role)
        assert sorted(int(row[5]) for row in of_role) == list(range(size)), role
        assert all(int(row[6]) == size and int(row[7]) == world for row in of_role), role
    for node in range(len(ROLES)):
        on_node = sorted((row for row in rows if int(row[2]) == node), key=lambda row: int(row[3]))
        assert len(on_node) == int(on_node[0][4])
        for index, row in enumerate(on_node):  # Both kinds of ranks are consecutive on a node.
            assert int(row[3]) == index
            assert int(row[1]) == int(on_node[0][1]) + index
            assert int(row[5]) == int(on_node[0][5]) + index


def launchers_error_file_names_the_cause(result):
    message = json.loads((result.folder / "cause.json").read_text())["message"]
    assert message["errorCode"] == 3, message
    assert "trace of bad batch" in message["extraInfo"]["py_callstack"], message
    assert int(message["extraInfo"]["timestamp"]) > 0, message


def as_many_workers_as(cpus):
    def check(result):
        assert set(result.reports) == set(ranks(cpus)), cpus
    return check


def two_prefixed_lines(result):
    for rank in "01":
        assert f"[rank{rank}]: creating {rank}\n" in result.output, rank


def no_temporary_files(result):
    assert not list((result.folder / "tmp").iterdir())


def a_temporary_folder_is_left(result):
    assert [path for path in (result.folder / "tmp").iterdir() if path.name.startswith("torchelastic_")]


CASES = [
    # ---- a script, its workers and their environment ----
    Case("four Python workers have every variable of the contract",
         [*PLAIN, "--nproc-per-node=4", *EVERY_VARIABLE], Expect(reports=ranks(4)), env=SENTINEL),
    Case("options of a static job",
         ["--nnodes=1", "--nproc_per_node=4", "--node_rank=0", "--master_addr=localhost",
          "--master_port=@port@", *EVERY_VARIABLE], Expect(reports=ranks(4)), env=SENTINEL),
    Case("a shell script with --no-python",
         [*PLAIN, "--nproc-per-node=4", *sh(REPORT)], Expect(reports=ranks(4))),
    Case("one worker is the default", [*PLAIN, *sh(REPORT)], Expect(reports=ranks(1))),
    Case("--standalone", ["--standalone", "--nproc-per-node=4", *EVERY_VARIABLE],
         Expect(reports=ranks(4)), env=SENTINEL),
    Case("--run-path", [*PLAIN, "--run-path", "--nproc-per-node=4", *EVERY_VARIABLE],
         Expect(reports=ranks(4)), env=SENTINEL),
    Case("--run-path of a file that does not end in .py",
         [*PLAIN, "--run-path", *python("python_without_its_ending", "x")],
         Expect(reports={"0": '["x"]'})),
    Case("a folder with a __main__.py", [*PLAIN, *python("application", "x")],
         Expect(reports={"0": '["x"]'})),
    Case("--module", [*PLAIN, "--module", "arguments", "-x", "1"],
         Expect(reports={"0": '["-x", "1"]'}), env={"PYTHONPATH": "@workers@"}),
    Case("-m with --no-python is refused", [*PLAIN, "-m", "--no-python", "arguments"],
         Expect(CHECKED_LATE, reports={})),
    Case("PYTHON_EXEC is the interpreter", [*PLAIN, *python("arguments.py")],
         Expect(reports={"0": "[]", "interpreter": ""}),
         env={"PYTHON_EXEC": "@workers@/python_exec.sh"}),
    Case("all options from PET_ variables", sh(REPORT)[1:], Expect(reports=ranks(4)),
         env={"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4", "PET_RDZV_BACKEND": "c10d",
              "PET_RDZV_ENDPOINT": "localhost:@port@", "PET_RDZV_ID": "7",
              "PET_RDZV_CONF": "join_timeout=60", "PET_MAX_RESTARTS": "0", "PET_MODULE": "0",
              "PET_NO_PYTHON": "1", "PET_MONITOR_INTERVAL": "0.1", "PET_START_METHOD": "spawn"}),
    Case("PET_MODULE with PET_NO_PYTHON is refused", ["arguments"], Expect(CHECKED_LATE, reports={}),
         env={"PET_MODULE": "1", "PET_NO_PYTHON": "1"}),
    Case("the command line wins over a PET_ variable", [*PLAIN, "--nproc-per-node=2", *sh(REPORT)],
         Expect(reports=ranks(2)), env={"PET_NPROC_PER_NODE": "4"}),
    Case("a PET_ variable with a bad number", sh(REPORT), Expect(2, reports={}),
         env={"PET_MAX_RESTARTS": "many"}),
    Case("a PET_ variable of a switch with a bad number", sh(REPORT),
         Expect(Status(2, 1, "torchrun's ValueError is not caught"), reports={}),
         env={"PET_STANDALONE": "yes"}),
    Case("an inherited OMP_NUM_THREADS is kept",
         [*PLAIN, "--nproc-per-node=2", *sh("echo $OMP_NUM_THREADS > $OUT/$RANK")],
         Expect(reports=ranks(2, "3")), env={"OMP_NUM_THREADS": "3"}),
    Case("OMP_NUM_THREADS is 1 for several workers",
         [*PLAIN, "--nproc-per-node=2", *sh("echo $OMP_NUM_THREADS > $OUT/$RANK")],
         Expect(reports=ranks(2, "1"))),
    Case("OMP_NUM_THREADS is not set for one worker",
         [*PLAIN, *sh("echo ${OMP_NUM_THREADS-unset} > $OUT/$RANK")], Expect(reports={"0": "unset"})),
    Case("an inherited GLIBC_TUNABLES is kept",
         [*PLAIN, *sh("echo $GLIBC_TUNABLES > $OUT/0")], Expect(reports={"0": "glibc.malloc.tcache_count=3"}),
         env={"GLIBC_TUNABLES": "glibc.malloc.tcache_count=3"}),
    Case("an inherited TORCH_NCCL_ASYNC_ERROR_HANDLING is kept",
         [*PLAIN, *sh("echo $TORCH_NCCL_ASYNC_ERROR_HANDLING > $OUT/0")], Expect(reports={"0": "0"}),
         env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    Case("TORCH_NCCL_ASYNC_ERROR_HANDLING is 1 otherwise",
         [*PLAIN, *sh("echo $TORCH_NCCL_ASYNC_ERROR_HANDLING > $OUT/0")], Expect(reports={"0": "1"})),
    Case("the store's address is the endpoint's",
         ["--master-addr=127.0.0.1", "--master-port=@port@", *sh(
             "test $MASTER_PORT = @port@ && echo $MASTER_ADDR $TORCHELASTIC_USE_AGENT_STORE > $OUT/0")],
         Expect(reports={"0": "127.0.0.1 True"})),
    Case("the address that a node announces",
         [*ELASTIC, "--local-addr=127.0.0.1", *sh("echo $MASTER_ADDR > $OUT/0")],
         Expect(reports={"0": "127.0.0.1"})),
    Case("the handled signals are told to the workers",
         [*PLAIN, "--signals-to-handle=SIGTERM,SIGUSR1",
          *sh("echo $TORCHELASTIC_SIGNALS_TO_HANDLE > $OUT/0")],
         Expect(reports={"0": "SIGTERM,SIGUSR1"})),
    Case("a run id that was given and the restarts",
         [*PLAIN, "--rdzv-id=experiment", "--max-restarts=3",
          *sh("echo $TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS "
              "> $OUT/0")],
         Expect(reports={"0": "experiment 0/3"})),

    # ---- how many workers ----
    Case("--nproc-per-node auto without an accelerator",
         [*PLAIN, "--nproc-per-node=auto", *sh(REPORT)], env={"CUDA_VISIBLE_DEVICES": ""},
         ddprun=Expect(check=as_many_workers_as(len(os.sched_getaffinity(0)))),
         torchrun=Expect(check=as_many_workers_as(os.cpu_count())),
         difference="ddprun counts the CPUs that it may use, torchrun 2.11 those of the machine"),
    Case("--nproc-per-node cpu",
         [*PLAIN, "--nproc-per-node=cpu", *sh(REPORT)],
         ddprun=Expect(check=as_many_workers_as(len(os.sched_getaffinity(0)))),
         torchrun=Expect(check=as_many_workers_as(os.cpu_count())),
         difference="ddprun counts the CPUs that it may use, torchrun 2.11 those of the machine"),
    Case("--nproc-per-node gpu without a GPU", [*PLAIN, "--nproc-per-node=gpu", *sh(REPORT)],
         Expect(CHECKED_LATE, reports={}), env={"CUDA_VISIBLE_DEVICES": ""}),
    Case("--nproc-per-node with an unknown word", [*PLAIN, "--nproc-per-node=unknown", *sh(REPORT)],
         Expect(CHECKED_LATE, reports={}, output=("unknown",))),

    # ---- several nodes ----
    Case("an elastic job starts with the least number of nodes",
         [*ELASTIC, "--nnodes=1:2", "--nproc-per-node=4",
          "--rdzv-conf='join_timeout=60,last_call_timeout=1,timeout=5'", *EVERY_VARIABLE],
         Expect(reports=ranks(4)), env=SENTINEL),
    Case("two nodes on one machine",
         [[*ELASTIC, "--nnodes=2", "--nproc-per-node=4", *EVERY_VARIABLE]] * 2,
         Expect(reports=ranks(8)), env=SENTINEL),
    Case("two nodes of a static job",
         [["--nnodes=2", f"--node-rank={node}", "--master-port=@port@", "--nproc-per-node=2",
           *sh("echo $GROUP_RANK $LOCAL_RANK > $OUT/$RANK")] for node in range(2)],
         Expect(reports={"0": "0 0", "1": "0 1", "2": "1 0", "3": "1 1"})),
    Case("nodes that end at different times",
         [["--nnodes=2", f"--node-rank={node}", "--master-port=@port@",
           *sh(f"test {node} = 0 || until test -e $OUT/0; do sleep 0.1; done; {REPORT}")]
          for node in range(2)],
         Expect(reports=ranks(2))),
    Case("roles with different numbers of workers on seven nodes",
         [[*ELASTIC, f"--nnodes={len(ROLES)}", f"--role={role}", f"--nproc-per-node={workers}",
           *sh(REPORT_ROLES)] for role, workers in ROLES],
         Expect(check=roles_are_right)),
    Case("--nnodes MIN:MAX:MORE is refused", [*PLAIN, "--nnodes=2:20:30", *sh(REPORT)],
         Expect(CHECKED_LATE, reports={})),
    Case("--nnodes MIN:MAX of a static job means MAX", [*PLAIN, "--nnodes=1:1", *sh(REPORT)],
         Expect(reports=ranks(1))),

    # ---- how options are written ----
    Case("a start that ends before the first dash", [*PLAIN, "--nproc=2", *sh(REPORT)],
         ddprun=Expect(reports=ranks(2)), torchrun=Expect(2, reports={}),
         difference="to torchrun --nproc is ambiguous: --nproc-per-node or --nproc_per_node"),
    Case("the start of an option", [*PLAIN, "--nproc-p=2", "--max-r=1", "--stand", *sh(REPORT)],
         Expect(reports=ranks(2))),
    Case("the start of several options", [*PLAIN, "--r=1", *sh(REPORT)],
         Expect(2, reports={}, output=("ambiguous",))),
    Case("an unknown option", [*PLAIN, "--no-such-option", *sh(REPORT)],
         Expect(2, reports={}, output=("--no-such-option",))),
    Case("a switch with a value", ["--standalone=1", *sh(REPORT)], Expect(2, reports={})),
    Case("no program", ["--standalone"], Expect(2)),
    Case("--help", ["--help"], Expect(0, output=("--nproc-per-node", "--rdzv-conf", "--max-restarts"))),
    Case("--logs-specs with an unknown name", [*PLAIN, "--logs-specs=no_such", *sh(REPORT)],
         Expect(CHECKED_LATE, reports={}, output=("no_such",))),
    Case("--shutdown-timeout", [*PLAIN, "--shutdown-timeout=5", *sh(REPORT)],
         ddprun=Expect(reports=ranks(1)), torchrun=Expect(2, reports={}),
         difference="newer than torchrun 2.11"),
    Case("options that a native launcher has no use for",
         [*PLAIN, "--monitor-interval=0.1", "--start-method=fork", "--event-log-handler=null",
          *sh(REPORT)], Expect(reports=ranks(1))),

    # ---- the script's own arguments ----
    Case("arguments of the script that look like the launcher's",
         [*PLAIN, *python("arguments.py", "--nproc-per-node", "8", "-r", "3", "-m", "--standalone",
                          "--help")],
         Expect(reports={"0": '["--nproc-per-node", "8", "-r", "3", "-m", "--standalone", "--help"]'})),
    Case("an argument of the script that looks like the start of launcher options",
         [*PLAIN, *python("arguments.py", "--r=16")],
         ddprun=Expect(reports={"0": '["--r=16"]'}), torchrun=Expect(2, reports={}),
         difference="torchrun still matches it with its own options: ambiguous"),
    Case("two dashes before the script", [*PLAIN, "--", *python("arguments.py", "--", "x")],
         Expect(reports={"0": '["--", "x"]'})),
    Case("two dashes right after the script", [*PLAIN, *python("arguments.py", "--", "x")],
         ddprun=Expect(reports={"0": '["--", "x"]'}), torchrun=Expect(reports={"0": '["x"]'}),
         difference="torchrun takes the script's two dashes for its own"),
    Case("the local rank in arguments",
         [*PLAIN, "--nproc-per-node=2",
          *python("arguments.py", "${local_rank}", "gpu$local_rank/", "$$local_rank", "$other", "$")],
         Expect(reports={rank: json.dumps([rank, f"gpu{rank}/", "$local_rank", "$other", "$"])
                         for rank in "01"})),
    Case("torch.distributed.launch passes the local rank",
         [*PLAIN, "--nproc-per-node=2", *python("arguments.py", "x")],
         Expect(reports={rank: json.dumps([f"--local-rank={rank}", "x"]) for rank in "01"}),
         module="torch.distributed.launch", ddprun_options=("--pass-local-rank",)),
    Case("torch.distributed.launch with --use-env does not",
         [*PLAIN, "--nproc-per-node=2", "--use-env", *python("arguments.py", "x")],
         Expect(reports=ranks(2, '["x"]')), module="torch.distributed.launch"),
    Case("a virtual local rank",
         [*PLAIN, "--nproc-per-node=2", "--virtual-local-rank",
          *sh("echo $LOCAL_RANK $RANK $CUDA_VISIBLE_DEVICES > $OUT/$RANK")],
         Expect(reports={"0": "0 0 3", "1": "0 1 5"}), env={"CUDA_VISIBLE_DEVICES": "3,5"}),
    Case("a virtual local rank and a list with blanks",
         [*PLAIN, "--nproc-per-node=3", "--virtual-local-rank",
          *sh("echo .$CUDA_VISIBLE_DEVICES. > $OUT/$RANK")],
         Expect(reports={"0": ".4.", "1": ".5.", "2": ".6."}), env={"CUDA_VISIBLE_DEVICES": "4,5, 6"}),
    Case("a virtual local rank without a list of devices",
         [*PLAIN, "--nproc-per-node=2", "--virtual-local-rank",
          *sh("echo $LOCAL_RANK $RANK $CUDA_VISIBLE_DEVICES > $OUT/$RANK")],
         Expect(reports={"0": "0 0 0", "1": "0 1 1"})),
    Case("a virtual local rank with too few devices",
         [*PLAIN, "--nproc-per-node=2", "--virtual-local-rank", *sh("exit 0")],
         Expect(CHECKED_LATE), env={"CUDA_VISIBLE_DEVICES": "3"}),

    # ---- output ----
    Case("redirects, tee and a prefix of one's own",
         [*PLAIN, "--nproc-per-node=2", "--redirect=3", "--tee=3", "--log-dir=@log@",
          *sh("echo creating $RANK")],
         Expect(check=two_prefixed_lines), env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE":
                                                "[rank${rank}]: "}),
    Case("the usual prefix",
         [*PLAIN, "--nproc-per-node=2", "--tee=1", "--role=trainer", *sh("echo hello")],
         Expect(output=("[trainer0]:hello\n", "[trainer1]:hello\n"))),
    Case("a prefix of the command line, with the host's name",
         [*PLAIN, "--tee=1", "--log-line-prefix-template=${hostname}:${rank}:", *sh("echo hello")],
         ddprun=Expect(output=(f"{socket.gethostname()}:0:hello\n",)), torchrun=Expect(2),
         difference="newer than torchrun 2.11"),
    Case("a role of no name, as a template's variable that nobody has set gives it",
         [*PLAIN, "--tee=1", *sh("echo role $ROLE_NAME.")],
         Expect(output=("[0]:role .\n",)), env={"PET_ROLE": ""}),
    Case("a stream that is not tee'd has no prefix, and names in a template need no braces",
         [*PLAIN, "--nproc-per-node=2", "--tee=2", *sh("echo out $RANK; echo err $RANK >&2")],
         Expect(output=("[r0/0]:err 0\n", "[r1/1]:err 1\n"), absent=("]:out 0", "]:out 1")),
         env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[r$rank/$local_rank]:"}),
    Case("streams that differ by rank, and where their files are",
         [*PLAIN, "--nproc-per-node=4", "-r", "0:1,1:2", "-t", "2:3", "--log-dir=@log@",
          *sh("echo out $RANK; echo err $RANK >&2")],
         Expect(logs={"*/attempt_0/0/stdout.log": "out 0\n", "*/attempt_0/1/stderr.log": "err 1\n",
                      "*/attempt_0/2/stdout.log": "out 2\n", "*/attempt_0/2/stderr.log": "err 2\n"},
                output=("err 0", "out 1", "[default2]:out 2", "[default2]:err 2", "out 3", "err 3"),
                absent=("out 0", "err 1", "]:out 3"))),
    Case("a rank of two digits in a map",
         [*PLAIN, "--nproc-per-node=11", "-r", "10:1", "--log-dir=@log@", *sh("echo out $RANK")],
         ddprun=Expect(logs={"*/attempt_0/10/stdout.log": "out 10\n"}, absent=("out 10",)),
         torchrun=Expect(1), difference="torchrun's maps know ranks of one digit only"),
    Case("a map that ends with a comma", [*PLAIN, "-r", "0:1,", *sh("exit 0")], Expect(CHECKED_LATE)),
    Case("an unknown number of streams", [*PLAIN, "-r", "4", *sh("exit 0")], Expect(CHECKED_LATE)),
    Case("files of each attempt",
         [*PLAIN, "--max-restarts=1", "-r3", "--log-dir=@log@",
          *sh("echo attempt $TORCHELASTIC_RESTART_COUNT; exit $((1 - TORCHELASTIC_RESTART_COUNT))")],
         Expect(logs={"*/attempt_0/0/stdout.log": "attempt 0\n", "*/attempt_0/0/stderr.log": "",
                      "*/attempt_1/0/stdout.log": "attempt 1\n", "*/attempt_1/0/stderr.log": ""})),
    Case("only some local ranks on the console",
         [*PLAIN, "--nproc-per-node=2", "--local-ranks-filter=1", *sh("echo said by $RANK")],
         Expect(output=("said by 1",), absent=("said by 0",))),
    Case("only some local ranks on the console, all in files",
         [*PLAIN, "--nproc-per-node=2", "--local-ranks-filter=1", "--tee=1", "--log-dir=@log@",
          *sh("echo said by $RANK")],
         Expect(logs={"*/attempt_0/0/stdout.log": "said by 0\n",
                      "*/attempt_0/1/stdout.log": "said by 1\n"},
                output=("[default1]:said by 1",), absent=("]:said by 0",))),
    Case("a log folder that is a file", [*PLAIN, "--log-dir=@workers@/arguments.py", *sh(REPORT)],
         Expect(CHECKED_LATE, reports={})),
    Case("the null device as log folder",
         [*PLAIN, "--log-dir=/dev/null", "-r3", *sh("echo error file: \"<$TORCHELASTIC_ERROR_FILE>\"")],
         ddprun=Expect(output=("error file: </",)), torchrun=Expect(output=("error file: <>",)),
         difference="ddprun keeps a temporary error file, so that its report can name the cause"),
    Case("temporary files of a job that succeeded", [*PLAIN, *sh("exit 0")],
         ddprun=Expect(check=no_temporary_files), torchrun=Expect(check=a_temporary_folder_is_left),
         difference="torchrun leaves a folder behind"),

    # ---- failures ----
    Case("a script that raises", [*PLAIN, *python("every_variable.py")],
         Expect(worker_failed(1), output=("not set: ",))),
    Case("an unusual exit code is kept", [*PLAIN, "--nproc-per-node=2", *sh("exit 138")],
         Expect(worker_failed(138), output=("138",))),
    Case("a worker that gets SIGSEGV", [*PLAIN, *sh("kill -SEGV $pid")],
         Expect(worker_failed(139), output=("SIGSEGV",))),
    Case("a program that does not exist", [*PLAIN, "--no-python", "/no/such/program"],
         Expect(CHECKED_LATE, output=("/no/such/program",))),
    Case("a script that does not exist", [*PLAIN, "no_such_script.py"],
         Expect(CHECKED_LATE, output=("no_such_script.py",))),
    Case("the launcher's own error file names the cause",
         [*PLAIN, "--nproc-per-node=2", *sh(
             "test $RANK = 1 || exec sleep 100; echo '{\"message\": {\"message\": \"ValueError: bad "
             "batch\", \"extraInfo\": {\"py_callstack\": \"trace of bad batch\", \"timestamp\": \"1700000000\"}}}'"
             " > $TORCHELASTIC_ERROR_FILE; exit 3")],
         Expect(worker_failed(3), output=("bad batch",), check=launchers_error_file_names_the_cause),
         env={"TORCHELASTIC_ERROR_FILE": "@dir@/cause.json"}),
    Case("an error file that is cut off",
         [*PLAIN, *sh("echo '{\"message\": {\"mess' > $TORCHELASTIC_ERROR_FILE; exit 3")],
         ddprun=Expect(3, output=("exit code 3",)),
         torchrun=Expect(1, output=("JSONDecodeError",), absent=("exitcode",)),
         difference="torchrun's report is lost"),
    Case("odd ranks fail in every attempt",
         [*PLAIN, "--nproc-per-node=2", "--max-restarts=2",
          *sh(": > $OUT/$RANK.$TORCHELASTIC_RESTART_COUNT; test $RANK = 1 || exec sleep 100; "
              "until test -e $OUT/0.$TORCHELASTIC_RESTART_COUNT; do sleep 0.01; done; exit 1")],
         Expect(worker_failed(1),
                reports={f"{rank}.{attempt}": "" for rank in range(2) for attempt in range(3)})),
    Case("a rank that kills itself is restarted with all",
         [*PLAIN, "--nproc-per-node=2", "--max-restarts=2",
          *sh("if test $TORCHELASTIC_RESTART_COUNT = 0; then test $RANK = 0 || kill -KILL $pid; "
              "exec sleep 100; fi; echo $TORCHELASTIC_RESTART_COUNT > $OUT/$RANK")],
         Expect(reports=ranks(2, "1"))),
    Case("the store of the next attempt",
         [*PLAIN, "--max-restarts=1", *python("store_counter.py")],
         ddprun=Expect(reports={"attempt_0": "1", "attempt_1": "1"}),
         torchrun=Expect(reports={"attempt_0": "1", "attempt_1": "2"}),
         difference="torchrun's next attempt finds what the one before has written"),

    # ---- signals to the launcher ----
    *[Case(f"{name} ends the job and all its workers",
           [*PLAIN, "--nproc-per-node=2", *sh("echo up $RANK; exec sleep 100")],
           Expect(Status(status, 1, "torchrun ends with 1 after every signal")),
           signal=(name, ("up 0", "up 1")))
      for name, status in [("SIGTERM", 75), ("SIGINT", 130), ("SIGHUP", 129), ("SIGQUIT", 131)]],
]
