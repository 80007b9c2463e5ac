#!/usr/bin/env bash
# Prepare one shard of a corpus for each task of an array job; corpus.sh submits it.
#
#SBATCH --job-name=kinfolk-prepare
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --requeue

set -euo pipefail

: "${TEXT:?set TEXT to the files or folders of the text}"
: "${TOKENIZER:?set TOKENIZER to the folder of the tokenizer}"
: "${CORPUS:?set CORPUS to the corpus folder to write}"
: "${PYTHON:=python3}"

shard=$SLURM_ARRAY_TASK_ID # from 1
shards=$SLURM_ARRAY_TASK_COUNT
read -r -a files <<<"$TEXT"

# A shard that was interrupted goes on; one that is complete is left as it is.
if [[ -f "$CORPUS.shard-$shard/corpus.json" ]]; then
  echo "shard $shard of $shards is complete"
  exit 0
fi
srun "$PYTHON" -m kinfolk prepare "${files[@]}" --tokenizer "$TOKENIZER" \
  -o "$CORPUS.shard-$shard" --shard "$shard/$shards" --workers "${SLURM_CPUS_PER_TASK:-1}" "$@"
