#!/usr/bin/env bash
# Train from a run file in a SLURM job: one task per machine, one process per GPU, and further jobs
# that go on from the last checkpoint until the run has come to its end.
#
#   sbatch [sbatch options] examples/train/slurm.sh CONFIG [--dotted.key value ...]
#
# Call it from the repository. Options of sbatch win over the lines below, for example
#   sbatch --nodes=4 --time=12:00:00 --partition=gpu examples/train/slurm.sh CONFIG
#
# Two minutes before the job's time is over, or when it is preempted, SLURM sends SIGTERM to all
# processes. The ranks finish their step, save, and end; then this script puts the job back into the
# queue. A machine that fails does the same (--requeue). The run file must save checkpoints
# (training.checkpoint.training_state_checkpointing_steps) into a directory that all machines see.
#
# Environment (empty counts as unset), besides that of run.sh:
#   RUN            program of each machine     (examples/train/run.sh)
#   MASTER_PORT    where the machines meet     (one that depends on the job's number)
#
#SBATCH --job-name=fastvideo
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=fastvideo-%j.log
set -euo pipefail

SAVED_ON_SIGTERM=143 # 128 + 15, with which run.sh ends

fail() {
  printf 'slurm.sh: %s\n' "$1" >&2
  exit 2
}

[[ $# -gt 0 && "$1" != -* ]] || fail "the first argument is the run file"
[[ -n "${SLURM_JOB_ID:-}" ]] || fail "this is no SLURM job; submit it with sbatch, or use run.sh"
run="${RUN:-examples/train/run.sh}"
[[ -f "$run" ]] || fail "there is no $run in $PWD; call sbatch in the repository, or set RUN"
config="$1"
shift

hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
export MASTER_ADDR="${hosts%%$'\n'*}"
export MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}"
export NNODES="${SLURM_JOB_NUM_NODES:-1}" RUN="$run"

# What the caller gives comes last and wins. The ranks' 80 seconds for a save lie within the 120 of
# --signal; give both more time where a step or a save takes longer.
status=0
# A machine that is done first leaves the others time to write what is pending.
# shellcheck disable=SC2016 # each task expands its own SLURM_NODEID
srun --kill-on-bad-exit=0 --wait=120 bash -c 'NODE_RANK=$SLURM_NODEID exec bash "$RUN" "$@"' run "$config" \
  --training.checkpoint.resume_from_checkpoint latest \
  --training.checkpoint.sigterm_timeout_s 80 \
  "$@" || status=$?

# A job that was cancelled ends with the same status, and is not running any more.
state="$(squeue --noheader --job "$SLURM_JOB_ID" --format %T 2>/dev/null || true)"
if [[ "$status" -eq "$SAVED_ON_SIGTERM" && "$state" == RUNNING ]]; then
  printf 'slurm.sh: saved; job %s goes back into the queue\n' "$SLURM_JOB_ID"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
