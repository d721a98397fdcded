# Completion of ddprun for fish. Made from the table of options; scripts/update_docs writes it.

# Prints where the cursor is: "option" (or the program), the "value" of a --NAME, "command NAME", or
# "argument N" of the program, which is word N of the line.
function __ddprun_place
    set -l valued --nnodes --nproc-per-node --node-rank --role --omp-threads --numa-binding --hosts -H --hostfile --export -x --ssh-options --master-addr --master-port --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --tie-breaker --secret-file --auth --store-allow --local-addr --max-restarts --shutdown-timeout --stall-timeout --on-stall --exit-code-map --signals-to-handle --forward-signals --node-check --node-check-timeout --spares --spare-timeout --restart-memory --restart-backoff --max-same-failures --reset-restarts-after --report --log-dir --redirects -r --tee -t --local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --log-rotate --log-keep --log-line-prefix-template --event-log --metrics-file --metrics-port --status-page --color --monitor-interval --start-method --event-log-handler --logs-specs --exit-barrier-timeout
    set -l switches -h --virtual-local-rank --copy-self --standalone --store-auth --encrypt-gradients --module -m --no-python --run-path --use-env --pass-local-rank --dry-run --stay --collapse-output --pty --quiet -q --help --version
    set -l at 1
    set -l words (commandline -opc)
    set -l ended 0
    set -l value_of
    for word in $words[2..]
        set at (math $at + 1)
        if test -n "$value_of"
            set value_of
            continue
        end
        if test $ended = 0
            switch $word
                case --
                    set ended 1
                    continue
                case '--*=*'
                    continue
                case '-?*'
                    # A switch, or an option with a value or the start of its name.
                    set -l option (string replace -a _ - -- $word)
                    if contains -- $option $valued
                        set value_of $option
                    else if not contains -- $option $switches
                        set value_of (string match -- "$option*" $valued)[1]
                    end
                    continue
                case env
                    test $at = 2; and continue
                case status top logs stacks doctor plot
                    if test $at = 2
                        echo command $word
                        return
                    end
            end
        end
        echo argument $at
        return
    end
    if test -n "$value_of"
        echo value $value_of
    else
        echo option
    end
end

function __ddprun_at
    set -l place (__ddprun_place | string split ' ')
    test $place[1] = $argv[1]; and test (count $argv) = 1 -o "$place[2]" = "$argv[2]"
end

# Fish asks for an option also whether it can stand before its own value.
function __ddprun_has_options
    __ddprun_at option; or __ddprun_at value
end

# Of an option that is not written as fish knows it: with underscores, or the start of its name.
function __ddprun_value
    set -l place (__ddprun_place | string split ' ')
    complete -C "ddprun $place[2] "(commandline -ct)
end

# A program of PATH; fish itself offers files.
function __ddprun_programs
    commandline -ct | string length -q; and __fish_complete_command
end

# What the completion of the program offers behind it.
function __ddprun_argument
    set -l place (__ddprun_place | string split ' ')
    set -l words (commandline -opc)
    set -l program (string replace -r '.*/' '' -- $words[$place[2]])
    complete -C (string join ' ' -- (string escape -- $program $words[(math $place[2] + 1)..]) (commandline -ct))
end

