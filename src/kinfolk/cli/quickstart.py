"""The command `quickstart`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kinfolk.cli.app import app, console, example


@app.command(epilog=example("kinfolk quickstart"))
def quickstart(
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Do the main job in small: three families on Python's own prose, trained and scored."""
    from kinfolk.cli.run_progress import run_progress
    from kinfolk.workflows.evaluate import SCORE_KINDS
    from kinfolk.workflows.quickstart import quickstart
    from kinfolk.workflows.report import baseline_rows

    found = quickstart(
        out,
        on_message=lambda text: console.print(text, highlight=False),
        progress=run_progress,
    )
    table = Table("", "bits per byte", "loss", "perplexity", "score", box=None, pad_edge=False)
    for r in found.results:
        s = r.score
        numbers = (f"{s.bits_per_byte:.3f}", f"{s.loss:.3f}", f"{s.perplexity:.1f}")
        table.add_row(f"[bold]{r.name}[/]", *numbers, r.kind)
    for line in baseline_rows(found.baselines):
        per_byte = "" if line.bits_per_byte is None else f"{line.bits_per_byte:.3f}"
        table.add_row(line.name, per_byte, f"{line.loss:.3f}", f"{line.perplexity:.1f}", "")
    console.print()
    console.print(table)
    trigram = found.baselines.trigram
    for r in found.results:
        if trigram is not None and r.kind == SCORE_KINDS["decoder"]:
            gap = r.score.bits_per_byte / trigram.bits_per_byte - 1
            side = "above" if gap > 0 else "below"
            console.print(f"\n{r.name} stands {abs(gap):.0%} {side} the 3-gram line.")
    for r in found.results:
        console.print(f"\n[bold]{r.name}[/] {r.sample.title}:")
        for part in r.sample.text:
            style = "green" if part.generated else None
            console.print(part.text, style=style, end="", highlight=False, markup=False)
        console.print()
    print(f"\nthe curves are in {found.page}")
