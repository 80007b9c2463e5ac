"""The command `prepare`: text is tokenized into a corpus."""

import math
from pathlib import Path
from typing import Annotated, Literal

from kinfolk.cli.app import DATA, AsJson, Files, NewFolder, command, note, option, print_json
from kinfolk.cli.options import UsageError
from kinfolk.cli.progress import byte_progress

Unit = Annotated[
    str, option("block|file", "A document is a block between blank lines, or a whole file.")
]
Field = Annotated[str | None, option("NAME", "Field of JSON lines with the text: meta.text.")]
Column = Annotated[str | None, option("NAME", "Column of tables with the text: name or number.")]


@command("kinfolk prepare notes/ --tokenizer tok --holdout 1% -o corpus", panel=DATA)
def prepare(
    files: Files,
    tokenizer: Annotated[Path, option("DIR", "Tokenizer folder, model folder or run.")],
    out: NewFolder,
    workers: Annotated[
        int | None, option("N", "Processes; the output is identical for any number.")
    ] = None,
    document: Unit = "block",
    field: Field = None,
    column: Column = None,
    holdout: Annotated[
        str, option("FRACTION", "Documents held out in CORPUS/holdout: 0.005 or 0.5%.")
    ] = "0",
    word_boundaries: Annotated[
        str | None, option("spaces|jieba", "Store word boundaries for whole-word masking.")
    ] = None,
    dedup: Annotated[
        str | None, option("exact|near", "Drop duplicates, or near-duplicates (MinHash) too.")
    ] = None,
    decontaminate: Annotated[
        list[Path] | None, option("FILE", "Drop documents that share a 13-gram with this file.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Tokenize text into a corpus: memory-mapped Megatron .bin/.idx files and corpus.json.

    In tables and JSON lines a document is always a row. Held-out documents are chosen by their own
    text; dropped ones are listed in CORPUS/dropped.jsonl. An interrupted run continues when the
    same command is repeated.
    """
    unit, fraction = document_unit(document), parse_fraction(holdout)
    from kinfolk.data.prepare import prepare
    from kinfolk.workflows.folders import load_tokenizer

    with byte_progress("preparing") as watch:
        corpus = prepare(
            files,
            tokenizer=load_tokenizer(tokenizer),
            out=out,
            workers=workers,
            document=unit,
            field=field,
            column=column,
            holdout=fraction,
            word_boundaries=word_boundaries,
            dedup=dedup,
            decontaminate=decontaminate or [],
            progress=watch,
            on_message=(lambda sentence: None) if json else note,
        )
    facts = {"documents": corpus.documents, "tokens": corpus.tokens, "bytes": corpus.bytes}
    if json:
        print_json({"folder": str(out), **facts})
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in facts.items())
    print(f"corpus: {counts} in {out}")
    if fraction:
        from kinfolk.data.corpus import Corpus

        print(f"held out: {Corpus.open(out / 'holdout').documents:,} documents in {out}/holdout")


def document_unit(text: str) -> Literal["block", "file"]:
    """Return what counts as a document."""
    if text not in ("block", "file"):
        raise UsageError(f"--document must be block or file (got {text})")
    return "file" if text == "file" else "block"


def parse_fraction(text: str) -> float:
    """Return a fraction that is written as a number or in percent."""
    try:
        fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fraction = math.nan
    if not 0 <= fraction < 1:
        raise UsageError(
            f"--holdout must be a fraction from 0 to less than 1, e.g. 0.005 or 0.5% (got {text})"
        )
    return fraction
