"""The command `quickstart`: three small models on Python's docstrings."""

from pathlib import Path

from kinfolk.cli.app import NEW_FOLDER_HELP, OUT, START, command, option
from kinfolk.cli.output import console, print_line, print_table, table
from kinfolk.workflows.folders import check_new_folder


@command("kinfolk quickstart", panel=START)
def quickstart_command(
    out: Path = option("DIR", NEW_FOLDER_HELP, *OUT, default=Path("runs/quickstart")),
) -> None:
    """Train a tiny GPT-2, BERT and T5 on Python's docstrings and write report.html.

    It takes about four minutes on two CPU cores.
    """
    check_new_folder(out)
    from kinfolk.cli.run_progress import run_progress
    from kinfolk.workflows.quickstart import quickstart
    from kinfolk.workflows.report import baseline_rows

    results = quickstart(
        out,
        on_message=lambda text: console.print(text, highlight=False, markup=False),
        progress=run_progress,
    )
    scores = table("", "bits per byte", "loss", "perplexity", "scoring")
    for s in results.scores:
        values = (f"{s.bits_per_byte:.3f}", f"{s.loss:.3f}", f"{s.perplexity:.1f}")
        scores.add_row(f"[bold]{s.model}[/]", *values, s.kind)
    for line in baseline_rows(results.baselines):
        per_byte = "" if line.bits_per_byte is None else f"{line.bits_per_byte:.3f}"
        scores.add_row(line.name, per_byte, f"{line.loss:.3f}", f"{line.perplexity:.1f}", "")
    console.print()
    print_table(scores)
    trigram = results.baselines.trigram
    for s in results.scores:
        if trigram is not None and s.comparable and s.bits_per_byte is not None:
            gap = s.bits_per_byte / trigram.bits_per_byte - 1
            side = "more" if gap > 0 else "fewer"
            print(f"\n{s.model}: {abs(gap):.0%} {side} bits per byte than the 3-gram baseline")
    for sample in results.samples:
        console.print(f"\n[bold]{sample.model}[/] {sample.title}:")
        for part in sample.text:
            style = "green" if part.generated else None
            console.print(part.text, style=style, end="", highlight=False, markup=False)
        console.print()
    print_line(f"\nreport: {results.page}")
