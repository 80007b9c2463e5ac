#!/usr/bin/env bash
# Submit the preparation of a corpus in shards, and the job that joins them.
#
#   TEXT="text/*.jsonl.zst" TOKENIZER=tokenizer CORPUS=corpus deploy/slurm/corpus.sh 64 --dedup exact
#
# The first argument is the number of shards; the others are those of `kinfolk prepare`.

set -euo pipefail

: "${TEXT:?set TEXT to the files or folders of the text}"
: "${TOKENIZER:?set TOKENIZER to the folder of the tokenizer}"
: "${CORPUS:?set CORPUS to the corpus folder to write}"

here=$(cd "$(dirname "$0")" && pwd)
shards=${1:?give the number of shards}
shift

export TEXT TOKENIZER CORPUS
job=$(sbatch --parsable --array="1-$shards" "$here/prepare.sh" "$@")
sbatch --dependency="afterok:${job%%;*}" "$here/merge.sh"
