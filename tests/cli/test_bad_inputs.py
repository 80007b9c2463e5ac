"""One table of bad inputs: each is one sentence, exit code 2, and nothing is left behind."""

import gzip
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from safetensors.torch import save_file

from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.prefix_tuning.files import SavedPrefixes
from kinfolk.workflows.prefix_tuning.prefixes import learn_prefixes
from kinfolk.workflows.vectors.transforms import TransformSpec, VectorTransforms
from support.bad_json import edited, json_mistakes
from support.runs import Home, Kinfolk, one_sentence

# The words of a command, with {names} of folders; then what its sentence must say. A word such as
# @gpt2/config.json:n_embd=-1 is a copy of that model folder with one field of JSON changed.
MISTAKES = [
    # Text.
    ("tokenizer train {tmp}/none -o {new}", "{tmp}/none does not exist"),
    ("tokenizer train {bad}/empty.txt -o {new}", "{bad}/empty.txt is empty"),
    ("tokenizer train {bad}/latin.txt -o {new}", "{bad}/latin.txt is not UTF-8 at byte 13"),
    ("tokenizer train {bad}/blank.txt -o {new}", "{bad}/blank.txt is empty"),
    ("tokenizer train {bad}/nul.txt -o {new}", "{bad}/nul.txt holds a NUL byte on line 2"),
    (
        "tokenizer train {bad}/program -o {new}",
        "{bad}/program is not UTF-8 at byte 8 (line 1): it is a binary file; give a file of text",
    ),
    (
        "tokenizer train {bad}/wide.txt -o {new}",
        "{bad}/wide.txt is not UTF-8 at byte 0 (line 1): convert it first, with iconv -f utf-16",
    ),
    ("tokenizer train {bad}/cut.txt.gz -o {new}", "{bad}/cut.txt.gz is corrupt or truncated"),
    ("tokenizer train {bad}/cut.txt.xz -o {new}", "{bad}/cut.txt.xz is corrupt or truncated"),
    ("tokenizer train {bad}/cut.txt.zst -o {new}", "{bad}/cut.txt.zst is corrupt or truncated"),
    ("tokenizer train {bad}/*.none -o {new}", "{bad}/*.none matches no file"),
    ("tokenizer train {bad}/rows.jsonl -o {new}", "line 2 of {bad}/rows.jsonl is not JSON"),
    (
        "tokenizer train {bad}/one.jsonl --field body -o {new}",
        "line 1 of {bad}/one.jsonl has no 'body': choose one of id, text",
    ),
    (
        "tokenizer train {bad}/one.jsonl --field id -o {new}",
        "'id' in line 1 of {bad}/one.jsonl is a number, not text",
    ),
    (
        "tokenizer train {bad}/half.jsonl -o {new}",
        "line 1 of {bad}/half.jsonl contains a lone",
    ),
    ("tokenizer train {bad}/table.tsv -o {new}", "{bad}/table.tsv has 2 columns (id, text)"),
    (
        "tokenizer train {bad}/table.tsv --column body -o {new}",
        "first row of {bad}/table.tsv has no 'body': choose one of id, text",
    ),
    (
        "tokenizer train {bad}/table.tsv --column text -o {new}",
        "line 3 of {bad}/table.tsv has no column 2, it is too short",
    ),
    ("tokenizer train {bad}/open.csv --column 1 -o {new}", "line 2 of {bad}/open.csv is not CSV"),
    ("tokenizer train {text} --column 1 -o {new}", "--column 1: only .tsv, .csv"),
    ("tokenizer train {text} --vocab 100000 -o {new}", "the text yields only"),
    ("tokenizer train {text} --vocab 10 -o {new}", "vocab_size 10 is too small"),
    ("tokenizer train {text} --kind bep -o {new}", "unknown tokenizer kind 'bep'"),
    ("tokenizer train {text} -o {tok}", "{tok} already exists"),
    ("tokenizer train {text} -o {text}", "{text} already exists"),
    ("tokenizer train {corpus} -o {new}", "{corpus} holds no text"),
    ("prepare {tmp}/none --tokenizer {tok} -o {new}", "{tmp}/none does not exist"),
    ("prepare {bad}/empty.txt --tokenizer {tok} -o {new}", "{bad}/empty.txt is empty"),
    ("prepare {bad}/latin.txt --tokenizer {tok} -o {new}", "not UTF-8 at byte 13"),
    ("prepare {bad}/nul.txt --tokenizer {tok} -o {new}", "holds a NUL byte on line 2"),
    ("prepare {bad}/cut.txt.gz --tokenizer {tok} -o {new}", "is corrupt or truncated"),
    ("prepare {bad}/rows.jsonl --tokenizer {tok} -o {new}", "line 2 of {bad}/rows.jsonl is not JS"),
    ("prepare {bad}/*.none --tokenizer {tok} -o {new}", "{bad}/*.none matches no file"),
    ("prepare {text} --tokenizer {tmp}/none -o {new}", "holds no tokenizer.json"),
    ("prepare {text} --tokenizer {tmp} -o {new}", "{tmp} holds no tokenizer.json"),
    ("prepare {text} --tokenizer {tok} -o {corpus}", "already a corpus"),
    ("prepare {text} --tokenizer {tok} -o {text}", "already exists"),
    ("prepare {text} --tokenizer {tok} -o .", ". is not the name of a new folder"),
    ("prepare {text} --tokenizer {tok} -o {new} --holdout 2", "holdout 2: it must be a fraction"),
    ("prepare {text} --tokenizer {tok} -o {new} --workers 0", "workers 0: it must be at least 1"),
    ("prepare {text} --tokenizer {tok} -o {new} --per page", "--document must be block or file"),
    # Plans.
    (
        "plan gtp2/base --tokens 1e9",
        "gtp2/base is no family: kinfolk plan takes FAMILY/SIZE; did you mean gpt2",
    ),
    ("plan runs/gpt2 --tokens 1e9", "runs/gpt2 is no family: kinfolk plan takes FAMILY/SIZE"),
    ("plan gpt2/huge --tokens 1e9", "gpt2 has no size 'huge'"),
    ("plan gpt2/nano --tokens 1e9 --gpu a100", "unknown --gpu 'a100': did you mean a100-80 or a10"),
    ("plan gpt2/nano --tokens 1e9 --gpu h300", "unknown --gpu 'h300': did you mean h"),
    ("plan gpt2/nano --tokens 0", "--tokens must be from 1 to 1e+18 (got 0)"),
    ("plan gpt2/nano --tokens 1e30", "--tokens must be from 1 to 1e+18 (got 1e+30)"),
    ("plan gpt2/nano --tokens nan", "--tokens must be from 1 to 1e+18 (got nan)"),
    ("plan gpt2/nano --tokens many", "--tokens 'many' is not a number: write 3e9 or 3B"),
    ("plan gpt2/nano --tokens 1e9 --corpus-tokens 0", "--corpus-tokens must be from 1 to 1e+18"),
    ("plan gpt2/nano --tokens 1e9 --devices 0", "--devices must be from 1 to 1,048,576 (got 0)"),
    ("plan gpt2/nano --tokens 1e9 --tensor 0", "--tensor must be from 1 to 1,048,576 (got 0)"),
    (
        "plan gpt2/nano --tokens 1e9 --devices 4 --tensor 4",
        "--tensor 4 does not divide the 2 attention heads of gpt2: choose a divisor",
    ),
    (
        "plan gpt2/nano --tokens 1e9 --devices 4 --pipeline 4",
        "--pipeline 4 is more than the 2 layers of gpt2: choose at most one stage",
    ),
    (
        "plan gpt2/nano --tokens 1e9 --devices 2 --tensor 2 --pipeline 2",
        "--tensor 2 and --pipeline 2 need 4 devices, and there are 2: raise --devices",
    ),
    (
        "plan gpt2/nano --tokens 1e9 --devices 3 --tensor 2",
        "--devices 3 is no multiple of --tensor 2 times --pipeline 1",
    ),
    (
        "plan gpt2/nano --tokens 1e9 --devices 5",
        "--batch 32 cannot be shared equally by 5 replicas of the model: use a multiple of 5",
    ),
    (
        "plan gpt2/nano --tokens 1e9 --grad-accum 5",
        "--grad-accum 5 does not divide the 32 rows of a replica",
    ),
    ("plan gpt2/nano --tokens 1e9 --mfu 1.5", "--mfu must be a share of the peak"),
    ("plan gpt2/nano --tokens 1e9 --memory 0", "--memory must be more than 0 GB (got 0)"),
    ("plan gpt2/nano --tokens 1e9 --precision int8", "--precision must be one of auto, bfloat16"),
    ("plan gpt2/nano --tokens 1e9 --parallel dp", "--parallel must be one of ddp, fsdp"),
    ("plan gpt2/nano --tokens 1e9 --optimizer sgd", "--optimizer must be one of adamw, adafactor"),
    ("plan gpt2/nano --tokens 1e9 --length 4", "--length must be at least 8 (got 4)"),
    ("plan gpt2/nano --tokens 1e9 --vocab-size 8", "--vocab-size must be at least 108 (got 8)"),
    ("plan gpt2/nano --tokens 1e9 --price-per-hour -1", "--price-per-hour must be at least 0"),
    ("plan gpt2/nano --tokens 1e9 --objective mlm", "has no objective 'mlm' (supported: clm"),
    ("plan ngram/tiny --tokens 1e9", "ngram is counted, without gradients"),
    ("plan bilstm/tiny --tokens 1e9", "bilstm is a baseline without a pretraining objective"),
    (
        "plan gpt2/nano --tokens 1e9 --gpu v100-32 --precision bfloat16",
        "NVIDIA V100 32GB (SXM2) has no matrix units for bfloat16",
    ),
    (
        "plan gpt2/nano --tokens 1e9 --devices 2 --tensor 2 --check",
        "--check runs on one device: leave out --tensor and --pipeline",
    ),
    # Inspections.
    (
        "inspect words gtp2 -o {new}.html",
        "gtp2 is neither a folder nor a family: did you mean gpt2",
    ),
    ("inspect words gpt2/tyni -o {new}.html", "gpt2 has no size 'tyni': did you mean tiny"),
    ("inspect words {tmp} -o {new}.html", "{tmp} is neither a run (no recipe.json)"),
    ("inspect words  -o {new}.html", "the name of a model is empty: give FAMILY[/SIZE]"),
    (
        "inspect words gpt2 -o {text}",
        "{text} already exists: choose another -o, or replace it with",
    ),
    ("inspect words {gpt2} -o {gpt2}/recipe.json --force", "is an input: choose another -o"),
    (
        "inspect words bilstm -o {new}.html",
        "bilstm has no pretraining objective to show: inspect a",
    ),
    ("inspect words cove -o {new}.html", "the text has 1 token, and a pair has two sides"),
    ("inspect words gpt2 --tokenizer {tmp}/none -o {new}.html", "holds no tokenizer.json"),
    ("inspect words gpt2 --seed -1 -o {new}.html", "--seed"),
    ("inspect words gpt2 -o {new}.txt", "the page is HTML: choose a name that ends in .html"),
    # Runs.
    (
        "pretrain gtp2 --corpus {corpus} -o {new}",
        "gtp2 is neither a folder nor a family: did you mean gpt2",
    ),
    ("pretrain gpt2/tyni --corpus {corpus} -o {new}", "gpt2 has no size 'tyni': did you mean tiny"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.stpes=5", "did you mean steps?"),
    ("pretrain gpt2 --corpus {corpus} -o {new} trian.steps=5", "did you mean train?"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.steps=five", "a whole number"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.lr=high", "train.lr=high: it must be a"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.compile=maybe", "auto, yes, layers or no"),
    ("pretrain gpt2 --corpus {corpus} -o {new} fast", "'fast' is not a setting"),
    (
        "pretrain gpt2 --corpus {corpus} -o {new} --objective mlm",
        "has no objective 'mlm' (supported: clm",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 9999",
        "fewer than one sequence of 9999",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 0",
        "--length must be at least 8 (got 0)",
    ),
    ("pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --steps 0", "at least 1"),
    ("pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 model.num_heads=3", "not divide"),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --device gpu",
        "unknown device 'gpu'",
    ),
    ("pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --device meta", "'meta'"),
    (
        "pretrain ngram model.order=0 --corpus {corpus} -o {new}",
        "model.order=0: it must be at least 1",
    ),
    (
        "pretrain ngram model.order=7 --corpus {corpus} -o {new}",
        "model.order=7: it must be from 1 to 6",
    ),
    ("pretrain ngram/7 --corpus {corpus} -o {new}", "ngram has no size '7'"),
    ("pretrain ngram/0 --corpus {corpus} -o {new}", "ngram has no size '0'"),
    (
        "pretrain ngram model.prune=1 --corpus {corpus} -o {new}",
        "model.prune=1 must start with 0: single tokens are never pruned",
    ),
    (
        "pretrain ngram model.prune=0,2,1 --corpus {corpus} -o {new}",
        "model.prune=0,2,1 must not decrease",
    ),
    (
        "pretrain ngram/2 model.prune=0,0,1 --corpus {corpus} -o {new}",
        "model.prune=0,0,1 has 3 thresholds for 2 orders",
    ),
    (
        "pretrain ngram --corpus {corpus} -o {new} --lr 1e-3",
        "train.lr=0.001 does not apply to ngram, which counts one order a step",
    ),
    (
        "pretrain ngram --corpus {corpus} -o {new} --steps 9",
        "train.steps=9 does not apply to ngram",
    ),
    ("pretrain ngram --corpus {corpus} -o {new} --objective mlm", "ngram has no objective 'mlm'"),
    ("evaluate {bad}/none.arpa --text {text}", "it is not an ARPA file"),
    ("evaluate {bad}/cut.arpa --text {text}", "ends after 1 of 4"),
    ("evaluate {bad}/word.arpa --text {text}", "line 4: 'much' is not a number"),
    ("evaluate {bad}/last.arpa --text {text}", "is expected, not 'the end of the file'"),
    ("import {bad}/last.arpa -o {new}", "is expected, not 'the end of the file'"),
    ("export {gpt2} -o {tmp}/x.arpa", "is an ARPA file, which has n-gram models only"),
    ("pretrain gpt2/nano --corpus {tmp} -o {new}", "{tmp} is not a corpus"),
    ("pretrain gpt2/nano --corpus {text} -o {new}", "{text} is not a corpus"),
    ("pretrain gpt2/nano --corpus {corpus} -o {home}", "{home} already exists"),
    ("pretrain gpt2/nano --corpus {corpus}", "missing -o RUN"),
    ("pretrain gpt2/nano -o {new}", "missing --corpus DIR"),
    ("pretrain --corpus {corpus} -o {new}", "missing MODEL"),
    ("pretrain gpt2 --corpus {corpus} -o {new} --learning-rate 1", "did you mean --lr?"),
    ("pretrain gpt2 --corpus {corpus} -o {new} --num-train-epochs 1", "did you mean --steps?"),
    ("pretrain gpt2 --corpus {corpus} -o {new} --lr 0", "--lr=0: it must be above 0"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.learning_rate=1", "did you mean lr?"),
    ("pretrain --recipe {tmp}/none.json -o {new}", "no such file: {tmp}/none.json"),
    ("pretrain --recipe {gpt2}/recipe.json -o {new} gpt2", "'gpt2' is not a setting"),
    ("pretrain --recipe {gpt2}/recipe.json -o {new} --length 9", "--recipe excludes"),
    ("finetune --resume {gpt2}", "kinfolk pretrain --resume"),
    (
        "pretrain --resume {gpt2}",
        "is complete (12 steps): start a new run with more --steps to train longer, or one",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o /proc/new",
        "/proc/new: the folder /proc cannot be written: choose another -o",
    ),
    ("pretrain --resume {tmp}", "{tmp} is not a run"),
    ("pretrain --resume {tmp}/none", "{tmp}/none is not a run"),
    ("pretrain --resume {text}", "{text}"),
    (
        "pretrain --resume {gpt2} --steps 50",
        "cannot be combined with other options: change settings in {gpt2}/recipe.json",
    ),
    ("pretrain --resume {gpt2} gpt2", "cannot be combined with other options"),
    ("pretrain --resume {gpt2} --seed 0", "cannot be combined with other options"),
    # ELMo.
    ("evaluate {bad}/release --text {text}", "elmo_options.json has no weights beside it"),
    ("evaluate {bad}/weights --text {text}", "elmo_weights.hdf5 has no options.json beside it"),
    (
        "pretrain elmo/nano --corpus {corpus} -o {new} model.hidden_size=65",
        "model.hidden_size=65 must be even",
    ),
    (
        "pretrain elmo/nano --corpus {corpus} -o {new} model.cutoffs=10 model.num_samples=10",
        "use an adaptive or a sampled softmax, not both",
    ),
    # Word vectors.
    ("pretrain gpt2 --corpus {corpus} -o {new} --vectors {tmp}/none", "{tmp}/none: no such file"),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --vectors {bad}/vectors.txt",
        "has vectors of 3 numbers, but the token embeddings of gpt2/nano have 64: set "
        "model.hidden_size=3",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --vectors {bad}/far.txt",
        "{bad}/far.txt has vectors of none of the",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --vectors {bad}/ragged.txt",
        "line 2 of {bad}/ragged.txt has 63 numbers after its word, but lines before it have 64",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --vectors {bad}/blank.txt",
        "line 1 of {bad}/blank.txt has 0 numbers after its word",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --vectors {bad}/cut.vec.gz",
        "{bad}/cut.vec.gz is corrupt or truncated",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --vectors {text}",
        "line 1 of {text} has a value that is not a finite number",
    ),
    (
        "pretrain {gpt2} --corpus {corpus} -o {new} --vectors {bad}/vectors.txt",
        "whose token embeddings are trained: remove it",
    ),
    (
        "pretrain cove/nano --pairs {bad}/pairs.tsv --vectors {bad}/vectors.txt -o {new} "
        "--length 32",
        "has vectors of 3 numbers, but the token embeddings of cove/nano have 32: set "
        "model.embedding_size=3",
    ),
    (
        "pretrain cove/nano --pairs {bad}/pairs.tsv -o {new} --length 32 model.hidden_size=33",
        "model.hidden_size=33 must be even",
    ),
    ("pretrain cove/nano --corpus {corpus} -o {new} --length 32", "a pair has two sides"),
    ("import {gpt2} --vectors {bad}/vectors.txt --tokenizer {tok} -o {new}", "remove it"),
    # Scores.
    ("evaluate {gpt2}", "give either --corpus or --text"),
    ("evaluate {gpt2} --corpus {corpus} --text {text}", "give either --corpus or --text"),
    ("evaluate {gpt2} --text {tmp}/none", "no such file: {tmp}/none"),
    ("evaluate {gpt2} --text {corpus}", "{corpus} holds no text"),
    ("evaluate {gpt2} --text {bad}/empty.txt", "{bad}/empty.txt is empty"),
    ("evaluate {gpt2} --text {bad}/deep.jsonl", "line 1 of {bad}/deep.jsonl is not valid JSON"),
    ("evaluate {gpt2} --text {bad}/latin.txt", "not UTF-8 at byte 13"),
    ("evaluate {gpt2} --corpus {tmp}", "{tmp} is not a corpus"),
    ("evaluate {gpt2} --corpus {other}/corpus", "was tokenized with another tokenizer"),
    ("evaluate {gpt2} --text {text} --length 33", "more than the model's context of 32"),
    ("evaluate {bert} --text {text} --length 1", "length 1 is too short"),
    ("evaluate {t5} --text {text} --length -1", "length -1 is too short"),
    (
        "evaluate {gpt2} --text {text} --max-tokens 5",
        "max_tokens=5 applies to encoders, which take a forward pass for each token",
    ),
    ("evaluate {bert} --text {text} --max-tokens 0", "--max-tokens"),
    ("evaluate {gpt2} --text {text} --device gpu", "unknown device 'gpu'"),
    ("evaluate {tmp} --text {text}", "{tmp} is neither a run"),
    ("evaluate {tmp}/none --text {text}", "no such folder: {tmp}/none"),
    (
        "generate gpt2/nano The",
        "gpt2/nano has no weights: train it with kinfolk pretrain gpt2/nano",
    ),
    ("evaluate {classifier} --test /dev/null", "/dev/null is a pipe or a device: save its content"),
    ("translate {t5} /dev/null", "/dev/null is a pipe or a device: save its content in a file"),
    # Writing.
    ("generate {tmp}/none The", "no such folder: {tmp}/none"),
    (
        "generate {bert} The",
        "bert models do not support generate (families that do: ",
    ),
    ("generate {gpt2} The --top-p 0", "--top-p=0: it must be above 0 and at most 1"),
    ("generate {gpt2} The --top-k 0", "--top-k=0: it must be at least 1"),
    ("generate {gpt2} The --temperature -1", "--temperature=-1: it must be at least 0"),
    ("generate {gpt2} The --max-tokens -5", "--max-new-tokens=-5: it must be at least 1"),
    ("generate {gpt2} The --num 0", "--num-samples=0: it must be at least 1"),
    ("generate {gpt2} The --seed -1", "--seed=-1: it must be"),
    ("generate {gpt2} The --device gpu", "unknown device 'gpu'"),
    ("generate {gpt2} " + "The" * 99, "a context of 32 has room for 31: shorten it"),
    ("fill {bert} word", r"the text contains no \[MASK\]: put it where"),
    ("fill {t5} word", "the text contains no"),
    ("fill {gpt2} [MASK]", "gpt2 models do not support fill (families that do: "),
    ("fill {bert} [MASK] --top 0", "candidates=0: it must be at least 1"),
    # Vectors of texts.
    ("embed {tmp}/none {text} -o {tmp}/v.npz", "no such folder: {tmp}/none"),
    ("embed {bert} {tmp}/none -o {tmp}/v.npz", "{tmp}/none does not exist"),
    ("embed {bert} {bad}/empty.txt -o {tmp}/v.npz", "{bad}/empty.txt is empty"),
    ("embed {bert} {bad}/blank.txt -o {tmp}/v.npz", "{bad}/blank.txt is empty"),
    ("embed {bert} {bad}/latin.txt -o {tmp}/v.npz", "not UTF-8 at byte 13"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.txt", "must end in .npz or .parquet"),
    ("embed {bert} {bad}/few.txt -o {bad}/old.npz", "{bad}/old.npz already exists"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --pooling median", "unknown --pooling 'median'"),
    ("embed {gpt2} {bad}/few.txt -o {tmp}/v.npz --pooling cls", "gpt2 reads no [CLS] token"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --layers 9", "the network has layers 0 to 2"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --layers top", "--layers top must be last, all"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --length 9999", "--length 9999 exceeds"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --whiten", "3 texts, 64 dimensions"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --flow", "--flow needs more texts than"),
    (
        "embed {bert} {bad}/few.txt -o {tmp}/v.npz --remove-components 64",
        "--remove-components 64 must be from 1 to 63",
    ),
    (
        "embed {bert} {bad}/few.txt -o {tmp}/v.npz --remove-components 5",
        "--remove-components 5 needs at least 6 texts (got 3)",
    ),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --fit {text}", "--fit and --save-transform need"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --transform {tmp}", "is no saved transform"),
    (
        "embed {bert} {bad}/few.txt -o {tmp}/v.npz --transform {bad}/transform",
        "fitted on vectors of 3 numbers, and these have 64",
    ),
    (
        "embed {bert} {bad}/few.txt -o {tmp}/v.npz --transform {bad}/transform --whiten",
        "--transform applies saved transforms: remove",
    ),
    (
        "embed {bert} {bad}/few.txt -o {tmp}/v.npz --strict --length 8",
        "text 3 is longer than 8 tokens",
    ),
    (
        "embed {bert} {bad}/few.txt -o {tmp}/v.npz --standardize --save-transform {bad}",
        "{bad} already exists: choose another folder with --save-transform",
    ),
    ("isotropy {bert} --text {bad}/empty.txt", "{bad}/empty.txt is empty"),
    ("isotropy {bert} --text {tmp}/none", "{tmp}/none does not exist"),
    ("isotropy {bert} --text {bad}/few.txt --sts {tmp}/none", "no such file: {tmp}/none"),
    ("isotropy {bert} --text {bad}/few.txt --columns a,b", "--columns are those of the pairs"),
    ("isotropy {bert} --text {bad}/few.txt -o {text}", "{text} already exists"),
    (
        "isotropy {bert} --text {bad}/few.txt --remove-components 64",
        "--remove-components 64 must be below 64",
    ),
    ("probe {bert} --train {tmp}/none --dev {labels}", "no such file: {tmp}/none"),
    ("probe {bert} --train {labels} --dev {bad}/empty.txt", "{bad}/empty.txt"),
    ("probe {bert} --train {labels} --dev {labels} -o {text}", "{text} already exists"),
    ("probe {bert} --train {labels} --dev {labels} --seeds 0", "--seeds must be at least 1"),
    ("probe {bert} --train {labels} --dev {labels} --task spans", "is neither CoNLL-U nor JSON"),
    (
        "probe {bert} --train {labels} --dev {labels} --task choose",
        "--task choose has no probes: choose classification, regression, tagging or spans",
    ),
    (
        "isotropy {bert} --text {bad}/few.txt --sts {bad}/words.tsv --columns a,b,score",
        "the score in row 3 of {bad}/words.tsv is 'much', not a number: fix or remove the row",
    ),
    (
        "isotropy {bert} --text {bad}/few.txt --sts {bad}/pairs.tsv",
        "name two texts and a score, such as --columns sentence1,sentence2,score",
    ),
    (
        "isotropy {bert} --text {bad}/few.txt --sts {bad}/words.tsv --columns b,score",
        "--columns b,score are no pairs with scores: name two texts and a score",
    ),
    # Knowledge neurons.
    ("neurons {bert}", "there is no fact: give"),
    ("neurons {bert} [MASK]", "the answer is missing: add --answer TEXT"),
    ("neurons {bert} [MASK] --answer a --facts {labels}", "remove PROMPT, --prompt and --answer"),
    ("neurons {bert} the --answer a", "the prompt 'the' has no [MASK]: it must occur exactly"),
    ("neurons {bert} [MASK],[MASK] --answer a", "'[MASK],[MASK]' has [MASK] in 2 places"),
    ("neurons {bert} [MASK] --answer xylophone", "tokens, and '[MASK]' has [MASK] 1 times: write"),
    ("neurons {gpt2} [MASK] --answer a --facts {tmp}/none", "remove PROMPT, --prompt and --answer"),
    ("neurons {gpt2} --facts {tmp}/none", "no such file: {tmp}/none"),
    ("neurons {gpt2} --facts {bad}/empty.txt", "{bad}/empty.txt has no facts: each needs"),
    ("neurons {gpt2} --facts {bad}/words.tsv", "has the columns a, b, score: it needs prompt"),
    ("neurons {gpt2} --facts {bad}/rows.jsonl", "line 2 of {bad}/rows.jsonl is not JS"),
    ("neurons {bert} --facts {bad}/long-fact.jsonl", "tokens, and the model's context is 32: shor"),
    ("neurons {gpt2} --facts {bad}/long-fact.jsonl", "tokens, and the model's context is 32: shor"),
    ("neurons {t5} [MASK] --answer a --others {bad}/empty.txt", "{bad}/empty.txt has no facts"),
    ("neurons {bad}/whole.arpa [MASK] --answer a", "ngram models have no feed-forward layers"),
    ("neurons {tuned} [MASK] --answer a", "the model was fine-tuned: its task head predicts"),
    ("neurons {bert} [MASK] --answer a --threshold 2", "threshold 2: it must be above 0"),
    ("neurons {bert} [MASK] --answer a --share 0", "share 0: it must be above 0"),
    ("neurons {bert} [MASK] --answer a --draws 1", "draws 1: it must be at least 2"),
    ("neurons {bert} [MASK] --answer a -o {text}", "{text} already exists"),
    # Folders.
    ("export {gpt2} -o {home}", "{home} already exists"),
    ("export {gpt2} -o .", ". is not the name of a new folder: choose another -o"),
    ("export {gpt2} -o ", ". is not the name of a new folder: choose another -o"),
    ("export {tmp}/none -o {new}", "no such folder: {tmp}/none"),
    ("export {tmp} -o {new}", "{tmp} is neither a run"),
    ("import {tmp} -o {new}", "{tmp} is neither a run"),
    ("import {bad}/foreign -o {new}", "model_type='mamba' is not supported"),
    ("quickstart -o {home}", "{home} already exists"),
    *json_mistakes(),
    # Numbers, and settings that build no network.
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --batch 2147483648",
        "--batch=2147483648: it must be from 1 to 16777216",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --batch 16777216 model.hidden_size=4096",
        "a step of 16,777,216 rows",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --workers 100000000000000000000",
        "--workers=100000000000000000000: it must be from 0 to 256",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --steps 100000000000000000000",
        "--steps=100000000000000000000: it must be from 1 to",
    ),
    (
        "pretrain bert/nano --corpus {corpus} -o {new} --length 32 model.init_std=-1",
        "model.init_std=-1: it must be at least 0",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 model.vocab_size=7",
        "model.vocab_size=7",
    ),
    (
        "pretrain electra/nano --corpus {corpus} -o {new} --length 32 model.generator_size=nan",
        "model.generator_size=nan: it must be a number",
    ),
    (
        "pretrain electra/nano --corpus {corpus} -o {new} --length 32 model.generator_size=1e-9",
        "model.generator_size=1e-09 gives a generator",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 model.hidden_size=63",
        "model.num_heads=2 does not divide model.hidden_size=63",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 objective.max_length=0",
        "objective.max_length=0: it must be at least 1",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 model.num_layers=1e9",
        "it must be a whole number",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 model.activation=swosh",
        "activation 'swosh' is not supported (supported: relu, gelu",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 model.dropout=1",
        "model.dropout=1: it must be from 0 to less than 1",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 train=5",
        "train is a group of fields",
    ),
    (
        "pretrain t5/nano --corpus {corpus} -o {new} --length 32 objective.mask_rate=1",
        "objective.mask_rate=1: it must be above 0 and less than 1",
    ),
    ("pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --lr nan", "it must be a number"),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --seed 9223372036854775808",
        "--seed=9223372036854775808: it must be from 0 to",
    ),
    ("pretrain gpt2/nano --corpus {corpus} -o {new} --length 100000000000", "--length"),
    ("generate {gpt2} The --num 100000", "--num-samples=100000: it must be from 1 to 16384"),
    (
        "generate {gpt2} The --max-new-tokens 2147483648",
        "--max-new-tokens=2147483648: it must be from 1 to",
    ),
    ("generate {gpt2} The --temperature inf", "--temperature=inf: it must be a number"),
    ("generate {gpt2} The --num-beams 100000000000000000000", "it must be from 1 to 4096"),
    ("generate {gpt2} The --seed x", "--seed=x: it must be a whole number"),
    ("generate {gpt2} --prompts {bad}/rows.jsonl --batch 100000000000000000000", "--batch"),
    ("generate {gpt2} -Hello", "put -- before a text that begins with -"),
    (
        "generate {gpt2} --hello",
        "unknown option --hello: did you mean --help? (put -- before a text that begins with -)",
    ),
    ("fill {bert} -[MASK]", "put -- before a text that begins with -"),
    ("fill {bert} [MASK] --candidates 100000000000000000000", "--candidates"),
    ("fill {classifier} [MASK]", "the model was fine-tuned: its task head predicts labels, so it"),
    (
        "evaluate {classifier} --text {text}",
        "the model was fine-tuned: it has a task head and predicts no tokens any more",
    ),
    (
        "generate {tuned} The",
        "the model was fine-tuned: its task head predicts labels, so it cannot generate",
    ),
    ("finetune {bert} --train {labels} -o {new} --seeds 2147483648", "--seeds"),
    ("finetune {bert} --train {labels} -o {new} --seeds 0", "--seeds"),
    (
        "finetune {bert} --train {labels} -o {new} --epochs 1e308",
        "--epochs=1e308: it must be above 0 and at most",
    ),
    ("finetune {bert} --train {labels} -o {new} --batch 0", "--batch=0: it must be at least 1"),
    ("finetune {bert} --train {labels} -o {new} --length 100000000000", "--length"),
    ("finetune brt --train {labels} -o {new}", "did you mean bert"),
    # Stages.
    (
        "finetune {gpt2} --train {labels} -o {new} --stages target,tsak",
        "unknown stage 'tsak': did you mean task",
    ),
    (
        "finetune {gpt2} --train {labels} -o {new} --stages task,target",
        "--stages task,target: their order is general, target, task",
    ),
    (
        "finetune {gpt2} --train {labels} -o {new} --stages target",
        "--stages target does not end with the task",
    ),
    (
        "finetune {gpt2} --train {labels} -o {new} --stages general,task",
        "the stage general and its --corpus DIR belong together",
    ),
    (
        "finetune {gpt2} --train {labels} -o {new} --stages target,task --corpus {corpus}",
        "the stage general and its --corpus DIR belong together",
    ),
    ("finetune {gpt2} --train {labels} -o {new} --corpus {corpus}", "add --stages"),
    (
        "finetune {gpt2} --train {labels} -o {new} --stages task --unlabelled {text}",
        "--unlabelled text is read by the stage target",
    ),
    (
        "finetune ulmfit/nano --train {labels} -o {new} --stages target,task",
        "ulmfit/nano has new weights, and the stage target continues pretrained ones",
    ),
    (
        "finetune {gpt2} --train {labels} -o {new} --stages target,task --seeds 2",
        "--stages cannot be combined with --seeds",
    ),
    (
        "finetune {gpt2} --train {labels} -o {new} --stages target,task target.train.stpes=2",
        "did you mean steps?",
    ),
    (
        "finetune cvt/nano --train {labels} --unlabelled {tmp}/none -o {new}",
        "no such file: {tmp}/none",
    ),
    (
        "finetune cvt/nano --train {labels} --unlabelled {corpus} -o {new}",
        "{corpus} is a folder: give --unlabelled the text files themselves",
    ),
    (
        "pretrain cvt/nano --corpus {corpus} -o {new}",
        "cvt has no pretraining objective: train it on",
    ),
    ("prepare {text} --tokenizer {tok} -o {new} --workers 2147483648", "--workers"),
    (
        "prepare {text} --tokenizer {tok} -o {new} --holdout nan",
        "holdout nan: it must be a fraction",
    ),
    ("tokenizer train {text} --vocab-size 100000000000000000000 -o {new}", "--vocab-size"),
    ("audit {text} -o {text}", "{text} is an input: choose another -o"),
    ("audit {text} -o {text} --force", "{text} is an input: choose another -o"),
    ("audit {home} -o {text} --force", "{text} is an input: choose another -o"),
    (
        "audit {text} -o {labels}",
        "{labels} already exists: choose another -o, or replace it with --force",
    ),
    ("audit {text} -o {home}", "{home} is a folder: -o must name a file"),
    ("tokenizer compare {text} --tokenizer {tok} -o {text}", "{text} is an input"),
    ("tokenizer compare {text} --tokenizer {tok} -o {labels}", "{labels} already exists"),
    ("evaluate {tuned} --test {labels} -o {labels} --force", "{labels} is an input"),
    ("evaluate {tuned} --test {labels} -o {text}", "{text} already exists"),
    ("predict {tuned} {labels} -o {labels} --force", "{labels} is an input"),
    ("predict {tuned} {labels} -o {text}", "{text} already exists"),
    ("predict {tuned} {bad}/deep.jsonl", "line 1 of {bad}/deep.jsonl cannot be parsed as JSON"),
    ("predict {tuned} {labels} --task-index 2", "task_index=2: "),
    ("predict {tuned} {labels} --task-index 0", "--task-index"),
    ("translate {t5} {text} -o {text} --force", "{text} is an input"),
    ("summarize {t5} {text} -o {labels}", "{labels} already exists"),
    # Several languages; tests/cli/test_multilingual.py has those of a trained model.
    ("translate {t5} {text} --to de", "--to de does not apply to {t5}, which was not trained with"),
    ("translate {t5} {text} --pivot en", "--pivot en does not apply to {t5}"),
    ("evaluate {t5} --pair en-de={bad}/pairs.tsv", "was not trained with --pair"),
    ("pretrain t5/nano --pair ende={bad}/pairs.tsv -o {new}", "write two languages and their file"),
    ("pretrain t5/nano --pair en-de={bad}/empty.txt -o {new}", "no text pair in {bad}/empty.txt"),
    (
        "pretrain t5/nano --pair en-de={bad}/few.txt,{bad}/pairs.tsv -o {new}",
        "{bad}/few.txt has 3 lines and {bad}/pairs.tsv has 20",
    ),
    (
        "pretrain t5/nano --pair en-de={bad}/pairs.tsv --pair de-en={bad}/pairs.tsv -o {new}",
        "the direction en-de is given twice: join the files of a pair",
    ),
    ("summarize {t5} {bad}/long.txt", "line 1: the text has"),
    ("summarize {t5} {bad}/deep.jsonl", "line 1: the text has"),
    (
        "translate {t5} {text} --source-prefix \udcff",
        "a text that is not valid Unicode (a lone surrogate): convert it to UTF-8 first",
    ),
    ("members {tmp}/[/x]", "unknown family '{tmp}/[/x]'"),
    ("audit {tmp}/[/x]", "{tmp}/[/x] matches no file"),
    ("audit {tmp}/\x1b[31mred", "x1b[31mred matches no file"),
    ("evaluate {gpt2} --length 100000000000 --text {text}", "--length"),
    # Extractive summaries.
    (
        "finetune bert/nano --task extract --train {labels} -o {new}",
        "{labels} has no column of summaries (classify column text by column label)",
    ),
    (
        "finetune bert/nano --task extract --train {bad}/films.txt -o {new}",
        "films.txt has no column of summaries",
    ),
    ("finetune bert/nano --task extract --train {bad}/empty.txt -o {new}", "empty.txt is empty"),
    (
        "finetune bert/nano --task extract --train {bad}/articles.tsv -o {new} --num-sentences 0",
        "--num-sentences must be at least 1|--num-sentences",
    ),
    (
        "finetune bert/nano --task extract --train {bad}/articles.tsv -o {new} --label-weights a",
        "--label-weights a: give a number for each label set",
    ),
    (
        "finetune bert/nano --task extract --train {bad}/articles.tsv -o {new} --label-weights "
        "search",
        "--label-weights search needs a --dictionary",
    ),
    (
        "finetune bert/nano --task extract --train {bad}/articles.tsv -o {new} --label-weights "
        "learned",
        "--label-weights learned needs a --dictionary",
    ),
    ("summarize {classifier} {text}", "models do not support summarize"),
    ("summarize {t5} {text} --num-sentences 2", "--num-sentences applies to models that choose"),
    (
        "evaluate {classifier} --test {labels} --num-sentences 2",
        "--num-sentences applies to extractive summarization, not to classify",
    ),
    # Prefixes.
    ("prefixes {gpt2} -o {new}", "pass either --train FILE with labels or --text FILE without"),
    ("prefixes {gpt2} --text {text} --train {labels} -o {new}", "pass either --train FILE with"),
    ("prefixes {gpt2} --text {text}", "missing -o RUN"),
    ("prefixes --text {text} -o {new}", "missing MODEL"),
    (
        "prefixes {bert} --train {labels} -o {new}",
        "bert models do not support prefixes (families that do: gpt, gpt2, gpt3)",
    ),
    ("prefixes {t5} --text {text} -o {new}", "t5 models do not support prefixes"),
    ("prefixes {tuned} --train {labels} -o {new}", "the model was fine-tuned: its task head"),
    ("prefixes {gpt2} --train {bad}/one.tsv -o {new}", "have the label good: classification need"),
    ("prefixes {gpt2} --train {bad}/pairs.tsv -o {new}", "was detected as write"),
    ("prefixes {gpt2} --train {bad}/empty.txt -o {new}", "{bad}/empty.txt"),
    ("prefixes {gpt2} --train {tmp}/none -o {new}", "no such file: {tmp}/none"),
    ("prefixes {gpt2} --text {bad}/empty.txt -o {new}", "{bad}/empty.txt has no text: give a fil"),
    ("prefixes {gpt2} --text {bad}/blank.txt -o {new}", "{bad}/blank.txt has no text: give a fil"),
    ("prefixes {gpt2} --text {bad}/latin.txt -o {new}", "{bad}/latin.txt is not UTF-8 at byte 13"),
    ("prefixes {gpt2} --text {text} --attributes 1 -o {new}", "attributes=1: it must be from 2"),
    ("prefixes {gpt2} --text {text} --columns 1,2 -o {new}", "dev and columns are of labelled"),
    ("prefixes {gpt2} --train {labels} --attributes 2 -o {new}", "attributes is for text without"),
    (
        "prefixes {gpt2} --train {labels} --prefix-length 0 -o {new}",
        "--prefix-length=0: it must be at least 1",
    ),
    ("prefixes {gpt2} --train {labels} --length 999 -o {new}", "reads at most 32 tokens; lower it"),
    ("prefixes {gpt2} --train {labels} train.parallel=fsdp -o {new}", "does not apply to prefixes"),
    ("prefixes --resume {gpt2}", "is a run of pretrain: use kinfolk pretrain --resume"),
    ("pretrain --resume {prefixes}", "is a run of prefixes: use kinfolk prefixes --resume"),
    ("prefixes --resume {prefixes}", "is complete (1 steps)"),
    ("verify-resume {prefixes}", "is a run of prefixes: give a run of pretraining or fine-tuning"),
    ("generate {prefixes} The", "{prefixes} holds prefixes, not a model: give the model that"),
    (
        "generate {gpt2} The --prefix-from {prefixes} --attribute happy",
        "{prefixes} has no attribute 'happy': choose one of bad, good",
    ),
    ("generate {gpt2} The --attribute good", "named by its run and its attribute: pass both"),
    ("generate {gpt2} The --prefix-from {prefixes}", "named by its run and its attribute: pass bo"),
    (
        "generate {gpt2} The --prefix-from {tmp} --attribute good",
        "{tmp} has no prefixes.safetensors: give a run of kinfolk prefixes",
    ),
    (
        "generate {gpt2} The --prefix-from {bad}/prefixes --attribute good",
        "{bad}/prefixes were learned for another model, runs/other: use that model, or learn",
    ),
    (
        "generate {corpus} The --prefix-from {prefixes} --attribute good",
        "ngram models do not support prefixes (families that do: gpt, gpt2, gpt3)",
    ),
    (
        "generate {t5} The --prefix-from {prefixes} --attribute good",
        "t5 models do not support prefixes",
    ),
    # What strangers bring.
    ("generate {gpt2} --prompts {bad}/empty.txt", "{bad}/empty.txt has no prompts: pass a file"),
    ("generate {gpt2} --prompts {bad}", "{bad} is a folder: pass a file with one JSON object"),
    (
        "import {bad}/rows.jsonl -o {new}",
        "{bad}/rows.jsonl is a file: give the folder of the model",
    ),
    ("import {bad}/pointer -o {new}", "pointer/model.safetensors is a Git LFS pointer, not the"),
    ("import {bad}/integers -o {new}", "has no floating-point tensors (its types: torch.int32)"),
    (
        "finetune {bert} --train {bad}/semicolons.csv -o {new}",
        "{bad}/semicolons.csv are separated by semicolons, and those of a .csv file by commas",
    ),
    ("finetune {bert} --train {bad}/tabs.csv -o {new}", "{bad}/tabs.csv are separated by tabs"),
    (
        "evaluate {classifier} --test {bad}/films.txt",
        "no row has a label of the model (bad, good): the labels of the rows are film (30)",
    ),
    (
        "evaluate {bert} --test {labels}",
        "score it with kinfolk evaluate and the formulation prompt",
    ),
    # Pages and folders in places where there can be none.
    ("inspect words gpt2 -o {text}/x.html", "{text} is a file, not a folder: choose another -o"),
    ("isotropy {bert} --text {bad}/few.txt -o {text}/x.html", "{text} is a file, not a folder"),
    ("lr-find gpt2/nano --corpus {corpus} -o {text}/x.html", "{text} is a file, not a folder"),
    ("audit {text} -o {labels}/x.html", "{labels} is a file, not a folder"),
    ("evaluate {tuned} --test {labels} -o {text}/x.html", "{text} is a file, not a folder"),
    ("predict {tuned} {labels} -o {text}/x.tsv", "{text} is a file, not a folder"),
    ("embed {bert} {bad}/few.txt -o {text}/v.npz", "{text} is a file, not a folder"),
    (
        "embed {bert} {bad}/few.txt -o {tmp}/v.npz --standardize --save-transform {text}/x",
        "{text} is a file, not a folder: choose another folder with --save-transform DIR",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} --length 32 -o {text}/x",
        "{text} is a file, not a folder: choose another -o",
    ),
    ("finetune {bert} --train {labels} -o {text}/x/y", "{text} is a file, not a folder"),
    ("compare gpt2 --corpus {text} --tokens 1e5 -o {text}/x", "{text} is a file, not a folder"),
    ("claims memory --corpus {text} -o {text}/x", "{text} is a file, not a folder"),
    ("claims memory --corpus {text} -o {labels}", "{labels} is a file: -o must name a folder"),
    ("audit {text} -o {tmp}/x.txt", "{tmp}/x.txt: the page is HTML: choose a name that ends in"),
    ("isotropy {bert} --text {bad}/few.txt -o {tmp}/x.pdf", "x.pdf: the page is HTML"),
    ("lr-find gpt2/nano --corpus {corpus} -o {tmp}/x", "x: the page is HTML"),
    ("probe {bert} --train {labels} --dev {labels} -o {tmp}/x.json", "x.json: the page is HTML"),
    ("evaluate {tuned} --test {labels} -o {tmp}/x.json", "x.json: the page is HTML"),
    ("tokenizer compare {text} --tokenizer {tok} -o {tmp}/x", "x: the page is HTML"),
    # The newest commands.
    ("inspect -The gpt2 -o {new}.html", "put -- before a text that begins with -"),
    ("inspect words [/red] -o {new}.html", "[/red] is neither a folder nor a family"),
    ("inspect words bert --target x -o {new}.html", "--target is what a decoder writes"),
    ("inspect words gpt2 --seed 99999999999999999999 -o {new}.html", "--seed"),
    ("embed {bert} {corpus} -o {tmp}/v.npz", "{corpus} is a folder: pass a file with one text"),
    ("embed {bert} {bad}/half.jsonl -o {tmp}/v.npz", "contains a lone surrogate"),
    ("embed {bert} {bad}/few.txt -o {tmp}/v.npz --device [/x]", "unknown device '[/x]'"),
    ("isotropy {bert} --text {corpus}", "{corpus} is a folder: pass a file with one text"),
    ("isotropy {bert} --text {bad}/few.txt --pooling [/x]", "unknown --pooling '[/x]'"),
    (
        "probe {bert} --train {labels} --dev {bad}/two.tsv --max-train 1",
        "1 training row of one class (bad): probes need two; raise --max-train",
    ),
    ("probe {bert} --train {labels} --dev {labels} --task [/x]", "--task [/x] has no probes"),
    ("compare gpt2 bert --corpus {text} --minutes 0 -o {new}", "--minutes must be greater than 0"),
    (
        "compare gpt2 bert --corpus {text} --tokens 1e30 -o {new}",
        "--tokens must be greater than 0 and at most 1e+18 (got 1e+30)",
    ),
    ("compare gpt2 bert --corpus {text} --flops inf -o {new}", "at most 1e+30 (got inf)"),
    ("compare gpt2 bert --corpus {tmp}/none --tokens 1e5 -o {new}", "{tmp}/none does not exist"),
    ("compare gpt2 --corpus {corpus} --tokens 1e5 -o {new}", "fewer than a batch of 32 rows"),
    ("compare gpt2 --corpus {text} --tokens 1e5 --device [/x] -o {new}", "unknown device '[/x]'"),
    ("compare --resume {text}", "{text} is not the folder of a comparison"),
    ("claims [/x] --corpus {text} -o {new}", "[/x]"),
    ("claims memory --corpus {text} --device tpu -o {new}", "device 'tpu'"),
    ("lr-find gpt2/nano --corpus {corpus} train.steps=5", "train.steps is set by the range test"),
    ("lr-find gpt2/nano --corpus {corpus} --steps 100000000000", "--steps"),
    ("lr-find {tuned} --corpus {corpus}", "fine-tuned"),
    ("verify-resume gtp2", "did you mean gpt2"),
    ("verify-resume {corpus}", "{corpus} is"),
    ("verify-resume gpt2/nano --steps 100000000000", "--steps"),
    ("merge {corpus} -o {new}", "{corpus} is no shard: make it with kinfolk prepare --shard i/n"),
    ("merge {tmp}/[/x] -o {new}", "{tmp}/[/x]"),
]


