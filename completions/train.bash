# Completion of train for bash. Made from its options; scripts/update_docs writes it.

_train_options() {
  switches=(
    --help --version --verify-data --download --new-head --zero-init-residual --balance-shards
    --sync-bn --nesterov --print-all-ranks --no-validation --evaluate --profile-ops --resume-anyway
    --overlap --no-overlap --share-gpu --cudnn-benchmark --no-cudnn-benchmark --cudnn-deterministic
    --fused-optimizer --no-fused-optimizer --fused-norm --no-fused-norm --fused-pool --no-fused-pool
    --working-copies --no-working-copies --resident-data --no-resident-data --device-normalize
    --no-device-normalize --device-jpeg --no-device-jpeg --cuda-graph --no-cuda-graph --gpu-memory
  )
  valued=(
    --config -c --dataset --data --validation-data --download-from --image-size --augment
    --crop-scale --crop-ratio --crop-padding --val-resize-size --mean --std --on-bad-image
    --synthetic-images --synthetic-classes --workers --model --stem --weights --epochs --steps
    --max-time --batch-size --global-batch-size --accumulate --shards --recover --label-smoothing
    --grad-dtype --power-sgd --power-sgd-start --verify-sync --seed --optimizer --lr --scale-lr
    --lr-schedule --lr-step-epochs --lr-milestones --lr-gamma --warmup-steps --warmup-epochs
    --momentum --weight-decay --no-decay --lars-trust --clip-grad-norm --ema --print-freq --metrics
    --report --tensorboard --profile --profile-steps --print-sample-order --checkpoint-dir
    --checkpoint-every --snapshot-every --keep-checkpoints --resume --device --backend
    --dist-backend --memory-format --conv-algorithm --precision --collective-timeout --gpu-ids
    --tf32 --data-parallel --init-method --dist-url --rank --world-size --local-rank --interface
    --connect-timeout
  )
}

# Sets `offer` to what compgen is to offer for `option`.
_train_value() {
  case $option in
    --config | -c) offer="-f" ;;
    --dataset) offer="-W 'cifar10 csv imagefolder mnist stl10 synthetic'" ;;
    --data) offer="-f" ;;
    --validation-data) offer="-f" ;;
    --augment) offer="-W 'auto none'" ;;
    --on-bad-image) offer="-W 'fail skip'" ;;
    --model) offer="-W 'resnet18 resnet34 resnet50 resnet101 resnet152 resnet20 resnet32 resnet44 resnet56 resnet110 convnet convnet-large'" ;;
    --stem) offer="-W 'auto imagenet small'" ;;
    --weights) offer="-f" ;;
    --recover) offer="-W 'auto in-place restart'" ;;
    --grad-dtype) offer="-W 'bf16 fp16 fp32'" ;;
    --optimizer) offer="-W 'lars sgd'" ;;
    --lr-schedule) offer="-W 'cosine multistep step'" ;;
    --metrics) offer="-f" ;;
    --tensorboard) offer="-d" ;;
    --profile) offer="-d" ;;
    --checkpoint-dir) offer="-d" ;;
    --resume) offer="-W 'auto none' -f" ;;
    --device) offer="-W 'auto cpu cuda'" ;;
    --backend | --dist-backend) offer="-W 'auto cpu gloo mpi nccl'" ;;
    --memory-format) offer="-W 'auto channels-last nchw'" ;;
    --conv-algorithm) offer="-W 'auto direct'" ;;
    --precision) offer="-W 'bf16 fp16 fp32'" ;;
    --tf32) offer="-W 'auto off on'" ;;
  esac
}

_train() {
  local switches valued option offer='' current=${COMP_WORDS[COMP_CWORD]} joined_option=''
  _train_options
  option=${COMP_WORDS[COMP_CWORD - 1]}
  # Bash takes words apart at "=", unless somebody has told it not to.
  if [[ $current == '=' ]]; then
    current=''
  elif [[ $option == '=' ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $current == --*=* ]]; then
    option=${current%%=*} current=${current#*=} joined_option=$option=
  fi
  option=${option//_/-}
  COMPREPLY=()
  # An option with a value, or the start of its name.
  if [[ $option == -* && " ${switches[*]} " != *" $option "* && " ${valued[*]}" == *" $option"* ]]; then
    if [[ " ${valued[*]} " != *" $option "* ]]; then
      option=$(compgen -W "${valued[*]}" -- "$option" | head -n 1)
    fi
    _train_value
    if [[ -z $offer ]]; then
      compopt +o default +o bashdefault  # No file names for a number.
      return
    fi
    [[ $offer == *-[fd] ]] && compopt -o filenames
    eval "mapfile -t COMPREPLY < <(compgen -P '$joined_option' $offer -- \"\$current\")"
  else
    compopt +o default +o bashdefault
    mapfile -t COMPREPLY < <(compgen -W "-h ${switches[*]} ${valued[*]}" -- "${current//_/-}")
  fi
}

complete -o bashdefault -o default -F _train train
