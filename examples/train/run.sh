#!/usr/bin/env bash
# Train from a run file, with one process per GPU, and keep the output in a log file.
#
#   bash examples/train/run.sh CONFIG [--dotted.key value ...]
#
# CONFIG is relative to the directory you call from (or else to the repository). Every other
# relative path, in the run file, in overrides and in variables, is relative to the repository,
# because that is where the run takes place.
#
# Environment (empty counts as unset):
#   NUM_GPUS       processes on this machine   (all visible GPUs; without any, one on the CPU)
#   NNODES         machines                    (1)
#   NODE_RANK      this machine, from 0        (0)
#   MASTER_ADDR    where the machines meet     (127.0.0.1)
#   MASTER_PORT    the port there              (a free one; 29501 with several machines)
#   MAX_RESTARTS   starts after a rank failed  (0; needs checkpoints, resumed from latest)
#   WANDB_API_KEY  Weights & Biases key        (none, and then WANDB_MODE is offline)
#   WANDB_MODE     online, offline, disabled   (online where there is a key)
#   LOG_DIR        directory of the log file   (examples/train)
#   PYTHON         the Python to use           (that of an activated environment; else
#                                               .venv/bin/python of the repository; else
#                                               python or python3 of the PATH)
#
# The exit status is that of the training, 2 for a mistake in the call, and 130 or 143 after
# Ctrl-C or SIGTERM, which the training is given time to end well on.
set -euo pipefail

usage() {
  sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
}

fail() {
  printf 'run.sh: %s\n' "$1" >&2
  exit 2
}

find_python() {
  if [[ -n "${PYTHON:-}" ]]; then
    printf '%s' "$PYTHON"
  elif [[ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" && -x "$ROOT/.venv/bin/python" ]]; then
    printf '%s' "$ROOT/.venv/bin/python"
  else
    command -v python || command -v python3 || true
  fi
}

absolute_config() {
  if [[ -f "$1" ]]; then
    printf '%s/%s' "$(cd -- "$(dirname -- "$1")" && pwd)" "$(basename -- "$1")"
  elif [[ -f "$ROOT/$1" ]]; then
    printf '%s/%s' "$ROOT" "$1"
  else
    return 1
  fi
}

log_file() {
  local stem name
  stem="$(basename -- "${1%.*}")"
  name="$LOG_DIR/${stem}_$(date +%Y%m%d_%H%M%S)"
  [[ "${NNODES:-1}" != 1 ]] && name+="_node${NODE_RANK:-0}"
  [[ -e "$name.log" ]] && name+="_$$"
  printf '%s.log' "$name"
}

# Ctrl-C and SIGTERM go to the launcher as SIGTERM: it hands them to every rank, waits for them, and
# leaves nobody behind. SIGINT itself would not do, since background jobs of a script ignore it.
forward() {
  stopped_by="$1"
  [[ -n "$trainer" ]] && kill -TERM "$trainer" 2>/dev/null
  true
}

wait_for_trainer() {
  local status=0
  while :; do
    wait "$trainer" && status=0 || status=$?
    kill -0 "$trainer" 2>/dev/null || break # a trapped signal ends `wait` early
  done
  return "$status"
}

# The log is complete once tee has read to the end. A process that outlives the training and still
# holds its output must not hold up the caller for ever.
close_log() {
  exec 3>&-
  for _ in {1..50}; do
    kill -0 "$tee" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$tee" 2>/dev/null || true
}

case "${1:-}" in
  "" | -h | --help)
    usage
    [[ -n "${1:-}" ]] && exit 0 || exit 2
    ;;
  -*) fail "the first argument is the run file, got '$1'; 'run.sh --help' shows how to call it" ;;
esac

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)"
config="$(absolute_config "$1")" || fail "there is no run file '$1' in $PWD or in $ROOT"
shift
cd -- "$ROOT"
python="$(find_python)"
[[ -n "$python" ]] || fail "no python found; activate an environment, run 'make demo', or set PYTHON"

LOG_DIR="${LOG_DIR:-examples/train}"
mkdir -p -- "$LOG_DIR" && [[ -w "$LOG_DIR" ]] || fail "cannot write into $LOG_DIR; set LOG_DIR"
log="$(log_file "$config")"
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"

# tee sees no signal: it must outlive the trainer to write its last lines.
exec 3> >(trap '' INT TERM HUP && exec tee -- "$log")
tee=$!
printf 'run.sh: logging to %s\n' "$log" >&3

trainer="" stopped_by=0
trap 'forward 2' INT
trap 'forward 15' TERM HUP
# `fastvideo train` checks the run file, fills in what was left open above, and then becomes
#   python -m fastvideo.train.entrypoint.launch … -m fastvideo.train.entrypoint.train --config …
# which takes torchrun's options and starts the processes as torchrun does.
"$python" -m fastvideo.cli train --config "$config" "$@" >&3 2>&1 3>&- &
trainer=$!
status=0
wait_for_trainer || status=$?
close_log
if [[ "$status" -eq 2 && "$stopped_by" -eq 0 ]]; then # a mistake in the call: nothing has run
  rm -f -- "$log"
  printf 'run.sh: nothing has run, so there is no log\n' >&2
fi
[[ "$stopped_by" -eq 0 ]] || status=$((128 + stopped_by))
exit "$status"