# Mistakes that show when the rows are read, after notes about them.
LATE_MISTAKES = [
    (
        "finetune bert/nano --task extract --train {bad}/single.tsv -o {new}",
        "every text of {bad}/single.tsv is one sentence, so that none can be chosen",
    ),
    (
        "finetune gpt2/nano --task extract --train {bad}/articles.tsv -o {new}",
        "gpt2 does not support extract tasks (supported: classify, regress,",
    ),
    (
        "finetune t5/nano --task extract --train {bad}/articles.tsv -o {new}",
        "t5 does not support extract tasks",
    ),
    (
        "finetune bert/nano --train {labels} -o {new} --num-sentences 2",
        "--num-sentences applies to extractive summarization, not to classify",
    ),
    (
        "finetune bert/nano --train {labels} -o {new} --dictionary {bad}/few.txt",
        "--dictionary does not apply to the formulation 'head' of classify tasks",
    ),
    (
        "finetune bert/nano --task extract --train {bad}/articles.tsv -o {new} --dictionary none",
        "--dictionary none: no such file",
    ),
    (
        "finetune bert/nano --task extract --train {bad}/articles.tsv -o {new} --dictionary "
        "{bad}/words.txt",
        "line 2 of {bad}/words.txt is 'dog': write a word and its translation",
    ),
    (
        "finetune bert/nano --task extract --train {bad}/articles.tsv -o {new} --label-weights 1,2",
        "--label-weights 1,2: give 1 number",
    ),
    (
        "finetune bert/nano --task extract --train {bad}/articles.tsv -o {new} --replace-words",
        "--replace-words needs a --dictionary",
    ),
]


