"""The command `prepare`: text is tokenized into a corpus."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kinfolk.cli.app import (
    COLUMN,
    DATA,
    FIELD,
    FILES,
    JSON,
    NEW_FOLDER,
    UNIT,
    command,
    flag,
    option,
)
from kinfolk.cli.options import UsageError
from kinfolk.cli.output import byte_progress, note, print_json, print_line

if TYPE_CHECKING:
    from kinfolk.data.corpus import Corpus

CLUSTER = "Ray cluster"
SAMPLED_DOCUMENTS = 20  # whose characters are counted
SAMPLED_TOKENS = 1000  # of each
MAX_TOKENS_PER_CHARACTER = 1.1


@command("kinfolk prepare notes/ --tokenizer tok --holdout 1% -o corpus", panel=DATA)
def prepare_command(
    files: list[Path] = FILES,
    tokenizer: Path = option("DIR", "Tokenizer folder, model folder or run.", default=...),
    out: Path = NEW_FOLDER,
    workers: int | None = option(
        "N", "Processes; the output is identical for any number.", max=256
    ),
    document: str = UNIT,
    field: str | None = FIELD,
    column: str | None = COLUMN,
    holdout: str = option(
        "FRACTION", "Documents held out in CORPUS/holdout: 0.005 or 0.5%.", default="0"
    ),
    word_boundaries: str | None = option(
        "spaces|jieba", "Store word boundaries for whole-word masking."
    ),
    dedup: str | None = option("exact|near", "Drop duplicates, or near-duplicates (MinHash) too."),
    decontaminate: list[Path] | None = option(
        "FILE", "Drop documents that share a 13-gram with this file."
    ),
    strict: bool = flag("--strict", "Fail if a file of a folder would be skipped."),
    shard: str | None = option("I/N", "Prepare only part I of N of the text, for kinfolk merge."),
    engine: str = option(
        "local|ray", "Prepare with processes of this machine, or on a Ray cluster.", default="local"
    ),
    address: str | None = option(
        "ADDRESS", "ray: auto or ray://HOST:PORT (default: this machine alone).", panel=CLUSTER
    ),
    num_shards: int | None = option(
        "N",
        "ray: Parts of the text (default: 4 for each CPU, of 32 MB or more).",
        min=1,
        max=100_000,
        panel=CLUSTER,
    ),
    json: bool = JSON,
) -> None:
    """Tokenize text into a corpus: memory-mapped Megatron .bin/.idx files and corpus.json.

    In tables and JSON lines a document is always a row. Held-out documents are chosen by their own
    text. CORPUS/dropped.jsonl lists every document that is left out, with the reason, and every
    file of a folder that is skipped. An interrupted run continues when the same command is
    repeated.

    With `--engine ray` parts of the text are prepared on the machines of a Ray cluster and merged
    to the same bytes. All machines need the same paths, on a shared file system.
    """
    unit = document_unit(document)
    check_engine(engine, shard=shard, others={"--address": address, "--num-shards": num_shards})
    from kinfolk.data.cluster import prepare_on_ray
    from kinfolk.data.prepare import prepare
    from kinfolk.workflows.folders import load_tokenizer

    options: dict[str, Any] = {
        "tokenizer": load_tokenizer(tokenizer),
        "out": out,
        "workers": workers,
        "document": unit,
        "field": field,
        "column": column,
        "holdout": holdout,
        "word_boundaries": word_boundaries,
        "dedup": dedup,
        "decontaminate": decontaminate or [],
        "strict": strict,
        "on_message": (lambda sentence: None) if json else note,
    }
    with byte_progress("preparing") as progress:
        if engine == "ray":
            corpus = prepare_on_ray(
                files, address=address, num_shards=num_shards, progress=progress.stage, **options
            )
        else:
            corpus = prepare(files, shard=shard, progress=progress, **options)
    if json or shard is None:
        show_corpus(corpus, out, json=json)
    else:
        print_line(f"shard {shard}: {corpus_facts(corpus)} in {out}")


def check_engine(engine: str, *, shard: str | None, others: Mapping[str, object]) -> None:
    """Refuse an unknown engine, and options of another one."""
    if engine not in ("local", "ray"):
        raise UsageError(f"--engine must be local or ray (got {engine})")
    if engine == "ray" and shard is not None:
        raise UsageError("--engine ray prepares all shards: it cannot be combined with --shard")
    given = [name for name, value in others.items() if value is not None]
    if engine == "local" and given:
        raise UsageError(f"{given[0]} applies to a Ray cluster: add --engine ray")


def corpus_facts(corpus: "Corpus") -> str:
    """Return how large a corpus is, in words."""
    return f"{corpus.documents:,} documents, {corpus.tokens:,} tokens, {corpus.bytes:,} bytes"


def show_corpus(corpus: "Corpus", out: Path, *, json: bool) -> None:
    """Print what a new corpus has, what it lacks and what is held out."""
    from kinfolk.data.corpus import Corpus
    from kinfolk.data.prepare import DROPPED_FILE

    if json:
        facts = {"documents": corpus.documents, "tokens": corpus.tokens, "bytes": corpus.bytes}
        counts = {"left_out": corpus.left_out, "skipped_files": corpus.skipped_files}
        print_json({"folder": out, **facts, **counts})
        return
    print_line(f"corpus: {corpus_facts(corpus)} in {out}")
    if (split := tokens_per_character(corpus)) > MAX_TOKENS_PER_CHARACTER:
        note(
            f"a character takes {split:.2g} tokens, so that models learn bytes in place of "
            "characters: train a tokenizer with a larger --vocab-size"
        )
    if any(corpus.left_out.values()) or corpus.skipped_files:
        print_line(f"listed in {out}/{DROPPED_FILE}: what is left out, and why")
    if (out / "holdout").is_dir():
        held = Corpus.open(out / "holdout").documents
        print_line(f"held out: {held:,} documents in {out}/holdout")


def tokens_per_character(corpus: "Corpus") -> float:
    """Return how many tokens of byte-level BPE a character of the first documents takes."""
    tokenizer = corpus.tokenizer()
    if tokenizer.kind != "bpe":
        return 0.0
    starts = [int(start) for start in corpus.starts[: SAMPLED_DOCUMENTS + 1]]
    parts = [corpus.ids(a, min(a + SAMPLED_TOKENS, b)) for a, b in pairwise(starts)]
    characters = sum(len(tokenizer.decode(part)) for part in parts)
    return sum(map(len, parts)) / max(characters, 1)


def document_unit(text: str) -> Literal["block", "file"]:
    """Return what counts as a document."""
    if text not in ("block", "file"):
        raise UsageError(f"--document must be block or file (got {text})")
    return "file" if text == "file" else "block"
