"""The command `lr-find`: the learning-rate range test, with its plot."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kinfolk.cli.app import FORCE, JSON, MAX_TOKENS, REPORT, TRAIN, command, option
from kinfolk.cli.options import OVERRIDES, check_overrides
from kinfolk.cli.output import (
    note,
    numbers,
    print_facts,
    print_line,
    print_table,
    publish,
    row_progress,
    saved_on_interrupt,
    table,
)
from kinfolk.cli.pretrain import PRETRAIN_RECIPE_KEYS, check_data
from kinfolk.training.config import TrainConfig
from kinfolk.training.lr_range import check_range
from kinfolk.workflows.folders import check_new_page, model_or_family

if TYPE_CHECKING:
    from kinfolk.workflows.lr_find import LRFindResult

SHOWN_ROWS = 15  # of the table


@command("kinfolk lr-find gpt2/tiny --corpus corpus -o lr.html", panel=TRAIN)
def lr_find_command(
    model: str = typer.Argument(
        ..., metavar="MODEL", help="FAMILY[/SIZE] (see kinfolk members), or a model folder."
    ),
    overrides: list[str] | None = OVERRIDES,
    corpus: list[str] | None = option("DIR[=WEIGHT]", "Corpus from kinfolk prepare."),
    out: Path | None = REPORT,
    force: bool = FORCE,
    steps: int = option("N", "Number of steps.", default=100, max=10_000),
    lowest: float = option("X", "Learning rate of the first step.", "--from", default=1e-6),
    highest: float = option("X", "Learning rate of the last step.", "--to", default=1.0),
    objective: str | None = option("NAME", "Training objective (see members)."),
    length: int | None = option("N", "Sequence length in tokens.", max=MAX_TOKENS),
    json: bool = JSON,
) -> None:
    """Find a learning rate: train with a rate that rises from step to step (Smith 2017).

    The rate rises exponentially from `--from` to `--to`; the test stops when the smoothed loss is
    four times its lowest value. It suggests the rate at which the loss falls fastest, and one tenth
    of the rate at which it diverges. Nothing is saved but the page.
    """
    model = model_or_family(model)
    check_range(steps, lowest, highest)
    mixture = check_data(corpus or [], None, required=True)
    check_overrides(overrides or [], {"train": TrainConfig}, PRETRAIN_RECIPE_KEYS)
    if out is not None:
        check_new_page(out, [Path(share.corpus) for share in mixture], force=force)
    from kinfolk.reports.lr_find_page import render
    from kinfolk.workflows.lr_find import lr_find, lr_find_page

    with (
        saved_on_interrupt(lambda: "nothing was written; run the same command again"),
        row_progress("steps", steps) as progress,
    ):
        result = lr_find(
            model,
            mixture,
            steps=steps,
            lowest=lowest,
            highest=highest,
            objective=objective,
            length=length,
            settings=overrides or [],
            on_step=progress,
        )
    publish(
        out,
        lambda: render(lr_find_page(result)),
        json=json,
        values=lambda: asdict(result) | {"tenth": result.tenth},
        show=lambda: show_suggestion(result),
    )


def show_suggestion(result: "LRFindResult") -> None:
    """Print some of the losses, and the suggested rates."""
    rows = table(*numbers("step", "learning rate", "loss", "smoothed"))
    done = len(result.rates)
    count = min(done, SHOWN_ROWS)
    for step in dict.fromkeys(round(i * (done - 1) / max(1, count - 1)) for i in range(count)):
        rate = f"{result.rates[step]:.3g}"
        rows.add_row(
            f"{step + 1}", rate, f"{result.losses[step]:.3f}", f"{result.smoothed[step]:.3f}"
        )
    print_table(rows)
    print_line("")
    suggested = [
        (reason, "not found" if rate is None else f"{rate:.3g}")
        for reason, rate in result.suggestions
    ]
    print_facts([*suggested, ("default of this size", result.default_rates)])
    for sentence in result.notes:
        note(sentence)
