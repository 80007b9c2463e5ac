"""The command `claims`: well-known claims about model families, tested on your text."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Column

from kinfolk.cli.app import EVALUATE, JSON, OUT, UNIT, command, flag, option
from kinfolk.cli.options import UsageError
from kinfolk.cli.output import (
    duration,
    note,
    numbers,
    print_json,
    print_line,
    print_table,
    saved_on_signal,
    table,
    visible,
)
from kinfolk.cli.prepare import document_unit

if TYPE_CHECKING:
    from kinfolk.workflows.claims.catalog import Claim
    from kinfolk.workflows.claims.files import ClaimResult, ClaimsSettings

STYLES = {"holds": "green", "reversed": "red"}


@command("kinfolk claims electra nsp --corpus notes/ --task triage.tsv -o claims", panel=EVALUATE)
def claims_command(
    names: list[str] | None = typer.Argument(
        None, metavar="[NAME]...", help="Claims to test [default: all]."
    ),
    show: bool = flag("--list", "List the claims, with their sources; train nothing."),
    scale: str = option("nano|tiny|mini", "Size of the networks, with its budget.", default="nano"),
    corpus: list[Path] | None = option("PATH", "Text files or folders. Repeat for more."),
    task: list[str] | None = option(
        "FILE",
        "Labelled file for the claims that need its kind: texts, pairs of texts, tagged words. "
        "Also TRAIN,TEST, TRAIN,DEV,TEST or a folder. Repeat for more.",
    ),
    seeds: int = option("N", "Seeds of each entrant.", default=3, min=1, max=1000),
    document: str = UNIT,
    out: Path | None = option("DIR", "Output folder; the same one continues.", *OUT),
    jobs: int | None = option(
        "N",
        "Processes at a time; 0: all in this one [default: 1, or the number of GPUs].",
        min=0,
        max=256,
    ),
    device: str = option("NAME", "auto, cpu or cuda.", default="auto"),
    plan: bool = flag("--plan", "Print entrants, budgets and the estimated time; train nothing."),
    json: bool = JSON,
) -> None:
    """Test well-known claims, such as that ELECTRA beats BERT at equal compute.

    Each claim is a small comparison with equal budgets. It holds, is reversed, or is undecided at
    this scale, by the 95 % interval of the difference. The same command continues after an
    interruption. DIR/claims.html has all effects; docs/claims.md has those that were measured.
    """
    from kinfolk.workflows.claims import catalog

    chosen = catalog.select_claims(names or ())
    catalog.scale_of(scale)
    if show:
        show_claims(chosen, json=json)
        return
    if not corpus:
        raise UsageError("missing --corpus PATH: text files or folders")
    unit = document_unit(document)
    if plan:
        from kinfolk.workflows.claims.files import ClaimsSettings

        settings = ClaimsSettings(
            scale=catalog.scale_of(scale),
            corpus=tuple(corpus),
            tasks=tuple(task or ()),
            seeds=seeds,
            document=unit,
            device=device,
        )
        show_plans(settings, names or (), jobs)
        return
    if out is None:
        raise UsageError("missing -o DIR: the folder to write")
    from kinfolk.cli.compare import terminal_progress
    from kinfolk.workflows.claims.run import run_claims

    with saved_on_signal(lambda: "every finished job is kept; the same command continues"):
        results = run_claims(
            out,
            corpus,
            names or (),
            tasks=task or (),
            scale=scale,
            seeds=seeds,
            document=unit,
            device=device,
            jobs=jobs,
            on_message=note,
            callbacks=[terminal_progress()],
        )
    show_results(results, out, json=json)


def show_claims(chosen: Sequence["Claim"], *, json: bool) -> None:
    """Print what can be tested, and what each claim needs."""
    from kinfolk.workflows.claims.catalog import NEEDS

    if json:
        keys = ("name", "sentence", "source", "measure", "tasks", "setting")
        print_json([{key: vars(claim)[key] for key in keys} for claim in chosen])
        return
    shown = table(Column("name", no_wrap=True), "claim", "source", "needs")
    for claim in chosen:
        needs = ", ".join(["text", *(NEEDS[need] for need in claim.tasks)])
        shown.add_row(f"[bold]{claim.name}[/]", escape(claim.sentence), escape(claim.source), needs)
    print_table(shown)


def show_plans(settings: "ClaimsSettings", names: Sequence[str], jobs: int | None) -> None:
    """Print the entrants of each claim, their budget, and an estimate of the time."""
    from kinfolk.reports.page import plural
    from kinfolk.workflows.claims.run import plan_claims

    shown = table(
        Column("claim", no_wrap=True), "entrant", "budget", *numbers("parameters", "steps", "time")
    )
    total = 0.0
    for claim, stage, found in plan_claims(settings, names, jobs=jobs):
        if found is None:
            shown.add_row(claim.name, "not run: no --task of its kind")
            continue
        total += sum(job.seconds for job in found.jobs)
        for number, entrant in enumerate(found.entrants):
            name = " ".join(filter(None, [claim.name, stage])) if not number else ""
            seconds = sum(job.seconds for job in found.jobs if job.entrant == entrant.name)
            numbers_shown = f"{entrant.parameters:,}", f"{entrant.steps:,}", duration(seconds)
            words = str(found.budget["words"]) if not number else ""
            shown.add_row(name, escape(visible(entrant.name)), words, *numbers_shown)
    print_table(shown)
    seed_words = plural(settings.seeds, "seed")
    print_line(f"\n{seed_words} of each entrant; about {duration(total)}, of which pretraining is")
    print_line("estimated from a few steps of each entrant, and other jobs are a guess")


def show_results(results: Sequence["ClaimResult"], out: Path, *, json: bool) -> None:
    """Print the verdict of each claim."""
    if json:
        print_json({"claims": [vars(result) | {"effects": [vars(e) for e in result.effects]}
                               for result in results]})  # fmt: skip
        return
    shown = table(Column("claim", no_wrap=True), "verdict")
    for result in results:
        style = STYLES.get(result.verdict)
        words = escape(visible(result.words))
        shown.add_row(f"[bold]{result.name}[/]", f"[{style}]{words}[/]" if style else words)
    print_table(shown)
    print_line(f"\npage:   {out / 'claims.html'}")
