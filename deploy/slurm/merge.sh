#!/usr/bin/env bash
# Join the shards of a corpus; corpus.sh submits it, to start after all of them are prepared.
#
#SBATCH --job-name=kinfolk-merge
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --time=4:00:00
#SBATCH --output=%x-%j.out

set -euo pipefail

: "${CORPUS:?set CORPUS to the corpus folder to write}"
: "${PYTHON:=python3}"

srun "$PYTHON" -m kinfolk merge "$CORPUS".shard-* -o "$CORPUS"
