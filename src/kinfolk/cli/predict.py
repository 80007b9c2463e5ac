"""The command `predict`: labels of a fine-tuned model for the rows of a file."""

import sys
from pathlib import Path

import typer

from kinfolk.cli.app import (
    DEVICE,
    FORCE,
    JSON,
    MODEL,
    OUT,
    TASK_INDEX,
    TOKENIZER,
    USE,
    command,
    flag,
    option,
)
from kinfolk.cli.output import note, row_progress, saved_on_interrupt
from kinfolk.data.files import STDIN
from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.workflows.folders import (
    check_input_file,
    check_model_folder,
    check_new_file,
    check_parent_folder,
)


@command("kinfolk predict runs/triage new.tsv -o predictions.tsv", panel=USE)
def predict_command(
    model: Path = MODEL,
    file: Path = typer.Argument(
        ...,
        metavar="FILE",
        help="Rows as in training; labels may be missing. - for standard input.",
    ),
    out: Path | None = option("FILE", "Output file (default: print).", *OUT),
    force: bool = FORCE,
    columns: str | None = option(
        "LIST", "Text columns and label column: a,b,label; without one: a,b,"
    ),
    task_index: int = TASK_INDEX,
    probabilities: bool = flag("--probabilities", "Write the probability of every class."),
    tokenizer: Path | None = TOKENIZER,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """Predict the labels of a file and write it in its own format, with all of its content.

    Tables get the columns `prediction` and `probability`, JSON lines these fields, CoNLL files a
    last column; SQuAD questions become the official predictions format. With `--json` only the
    predictions are written, one object per line.
    """
    out = None if out == Path("-") else out
    check_model_folder(model)
    if file != STDIN:
        check_predicted_file(file)
    if out is not None:
        check_new_file(out, (file, model), force=force)
        check_parent_folder(out)
    from kinfolk.tasks.formats.labelled_file import LabelledFile
    from kinfolk.workflows.input_checks import check_inputs, check_rows
    from kinfolk.workflows.model_use import check_finetuned

    check_finetuned(model)
    labelled = LabelledFile(file)
    if file == STDIN:
        labelled = LabelledFile("standard input", data=sys.stdin.buffer.read())
    check_rows(labelled)
    if columns is None:
        check_inputs(model, labelled, task_index)
    from kinfolk.tasks.formats.base import ReadReport, write_jsonl, write_predictions
    from kinfolk.workflows.predict import (
        added_columns,
        format_notes,
        load_predictor,
        predict_file,
        read_test_file,
        truncation_report,
    )

    predictor = load_predictor(model, device=device, task_index=task_index, tokenizer=tokenizer)
    report = ReadReport()
    rows, spec = read_test_file(predictor, labelled, columns=columns, labelled=False, report=report)
    notes = format_notes(predictor, labelled, spec)
    if not json:
        notes += added_columns(predictor, labelled, spec, all_probabilities=probabilities)
    for sentence in (*notes, *report.messages(), *truncation_report(predictor, rows)):
        note(sentence)
    with (
        saved_on_interrupt(lambda: "nothing was written; run the same command again"),
        row_progress("predict", len(rows)) as progress,
    ):
        predictions = predict_file(
            predictor,
            labelled,
            rows,
            spec,
            all_probabilities=probabilities,
            watch=progress,
        )
    lines = (write_jsonl if json else write_predictions)(predictions)
    if out is None:
        sys.stdout.writelines(lines)
        return
    with new_file(out) as stream:
        stream.writelines(lines)
    note(f"wrote {len(rows):,} predictions to {out}")


def check_predicted_file(file: Path) -> None:
    """Refuse an input that is no file; a text on the command line is not one."""
    if not file.exists():
        raise UserError(
            f"no such file: {file}; put texts into a file, one on each line, or pass them to "
            "standard input: echo TEXT | kinfolk predict MODEL -"
        )
    check_input_file(file)
