# Completion of ddprun for bash. Made from the table of options; scripts/update_docs writes it.

# Sets `words` to what stands before the cursor, and `begins` to where each of them begins in
# COMP_WORDS. Bash takes words apart at "=" and ":".
_ddprun_words() {
  local i
  words=() begins=()
  for ((i = 1; i <= COMP_CWORD; i++)); do
    if ((i > 1)) && [[ ${COMP_WORDS[i]} == [=:]* || ${COMP_WORDS[i - 1]} == *[=:] ]]; then
      words[${#words[@]} - 1]+=${COMP_WORDS[i]}
    else
      words+=("${COMP_WORDS[i]}")
      begins+=("$i")
    fi
  done
}

# Sets `place` to what the last word is: an option or the program, the value of `option`, or an
# argument of the program, which is word `program`.
_ddprun_place() {
  local word
  place=option program=-1
  for word in "${words[@]:0:${#words[@]}-1}"; do
    ((program += 1))
    case $place,$word in
      value,*) place=option ;;
      program,*) place=argument && return ;;
      option,--) place=program ;;
      option,env | option,doctor | option,status | option,top | option,logs | option,stacks | option,plot) ((program == 0)) || { place=argument && return; } ;;
      option,--*=*) ;;
      option,-?*)
        option=${word//_/-}
        # A switch, or an option with a value or the start of its name.
        [[ " ${switches[*]} " != *" $option "* && " ${valued[*]}" == *" $option"* ]] && place=value
        ;;
      *) place=argument && return ;;
    esac
  done
}

_ddprun_options() {
  switches=(
    --virtual-local-rank --copy-self --standalone --store-auth --encrypt-gradients --module -m
    --no-python --run-path --use-env --pass-local-rank --dry-run --stay --collapse-output --pty
    --quiet -q --help --version
  )
  valued=(
    --nnodes --nproc-per-node --node-rank --role --omp-threads --numa-binding --hosts -H --hostfile
    --export -x --ssh-options --master-addr --master-port --rdzv-backend --rdzv-endpoint --rdzv-id
    --rdzv-conf --tie-breaker --secret-file --auth --store-allow --local-addr --max-restarts
    --shutdown-timeout --stall-timeout --on-stall --exit-code-map --signals-to-handle
    --forward-signals --node-check --node-check-timeout --spares --spare-timeout --restart-memory
    --restart-backoff --max-same-failures --reset-restarts-after --report --log-dir --redirects -r
    --tee -t --local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --log-rotate
    --log-keep --log-line-prefix-template --event-log --metrics-file --metrics-port --status-page
    --color --monitor-interval --start-method --event-log-handler --logs-specs
    --exit-barrier-timeout
  )
}

# Sets `offer` to the options of the command $1, `valued` to those with a value, and
# `files` where other words are files' names; fails where it is a program.
_ddprun_command() {
  case $1 in
    status)
      offer=(-h --json --endpoint --secret-file --auth)
      valued=(--endpoint --secret-file --auth)
      ;;
    top)
      offer=(-h -i --interval --endpoint --secret-file --auth)
      valued=(-i --interval --endpoint --secret-file --auth)
      ;;
    logs)
      offer=(-h -f --follow --rank -n --lines --endpoint --secret-file --auth)
      valued=(--rank -n --lines --endpoint --secret-file --auth)
      ;;
    stacks)
      offer=(-h --rank --endpoint --secret-file --auth)
      valued=(--rank --endpoint --secret-file --auth)
      ;;
    doctor)
      offer=(-h -H --hosts --hostfile --write-hostfile --master-port --timeout --ssh-options --copy-self --color --brief --json)
      valued=(-H --hosts --hostfile --write-hostfile --master-port --timeout --ssh-options --color)
      ;;
    plot)
      offer=(-h -o --output --help) files=1
      valued=(-o --output)
      ;;
    *) return 1 ;;
  esac
}