complete -c ddprun-launch -w ddprun
complete -c ddprun -n '__ddprun_at argument' -f -a '(__ddprun_argument)'
complete -c ddprun -n '__ddprun_at value' -f -a '(__ddprun_value)'
complete -c ddprun -n '__ddprun_at option' -a '(__ddprun_programs)'
complete -c ddprun -n 'test (count (commandline -opc)) = 1' -a 'env doctor status top logs stacks plot' -d 'command of ddprun'
complete -c ddprun -n __ddprun_has_options -s h -d 'The most used options.'
complete -c ddprun -n __ddprun_has_options -l nnodes -x -d 'Nodes of the job. MIN:MAX is elastic and needs --rdzv-backend c10d; static takes MAX.'
complete -c ddprun -n __ddprun_has_options -l nproc-per-node -x -a 'auto cpu gpu' -d 'Workers on this node. gpu: one per visible GPU; cpu: one per allowed CPU; auto: gpu if there is one, else cpu. MIN:MAX starts MAX, and goes on with those that are left, if they can park and are MIN, until the others are replaced.'
complete -c ddprun -n __ddprun_has_options -l node-rank -x -d 'Rank of this node, from 0. With c10d optional: nodes are ranked as they join.'
complete -c ddprun -n __ddprun_has_options -l role -x -d 'Role of this node\'s workers: ROLE_NAME, and the start of each console prefix.'
complete -c ddprun -n __ddprun_has_options -l virtual-local-rank -d 'Every worker gets LOCAL_RANK=0 and sees only its own device in CUDA_VISIBLE_DEVICES, and in HIP_VISIBLE_DEVICES where that is set.'
complete -c ddprun -n __ddprun_has_options -l omp-threads -x -a 'auto' -d 'OMP_NUM_THREADS of each worker. auto: the physical cores that it may use, divided by the workers that share them.'
complete -c ddprun -n __ddprun_has_options -l numa-binding -x -a 'node socket exclusive core-complex' -d 'Binds each worker to CPUs near its GPU (without GPUs: to an even share): all of the NUMA node, all of the socket, its own part of the node\'s cores, or one group that shares a cache. Where that cannot be, it says so and runs unbound.'
complete -c ddprun -n __ddprun_has_options -l hosts -s H -x -a '(__fish_print_hostnames)' -d 'Start the whole job from here: a node on each of these hosts, over ssh, with N workers (else --nproc-per-node). Also USER@HOST and gpu[01-16]:8. The first is node 0; localhost needs no ssh.'
complete -c ddprun -n __ddprun_has_options -l hostfile -r -F -d 'The same from a file: HOST, HOST:N or HOST slots=N on each line, # begins a comment; or mlx.launch\'s JSON.'
complete -c ddprun -n __ddprun_has_options -l export -s x -x -d 'Variables that go along to the other hosts, as in -x \'NCCL_*\' -x DEBUG=1. May be given again.'
complete -c ddprun -n __ddprun_has_options -l ssh-options -x -d 'Options of ssh, as in \'-p 2222 -i KEY\'. They win over ddprun\'s own. May be given again.'
complete -c ddprun -n __ddprun_has_options -l copy-self -d 'Send ddprun to hosts that have none; the copy goes when the job ends.'
complete -c ddprun -n __ddprun_has_options -l standalone -d 'One node, a free port on 127.0.0.1 and a random id: never collides with another job.'
complete -c ddprun -n __ddprun_has_options -l master-addr -x -a '(__fish_print_hostnames)' -d 'Host of node 0, where the job\'s one port is. IPv6 with or without brackets.'
complete -c ddprun -n __ddprun_has_options -l master-port -x -d 'Port there. 0 picks a free one (one node only).'
complete -c ddprun -n __ddprun_has_options -l rdzv-backend -x -a 'static c10d etcd' -d 'static: exactly --nnodes nodes with given ranks. c10d: nodes may come and go between MIN and MAX. etcd, or etcd-v2: so, and --rdzv-endpoint is etcd\'s (2379), where the nodes find the one that coordinates, and which says who goes on when they lose each other; protocol, cacert, cert, key in --rdzv-conf.'
complete -c ddprun -n __ddprun_has_options -l rdzv-endpoint -x -a '(__fish_print_hostnames)' -d 'Where the nodes meet; wins over --master-addr and --master-port. IPv6 as [ADDRESS]:PORT.'
complete -c ddprun -n __ddprun_has_options -l rdzv-id -x -d 'Name of the job: nodes with another one are turned away. Empty: a random one.'
complete -c ddprun -n __ddprun_has_options -l rdzv-conf -x -d 'join_timeout (600), last_call_timeout (30; where another node may take over at least 12, with --tie-breaker at least 53), heartbeat_timeout (5), keep_alive_interval (1), keep_alive_max_attempt, start_timeout (30), is_host, takeover (c10d: true; static: false). Seconds. timeout means join_timeout.'
complete -c ddprun -n __ddprun_has_options -l tie-breaker -r -F -d 'Who goes on when nodes lose each other. FILE on a file system that all nodes share: of two halves the one that puts its name there first. URL of etcd, as http://HOST:2379: any part, the first to do so; CA and certificates in ETCDCTL_CACERT, _CERT, _KEY. c10d, or takeover=true.'
complete -c ddprun -n __ddprun_has_options -l secret-file -r -F -d 'Secret that the nodes of a job prove to each other, equal on all of them, where another host could join. - is stdin. Also DDPRUN_SECRET_FILE.'
complete -c ddprun -n __ddprun_has_options -l auth -x -a 'secret none' -d 'none: nodes join without a secret, and so does whoever reaches the port. secret: also at a loopback address, as through a tunnel. Also DDPRUN_AUTH.'
complete -c ddprun -n __ddprun_has_options -l store-allow -x -d 'Who else may use the store, such as 10.1.0.0/16 for workers in containers with addresses of their own.'
complete -c ddprun -n __ddprun_has_options -l store-auth -d 'The store serves only programs that prove the job\'s secret: those on ddprun\'s C++ library, and no Python ones.'
complete -c ddprun -n __ddprun_has_options -l encrypt-gradients -d 'What workers on ddprun\'s library send each other over TCP is encrypted, with keys made of the job\'s secret. Not over NCCL or MPI, which have connections of their own. Also DDPRUN_ENCRYPT_GRADIENTS=1.'
complete -c ddprun -n __ddprun_has_options -l local-addr -x -d 'Address under which the other nodes reach this one.'
complete -c ddprun -n __ddprun_has_options -l module -s m -d 'Run the program as python -m PROGRAM.'
complete -c ddprun -n __ddprun_has_options -l no-python -d 'Run the program directly, whatever its name. Needed only for a Python program.'
complete -c ddprun -n __ddprun_has_options -l run-path -d 'Run the program by Python whatever its name, in a process of its own.'
complete -c ddprun -n __ddprun_has_options -l use-env -d 'As in torch.distributed.launch: the local rank is only in LOCAL_RANK. Always so, unless --pass-local-rank is given or the program was started as ddprun-launch.'
complete -c ddprun -n __ddprun_has_options -l pass-local-rank -d 'As torch.distributed.launch without --use-env: --local-rank=N is the worker\'s first argument. The default under the name ddprun-launch.'
complete -c ddprun -n __ddprun_has_options -l dry-run -d 'Say what would be started, where and with which environment, and where each value comes from; start nothing.'
complete -c ddprun -n __ddprun_has_options -l max-restarts -x -d 'How many failures the job survives, counted over all nodes.'
complete -c ddprun -n __ddprun_has_options -l shutdown-timeout -x -d 'From asking workers to stop to SIGKILL, on every path. Also TORCH_ELASTIC_SHUTDOWN_TIMEOUT.'
complete -c ddprun -n __ddprun_has_options -l stall-timeout -x -a 'auto off' -d 'A worker that lives and makes no progress for so long stalls the job: the stacks of all are told, with who is behind. auto: a limit for each phase, learnt from the run, of 60 s at least (docs/failures.md).'
complete -c ddprun -n __ddprun_has_options -l on-stall -x -a 'auto report fail' -d 'What follows of a stall, besides the report. fail: whoever is behind is killed, and the attempt ends as by any worker\'s death. auto: the same where it is known who is behind, and the others go on in place (docs/failures.md). report: nothing.'
complete -c ddprun -n __ddprun_has_options -l exit-code-map -x -d 'Other exit statuses for ddprun\'s own, as in lost=138,preempted=138 for a scheduler that tries again from 128 on: unfit (69), internal (70), timeout (71), coordinator (72), refused (73), lost (74), preempted (75). A worker\'s own code stays, except 75.'
complete -c ddprun -n __ddprun_has_options -l signals-to-handle -x -d 'Signals that shut the job down: the first asks the workers to stop; a second SIGINT or SIGQUIT kills them.'
complete -c ddprun -n __ddprun_has_options -l forward-signals -x -d 'Signals that are passed on to this node\'s workers, such as USR1,USR2; the job goes on.'
complete -c ddprun -n __ddprun_has_options -l stay -d 'Go on when the ssh session that started the job is lost. Otherwise the job ends then as by SIGHUP, unless it was started by nohup or writes to a file.'
complete -c ddprun -n __ddprun_has_options -l node-check -x -d 'What a shell runs to know whether this node is fit for the job, before it joins and between two attempts. 0: it is. Otherwise it leaves with 69, and an elastic job goes on without. "ddprun doctor --brief" knows lost and worn-out GPUs, and more.'
complete -c ddprun -n __ddprun_has_options -l node-check-timeout -x -d 'A --node-check that has not ended after this is killed, and the node counts as unfit.'
complete -c ddprun -n __ddprun_has_options -l spares -x -d 'Processes of the program that are started ahead and wait for a rank, so that a restart need not load libraries: for programs that call wait_for_rank() or do as it does (docs/failures.md). As many as there are workers replace all of a node.'
complete -c ddprun -n __ddprun_has_options -l spare-timeout -x -d 'A spare, or what replaces a lost worker, that has not asked for a rank after this is killed and tried again, three times in all; sooner where others took a tenth of the time. 0: it may take for ever.'
complete -c ddprun -n __ddprun_has_options -l restart-memory -x -d 'Memory of this node, at most SIZE (500M, 2G), that outlives its workers, for programs that keep their state there for a restart: train --snapshot-every, which needs twice the size of a checkpoint.'
complete -c ddprun -n __ddprun_has_options -l restart-backoff -x -d 'The first restart comes at once, the second in a row after this time, each further one after twice as long, up to 30 s, with jitter; one lost node or killed worker in a row does not count. 0: none waits.'
complete -c ddprun -n __ddprun_has_options -l max-same-failures -x -d 'Stop early when this many attempts in a row failed in the same way within 10 s of their start. 0: never.'
complete -c ddprun -n __ddprun_has_options -l reset-restarts-after -x -d 'An attempt that ran this long gives all of --max-restarts back.'
complete -c ddprun -n __ddprun_has_options -l report -r -F -d 'How the job ended, as JSON, on every node and also on success (docs/failures.md).'
complete -c ddprun -n __ddprun_has_options -l log-dir -x -a '(__fish_complete_directories)' -d 'Where log files go. The temporary folder stays after the run if --redirects or --tee asked for files. /dev/null: no files, whatever --redirects and --tee say.'
complete -c ddprun -n __ddprun_has_options -l redirects -s r -x -a '0 1 2 3' -d 'Streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:3,4-7:1 (others: 0).'
complete -c ddprun -n __ddprun_has_options -l tee -s t -x -a '0 1 2 3' -d 'Streams that go to files and the console; as above.'
complete -c ddprun -n __ddprun_has_options -l local-ranks-filter -x -d 'Only these local ranks are shown on the console, as in 0,4-7. Files are not affected.'
complete -c ddprun -n __ddprun_has_options -l duplicate-stdout-filters -x -d 'Lines of tee\'d stdout that hold any of these texts also go to filtered_stdout.log of the attempt. Two commas stand for one.'
complete -c ddprun -n __ddprun_has_options -l duplicate-stderr-filters -x -d 'The same for stderr and filtered_stderr.log.'
complete -c ddprun -n __ddprun_has_options -l log-rotate -x -d 'A log file that would grow beyond SIZE (64M, 1G; 4096 bytes at least) goes on in a new one; the full ones are stdout.log.1, stdout.log.2 ..., the oldest first.'
complete -c ddprun -n __ddprun_has_options -l log-keep -x -d 'With --log-rotate: how many full files of a stream are kept.'
complete -c ddprun -n __ddprun_has_options -l log-line-prefix-template -x -d 'Console prefix; may hold ${role_name}, ${rank}, ${local_rank}, ${hostname}. Also TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE.'
complete -c ddprun -n __ddprun_has_options -l event-log -r -F -d 'Appends what happens on this node as JSON lines (docs/event_log.md).'
complete -c ddprun -n __ddprun_has_options -l metrics-file -r -F -d 'Writes this node\'s metrics as Prometheus\'s text each few seconds, whole each time (docs/metrics.md).'
complete -c ddprun -n __ddprun_has_options -l metrics-port -x -d 'Serves them at /metrics, to this machine alone unless an address is given; 0 picks a free port.'
complete -c ddprun -n __ddprun_has_options -l status-page -x -d 'Serves a page with this node\'s live curves, ranks, attempts and failures, to this user alone unless an address is given; 0 picks a free port.'
complete -c ddprun -n __ddprun_has_options -l color -x -a 'auto always never' -d 'Colors of console prefixes and of ddprun\'s own warnings and errors. auto: on a terminal, unless NO_COLOR is set or TERM is dumb.'
complete -c ddprun -n __ddprun_has_options -l collapse-output -d 'Equal lines that several ranks write within a tenth of a second are shown once, as [default0-7]:. Files are not affected.'
complete -c ddprun -n __ddprun_has_options -l pty -d 'Workers write to pseudo-terminals, as if somebody watched each of them: colors, progress bars, unbuffered lines.'
complete -c ddprun -n __ddprun_has_options -l quiet -s q -d 'No messages of ddprun\'s own but errors. The workers\' output is not affected.'
complete -c ddprun -n __ddprun_has_options -l monitor-interval -x -d 'Accepted and not used: ddprun is told of every event by the kernel and polls nothing.'
complete -c ddprun -n __ddprun_has_options -l start-method -x -a 'spawn fork forkserver' -d 'Accepted and not used: every worker is a program of its own.'
complete -c ddprun -n __ddprun_has_options -l event-log-handler -x -a 'null console dynamic_rendezvous' -d 'Accepted and not used: --event-log FILE writes ddprun\'s events.'
complete -c ddprun -n __ddprun_has_options -l logs-specs -x -a 'default' -d 'Accepted: default is the layout of --log-dir. Others are Python plug-ins.'
complete -c ddprun -n __ddprun_has_options -l exit-barrier-timeout -x -d 'Accepted and not used: nodes end without waiting for each other, and the store lives until every one has ended. Also TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT.'
complete -c ddprun -n __ddprun_has_options -l help -d 'All options (-h: the most used ones).'
complete -c ddprun -n __ddprun_has_options -l version -d 'The version, and of which commit and how it was built.'
complete -c ddprun -n '__ddprun_at command status' -f
complete -c ddprun -n '__ddprun_at command status' -l json -d 'As a JSON array, an object for each launcher (docs/watching.md).'
complete -c ddprun -n '__ddprun_at command status' -l endpoint -x -a '(__fish_print_hostnames)' -d 'A job on other hosts: asks its coordinator there, where the nodes meet (29500 unless given). JOB is then its --rdzv-id; none unless given.'
complete -c ddprun -n '__ddprun_at command status' -l secret-file -r -F -d 'With --endpoint: the job\'s secret, as for a node.'
complete -c ddprun -n '__ddprun_at command status' -l auth -x -d 'With --endpoint: secret, or none for a job without one, which tells only who is on its coordinator\'s machine.'
complete -c ddprun -n '__ddprun_at command top' -f
complete -c ddprun -n '__ddprun_at command top' -l interval -s i -x -d 'Between two looks; 1 unless given.'
complete -c ddprun -n '__ddprun_at command top' -l endpoint -x -a '(__fish_print_hostnames)' -d 'A job on other hosts: asks its coordinator there, where the nodes meet (29500 unless given). JOB is then its --rdzv-id; none unless given.'
complete -c ddprun -n '__ddprun_at command top' -l secret-file -r -F -d 'With --endpoint: the job\'s secret, as for a node.'
complete -c ddprun -n '__ddprun_at command top' -l auth -x -d 'With --endpoint: secret, or none for a job without one, which tells only who is on its coordinator\'s machine.'
complete -c ddprun -n '__ddprun_at command logs' -f
complete -c ddprun -n '__ddprun_at command logs' -l follow -s f -d 'Also what they write from now on, over restarts, until the job ends.'
complete -c ddprun -n '__ddprun_at command logs' -l rank -x -d 'Of this rank alone.'
complete -c ddprun -n '__ddprun_at command logs' -l lines -s n -x -d 'The last N lines of each file; 10 with -f unless given, else all.'
complete -c ddprun -n '__ddprun_at command logs' -l endpoint -x -a '(__fish_print_hostnames)' -d 'A job on other hosts: asks its coordinator there, where the nodes meet (29500 unless given). JOB is then its --rdzv-id; none unless given.'
complete -c ddprun -n '__ddprun_at command logs' -l secret-file -r -F -d 'With --endpoint: the job\'s secret, as for a node.'
complete -c ddprun -n '__ddprun_at command logs' -l auth -x -d 'With --endpoint: secret, or none for a job without one, which tells only who is on its coordinator\'s machine.'
complete -c ddprun -n '__ddprun_at command stacks' -f
complete -c ddprun -n '__ddprun_at command stacks' -l rank -x -d 'Of this rank alone.'
complete -c ddprun -n '__ddprun_at command stacks' -l endpoint -x -a '(__fish_print_hostnames)' -d 'A job on other hosts: asks its coordinator there, where the nodes meet (29500 unless given). JOB is then its --rdzv-id; none unless given.'
complete -c ddprun -n '__ddprun_at command stacks' -l secret-file -r -F -d 'With --endpoint: the job\'s secret, as for a node.'
complete -c ddprun -n '__ddprun_at command stacks' -l auth -x -d 'With --endpoint: secret, or none for a job without one, which tells only who is on its coordinator\'s machine.'
complete -c ddprun -n '__ddprun_at command doctor' -f
complete -c ddprun -n '__ddprun_at command doctor' -l hosts -s H -x -a '(__fish_print_hostnames)' -d 'The hosts of the job to be, as for ddprun -H.'
complete -c ddprun -n '__ddprun_at command doctor' -l hostfile -r -F -d 'The same from a file, as for ddprun --hostfile.'
complete -c ddprun -n '__ddprun_at command doctor' -l write-hostfile -r -F -d 'Write the hosts that can form a job, with slots=N as --nproc-per-node auto counts.'
complete -c ddprun -n '__ddprun_at command doctor' -l master-port -x -d 'The rendezvous port that is tried; 29500 unless given.'
complete -c ddprun -n '__ddprun_at command doctor' -l timeout -x -d 'How long a connection, or a large message, may take before it counts as lost; 3 unless given.'
complete -c ddprun -n '__ddprun_at command doctor' -l ssh-options -x -d 'More options for ssh, as for ddprun.'
complete -c ddprun -n '__ddprun_at command doctor' -l copy-self -d 'Send this ddprun to hosts that have none, and take it away again.'
complete -c ddprun -n '__ddprun_at command doctor' -l color -x -a 'auto always never' -d 'Colors; auto: on a terminal.'
complete -c ddprun -n '__ddprun_at command doctor' -l brief -d 'Only what is red, a line each: for ddprun --node-check, and scripts.'
complete -c ddprun -n '__ddprun_at command doctor' -l json -d 'All that was found as one JSON object.'
complete -c ddprun -n '__ddprun_at command plot' -l output -s o -r -F -d 'The page; report.html unless given.'
complete -c ddprun -n '__ddprun_at command plot' -l help -s h -d 'What a run is, with examples.'
