#!/usr/bin/env bash
# Pretrain on one or many machines, and go on after a time limit or a preemption.
#
#   MODEL=gpt2/base CORPUS=corpus RUN=runs/base sbatch --nodes 4 deploy/slurm/pretrain.sh --batch 512
#
# Corpus and run folder must be on a file system that all machines share. Arguments after the script
# are those of `kinfolk pretrain`; a run that exists is resumed, and they are ignored.
#
#SBATCH --job-name=kinfolk-pretrain
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@600

set -euo pipefail

: "${MODEL:=gpt2/base}"
: "${CORPUS:?set CORPUS to the folder of a corpus}"
: "${RUN:?set RUN to the run folder}"
: "${PROCESSES:=${SLURM_GPUS_ON_NODE:-1}}" # of each machine: one for each device
: "${PORT:=29500}"
: "${SHUTDOWN_SECONDS:=300}" # that saving a checkpoint may take before torchrun kills it
: "${PYTHON:=python3}"       # of the environment that kinfolk is installed in

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if [[ -f "$RUN/recipe.json" ]]; then
  arguments=(pretrain --resume "$RUN")
else
  arguments=(pretrain "$MODEL" --corpus "$CORPUS" -o "$RUN" "$@")
fi

# USR1: the time limit is near. TERM: the job is preempted, and SLURM puts it back into the queue
# itself, or it is cancelled. SIGTERM to the processes saves a checkpoint after the current step;
# srun would answer a SIGTERM of its own with a kill.
signal=""
# shellcheck disable=SC2329  # called by the traps
stop() {
  signal=$1
  scancel --signal=TERM "$SLURM_JOB_ID"
}
trap 'stop USR1' USR1
trap 'stop TERM' TERM

srun --kill-on-bad-exit=1 "$PYTHON" -m torch.distributed.run \
  --nnodes "${SLURM_NNODES:-1}" --nproc-per-node "$PROCESSES" \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:$PORT" \
  --shutdown-timeout "$SHUTDOWN_SECONDS" \
  -m kinfolk "${arguments[@]}" &
step=$!

# A trap ends `wait` before the step has ended.
status=0
while kill -0 "$step" 2>/dev/null; do
  status=0
  wait "$step" || status=$?
done

if [[ $signal == USR1 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"