# Sets `offer` to what compgen is to offer for `option`.
_ddprun_value() {
  case $option in
  --nproc-per-node) offer=(-W 'auto cpu gpu') ;;
  --omp-threads) offer=(-W 'auto') ;;
  --numa-binding) offer=(-W 'node socket exclusive core-complex') ;;
  --hosts | -H) offer=(-A hostname) ;;
  --hostfile) offer=(-f) ;;
  --master-addr) offer=(-A hostname) ;;
  --rdzv-backend) offer=(-W 'static c10d etcd') ;;
  --rdzv-endpoint) offer=(-A hostname) ;;
  --tie-breaker) offer=(-f) ;;
  --secret-file) offer=(-f) ;;
  --auth) offer=(-W 'secret none') ;;
  --stall-timeout) offer=(-W 'auto off') ;;
  --on-stall) offer=(-W 'auto report fail') ;;
  --report) offer=(-f) ;;
  --log-dir) offer=(-d) ;;
  --redirects | -r) offer=(-W '0 1 2 3') ;;
  --tee | -t) offer=(-W '0 1 2 3') ;;
  --event-log) offer=(-f) ;;
  --metrics-file) offer=(-f) ;;
  --color) offer=(-W 'auto always never') ;;
  --start-method) offer=(-W 'spawn fork forkserver') ;;
  --event-log-handler) offer=(-W 'null console dynamic_rendezvous') ;;
  --logs-specs) offer=(-W 'default') ;;
  --endpoint) offer=(-A hostname) ;;
  --write-hostfile) offer=(-f) ;;
  --output | -o) offer=(-f) ;;
  *) offer=() ;;
  esac
}

# Hands the line on to the completion of the program, from COMP_WORDS[$1] on, where it has one.
_ddprun_hand_on() {
  local name=${COMP_WORDS[$1]##*/} found
  complete -p "$name" &>/dev/null || ! declare -F _completion_loader >/dev/null ||
    _completion_loader "$name"
  found=$(complete -p "$name" 2>/dev/null)
  [[ $found == *' -F '* ]] || return 0
  found=${found#* -F }
  COMP_WORDS=("${COMP_WORDS[@]:$1}")
  ((COMP_CWORD -= $1))
  "${found%% *}" "$name" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
}

_ddprun() {
  local words begins program place option='' current joined_option='' offer=() switches valued
  local files=''
  _ddprun_options
  _ddprun_words
  current=${words[${#words[@]} - 1]}
  COMPREPLY=()
  if ((${#words[@]} > 1)) && _ddprun_command "${words[0]}"; then
    place=option program=0 option=${words[${#words[@]} - 2]}
    [[ ${#words[@]} -gt 2 && " ${valued[*]} " == *" $option "* ]] && place=value
    if [[ $place == option && $current != --*=* ]]; then
      [[ -n $files && $current != -* ]] && return  # Bash itself offers files.
      mapfile -t COMPREPLY < <(compgen -W "${offer[*]}" -- "$current")
      return
    fi
    offer=()
  else
    _ddprun_place
  fi
  if [[ $place == option && $current == --*=* ]]; then
    place=value option=${current%%=*} current=${current#*=}
    option=${option//_/-}
    # Where "=" does not end a word, the reply must hold the whole of it.
    [[ ${COMP_WORDS[COMP_CWORD]} == --*=* ]] && joined_option=$option=
  fi
  case $place in
    value)
      _ddprun_value
      if ((${#offer[@]} == 0)); then
        compopt +o default +o bashdefault  # No file names for a number.
        return
      fi
      [[ ${offer[0]} == -[fd] ]] && compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -P "$joined_option" "${offer[@]}" -- "$current")
      ;;
    option | program)
      if [[ $place == option && $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "-h ${switches[*]} ${valued[*]}" -- "${current//_/-}")
        return
      fi
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -f -- "$current"
        ((COMP_CWORD == 1)) && compgen -W 'env doctor status top logs stacks plot' -- "$current"
        [[ -n $current && $current != */* ]] && compgen -c -- "$current")
      ;;
    argument) _ddprun_hand_on "${begins[program]}" ;;
  esac
}

complete -o bashdefault -o default -F _ddprun ddprun ddprun-launch
