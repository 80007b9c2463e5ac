"""The command `inspect`: one text through objectives and trained models, as a page."""

from pathlib import Path

import typer

from kinfolk.cli.app import (
    DEVICE,
    EVALUATE,
    FORCE,
    JSON,
    OUT,
    TOKENIZER,
    command,
    option,
    piped,
    readable,
)
from kinfolk.cli.output import (
    note,
    numbers,
    print_json,
    print_line,
    print_table,
    row_progress,
    saved_on_interrupt,
    table,
)
from kinfolk.errors import UserError
from kinfolk.workflows.folders import check_model_folder, check_new_page, model_or_family

MAX_NAME_BYTES = 255  # of a file: a longer name is an error to ask for


@command('kinfolk inspect "The cat sat on the mat." gpt2 bert t5 -o page.html', panel=EVALUATE)
def inspect_command(
    text: str = typer.Argument(
        ..., metavar="TEXT", help="Text, or - for stdin. Blank lines separate documents."
    ),
    names: list[str] | None = typer.Argument(
        None,
        metavar="NAMES...",
        help="FAMILY[/SIZE] (see kinfolk members), runs and model folders. Default: every family.",
    ),
    out: Path = option("FILE.html", "HTML page.", *OUT, default=...),
    force: bool = FORCE,
    target: str | None = option("TEXT", "Target of TEXT, for encoder-decoders."),
    seed: int = option("N", "Seed of masks, cuts and orders.", default=0, min=0, max=2**63 - 1),
    tokenizer: Path | None = TOKENIZER,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """Show how families read a text: inputs, labels, positions, attention masks, side by side.

    Without a trained model, the page has what each objective makes of the text. Of a run or a model
    folder it also has predictions, the logit lens, the attention of every head, norms, and the
    gates of recurrent layers. Without --tokenizer, families read the words of the text.
    """
    from_stdin = text == "-"
    text = piped("text") if from_stdin else text
    readable(text, "text")
    if not text.strip():
        raise UserError("the text is empty: give some words")
    if not from_stdin and is_file_name(text):
        note(
            f"{text} is a file, and its name is read as the text: to inspect the file, pipe it "
            f"with kinfolk inspect - < {text}"
        )
    chosen = [model_or_family(name) for name in names or ()]
    folders = [check_model_folder(name) for name in chosen if Path(name).exists()]
    check_new_page(out, folders, force=force)
    from kinfolk.reports.inspect_page import render
    from kinfolk.reports.page import write
    from kinfolk.workflows.inspection.page import inspect_page, inspected_families

    count = len(chosen) or len(inspected_families())
    with (
        saved_on_interrupt(lambda: "nothing was written; run the same command again"),
        row_progress("families", count) as progress,
    ):
        done = 0

        def on_step(name: str) -> None:
            nonlocal done
            progress(done)
            done += 1

        page = inspect_page(
            text,
            chosen,
            tokenizer=tokenizer,
            target=target,
            seed=seed,
            device=device,
            on_step=on_step,
        )
        write(render(page), out)
        progress(count)
    for sentence in page.warnings:
        note(sentence)
    rows = [
        {
            "family": view.family,
            "objective": view.objective,
            "tokens": sum(len(stream.tokens) for stream in view.streams),
            "predicted": sum(
                label is not None for stream in view.streams for label in stream.labels
            ),
        }
        for view in page.objectives
    ]
    if json:
        models = [model.name for model in page.models]
        print_json({"objectives": rows, "models": models, "report": out})
        return
    shown = table("family", "objective", *numbers("tokens", "predicted"))
    for row in rows:
        shown.add_row(*map(str, row.values()))
    print_table(shown)
    for sentence in page.notes:
        note(sentence)
    print_line(f"\nreport: {out}")


def is_file_name(text: str) -> bool:
    """Return whether a text is the path of a file."""
    return len(text.encode()) <= MAX_NAME_BYTES and Path(text).is_file()