@pytest.fixture(scope="session")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write files that nobody can learn from."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "blank.txt").write_bytes(b" \n\n \n")
    (folder / "latin.txt").write_bytes(b"first line\nca\xe9\n")
    (folder / "program").write_bytes(b"\x7fELF\0\0\0\0\xff\xfe")
    (folder / "wide.txt").write_bytes("first line\n".encode("utf-16"))
    (folder / "nul.txt").write_bytes(b"first line\na\0b\n")
    whole = b"some text\n\n" * 1000
    (folder / "cut.txt.gz").write_bytes(gzip.compress(whole)[:-6])
    (folder / "cut.txt.xz").write_bytes(lzma.compress(whole)[:-6])
    (folder / "cut.txt.zst").write_bytes(zstandard.compress(whole)[:-6])
    (folder / "one.jsonl").write_text('{"id": 1, "text": "one"}\n')
    (folder / "rows.jsonl").write_text('{"id": 1, "text": "one"}\n{"id": 2, "text"\n')
    (folder / "deep.jsonl").write_text('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    (folder / "half.jsonl").write_text('{"text": "\\ud800"}\n')
    (folder / "table.tsv").write_text("id\ttext\n1\tone\n2\n")
    (folder / "open.csv").write_text('text\n"one\ntwo\n')
    (folder / "vectors.txt").write_text("the 1 2 3\n")
    (folder / "none.arpa").write_text("a text\n")
    arpa = "\\data\\\nngram 1=4\n\\1-grams:\n-1\t<unk>\n-1\ta\n-1\t<s>\n-1\t</s>\n"
    (folder / "last.arpa").write_text(arpa)
    (folder / "whole.arpa").write_text(arpa + "\n\\end\\\n")
    (folder / "long-fact.jsonl").write_text(
        '{"prompt": "%s[MASK]", "answer": "a"}' % ("the cat " * 40)
    )
    (folder / "cut.arpa").write_text(arpa.replace("-1\ta\n", "\\2-grams:\n"))
    (folder / "word.arpa").write_text(arpa.replace("-1\t<unk>", "much\t<unk>"))
    (folder / "far.txt").write_text("q\u0301q\u0301" + " 0.5" * 64 + "\n", encoding="utf-8")
    pairs = "".join(f"the cat {i}\tdie Katze {i}\n" for i in range(20))
    (folder / "pairs.tsv").write_text(pairs)
    (folder / "words.tsv").write_text("a\tb\tscore\nx\ty\t1\nu\tv\tmuch\n")
    (folder / "cut.vec.gz").write_bytes(gzip.compress(b"the" + b" 1" * 64)[:-6])
    (folder / "ragged.txt").write_text("the" + " 1" * 64 + "\na" + " 1" * 63 + "\n")
    (folder / "long.txt").write_text("a\u0301 b " * 40_000, encoding="utf-8")
    for name, file in (("release", "elmo_options.json"), ("weights", "elmo_weights.hdf5")):
        (folder / name).mkdir()
        (folder / name / file).write_text("{}", encoding="utf-8")
    for name, separator in (("semicolons", ";"), ("tabs", "\t")):
        lines = [f"a film {i}{separator}{'good' if i % 2 else 'bad'}" for i in range(30)]
        (folder / f"{name}.csv").write_text("\n".join([f"text{separator}label", *lines]))
    (folder / "films.txt").write_text("".join(f"film {i} was dull\n" for i in range(30)))
    (folder / "single.tsv").write_text("article\tsummary\n" + "A cat sat.\tA cat.\n" * 12)
    (folder / "articles.tsv").write_text("article\tsummary\n" + "A cat. A dog.\tA dog.\n" * 12)
    (folder / "words.txt").write_text("cat chat\ndog\n")
    (folder / "one.tsv").write_text("text\tlabel\n" + "a film\tgood\n" * 20)
    (folder / "prefixes").mkdir()
    zeros = torch.zeros(2, 2, 2, 3, 5)
    SavedPrefixes(folder, ("bad", "good"), zeros, zeros.clone(), "runs/other", "0" * 64).write(
        folder / "prefixes" / "prefixes.safetensors"
    )
    for name in ("foreign", "pointer", "integers"):
        (folder / name).mkdir()
    for name in ("pointer", "integers"):
        (folder / name / "config.json").write_text('{"model_type": "bert"}')
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / "pointer" / "model.safetensors").write_text(pointer)
    integers = {"embeddings.word_embeddings.weight": torch.ones(3, 4, dtype=torch.int32)}
    save_file(integers, folder / "integers" / "model.safetensors")
    two = "text\tlabel\n" + "a good day\tgood\na bad day\tbad\n" * 2
    (folder / "two.tsv").write_text(two)
    (folder / "few.txt").write_text("a cat\na dog\n" + "the cat and dog\n")
    (folder / "old.npz").write_bytes(b"")
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    VectorTransforms.fit(TransformSpec(standardize=True), vectors, "mean", (2,)).save(
        folder / "transform"
    )
    (folder / "foreign" / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a labelled file."""
    rows = [f"a {word} thing {i}\t{word}" for i in range(8) for word in ("good", "bad")]
    file = tmp_path_factory.mktemp("labels") / "labels.tsv"
    file.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def tuned(runs: dict[str, Path], labels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fine-tune the GPT-2 for two steps."""
    out = tmp_path_factory.mktemp("tuned") / "run"
    return finetune(str(runs["gpt2"]), labels, out, steps=2, device="cpu")


@pytest.fixture(scope="session")
def classifier(runs: dict[str, Path], labels: Path, tmp_path_factory: Any) -> Path:
    """Fine-tune the BERT for a step."""
    out = tmp_path_factory.mktemp("classifier") / "run"
    return finetune(str(runs["bert"]), labels, out, steps=1, device="cpu")


@pytest.fixture(scope="session")
def prefixes(runs: dict[str, Path], labels: Path, tmp_path_factory: Any) -> Path:
    """Learn prefixes for the GPT-2 in a step."""
    out = tmp_path_factory.mktemp("prefixes") / "run"
    return learn_prefixes(runs["gpt2"], labels, out, steps=1, device="cpu")


def snapshot(*folders: Path) -> dict[Path, tuple[int, int]]:
    """Return the size and time of everything in folders, with the folders in them."""
    paths = [path for folder in folders for path in folder.rglob("*")]
    stats = {path: path.lstat() for path in paths}
    return {
        path: (0, 0) if path.is_dir() else (stat.st_size, stat.st_mtime_ns)
        for path, stat in stats.items()
    }


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_sentence(
    words: str,
    expected: str,
    kinfolk: Kinfolk,
    home: Home,
    runs: dict[str, Path],
    bad: Path,
    other: Home,
    labels: Path,
    tuned: Path,
    classifier: Path,
    prefixes: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: dict[str, Any] = {
        **runs,
        "bad": bad,
        "classifier": classifier,
        "corpus": home.corpus,
        "home": home.folder,
        "labels": labels,
        "new": tmp_path / "deep" / "new",
        "other": other.folder,
        "prefixes": prefixes,
        "text": home.text,
        "tmp": tmp_path,
        "tok": home.tokenizer,
        "tuned": tuned,
    }
    changed = tmp_path_factory.mktemp("edited")
    arguments = [
        edited(word, folders, changed) if word.startswith("@") else word.format(**folders)
        for word in words.split(" ")
    ]
    inputs = (home.folder, labels.parent, bad, other.folder, tuned, prefixes, changed)
    before = snapshot(*inputs)
    monkeypatch.chdir(tmp_path)
    said = kinfolk(*arguments)
    sentence = one_sentence(said)
    assert said.err.count("error: ") == 1 and said.err.count("\n") == 1 + ("Try: " in said.err)
    choices = [choice.replace("\\", "").format(**folders) for choice in expected.split("|")]
    assert any(choice in sentence for choice in choices), sentence
    assert list(tmp_path.iterdir()) == []
    assert snapshot(*inputs) == before


@pytest.mark.parametrize(("words", "expected"), LATE_MISTAKES, ids=[w for w, _ in LATE_MISTAKES])
def test_a_mistake_in_the_rows_is_one_sentence_after_the_notes(
    words: str, expected: str, kinfolk: Kinfolk, bad: Path, labels: Path, tmp_path: Path
) -> None:
    folders = {"bad": bad, "labels": labels, "new": tmp_path / "deep" / "new"}
    said = kinfolk(*(word.format(**folders) for word in words.split(" ")))
    assert said.code == 2 and said.err.count("error: ") == 1
    assert said.err.splitlines()[-1].startswith(f"error: {expected.format(**folders)}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_model_gets_the_name_of_its_folder_where_that_is_one(
    kinfolk: Kinfolk, bad: Path, tmp_path: Path
) -> None:
    for path, end in (
        (bad / "rows.jsonl", ""),
        (bad / "pointer" / "config.json", f", {bad}/pointer"),
    ):
        sentence = one_sentence(kinfolk("import", path, "-o", tmp_path / "new"))
        assert sentence == f"{path} is a file: give the folder of the model{end}"


def test_a_classifier_whose_class_is_unknown_is_one_sentence(
    kinfolk: Kinfolk, tuned: Path, labels: Path, tmp_path: Path
) -> None:
    folder = edited('@tuned/config.json:architectures=["x"]', {"tuned": tuned}, tmp_path)
    sentence = one_sentence(kinfolk("predict", folder, labels))
    assert "config.json: `architectures` names no class with the task head of kinfolk" in sentence
