"""The command `predict`: what a fine-tuned model says to the rows of a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.app import AsJson, Device, app, example
from kinfolk.cli.generate import ModelPath
from kinfolk.cli.learning import TaskNumber
from kinfolk.cli.tasks import say
from kinfolk.cli.translate import output as writing
from kinfolk.cli.translate import progress as watching
from kinfolk.errors import UserError

Columns = Annotated[
    str | None,
    typer.Option(help="The texts and then the label: a,b,label; without one, a,b, ."),
]


@app.command(epilog=example("kinfolk predict runs/triage new.tsv -o answers.tsv"))
def predict(
    model: ModelPath,
    file: Annotated[Path, typer.Argument(help="Examples as in training; labels may be missing.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The file to write; else, or with -, it is printed."),
    ] = None,
    columns: Columns = None,
    task_number: TaskNumber = 1,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="That of every class, in tables too.")
    ] = False,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Predict the labels of a file, in the file's own form; all that is there stays.

    Tables get the columns `prediction` and `probability`, JSON lines these fields, words in columns
    a last column; SQuAD's questions become the official form of answers. With `--json` the answers
    come alone, an object a line.
    """
    from kinfolk.tasks.formats.base import ReadReport, write_jsonl, write_predictions
    from kinfolk.tasks.formats.labelled_file import LabelledFile
    from kinfolk.workflows.predict import (
        load_predictor,
        predict_file,
        read_test_file,
        truncation_report,
    )

    out = None if out == Path("-") else out
    if out is not None and out.exists():
        raise UserError(f"{out} is already there: choose another -o")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"{out.parent} is no folder: make it, or choose another -o")
    found = load_predictor(model, device=device, number=task_number - 1)
    labelled, report = LabelledFile(file), ReadReport()
    rows, spec = read_test_file(found, labelled, columns=columns, labelled=False, report=report)
    for sentence in (*report.messages(), *truncation_report(found, rows)):
        say(sentence)
    with watching("predict", len(rows), shown=False) as watch:
        answers = predict_file(
            found, labelled, rows, spec, all_probabilities=probabilities, watch=stepwise(watch)
        )
    with writing(out) as write:
        for line in (write_jsonl if json else write_predictions)(answers):
            write(line)


def stepwise(advance: Callable[[int], None]) -> Callable[[int], None]:
    """Turn how many rows are done into how many more they are."""
    before = 0

    def watch(done: int) -> None:
        nonlocal before
        advance(done - before)
        before = done

    return watch
