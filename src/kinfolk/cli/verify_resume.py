"""The command `verify-resume`: the proof that a killed run resumes to the bit."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from kinfolk.cli.app import JSON, TRAIN, command, option
from kinfolk.cli.output import note, print_json, print_line, print_table, table
from kinfolk.cli.pretrain import check_data
from kinfolk.workflows.folders import model_or_family

if TYPE_CHECKING:
    from kinfolk.workflows.verify_resume import ResumeProof

SHOWN_DIGITS = 16  # of a digest of 64


@command("kinfolk verify-resume gpt2/nano", panel=TRAIN)
def verify_resume_command(
    model: str = typer.Argument(
        ..., metavar="MODEL", help="FAMILY[/SIZE] (see kinfolk members), or a run folder."
    ),
    steps: int | None = option("N", "Number of steps (default: 24).", min=1, max=2**20),
    corpus: list[str] | None = option(
        "DIR[=WEIGHT]", "Corpus from kinfolk prepare (default: some of Python's documentation)."
    ),
    objective: str | None = option("NAME", "Training objective (see members)."),
    device: str | None = option("NAME", "auto, cpu or cuda (default: that of the run)."),
    json: bool = JSON,
) -> None:
    """Kill a run, resume it, and compare it with an uninterrupted one, bit by bit.

    A run of MODEL is killed (SIGKILL) between two checkpoints and resumed. All tensors of weights
    and optimizer, the log and its losses must equal those of a run without interruption; else the
    first differences are printed and the exit code is 1. Of a run folder, recipe and data are used;
    nothing is written to it.
    """
    model = model_or_family(model)
    mixture = check_data(corpus or [], None, required=False)
    from kinfolk.workflows.verify_resume import verify_resume

    proof = verify_resume(
        model,
        corpus=mixture or None,
        steps=steps,
        objective=objective,
        device=device,
        on_message=note,
    )
    if json:
        print_json(asdict(proof) | {"equal": proof.equal, "differences": proof.differences})
    else:
        show_proof(proof)
    if not proof.equal:
        raise typer.Exit(1)


def show_proof(proof: "ResumeProof") -> None:
    """Print the proof."""
    print_line(
        f"{proof.name} ({proof.objective}) on {proof.device}: {proof.steps} steps, "
        f"a checkpoint every {proof.save_every}"
    )
    start = f"from step {proof.resumed_from}" if proof.resumed_from else "from its start"
    print_line(f"killed (SIGKILL) after step {proof.killed_at}, resumed {start}")
    rows = table("", "", "uninterrupted", "killed and resumed", "")
    for part in proof.parts:
        same = "equal" if part.difference is None else "[bold red]differs[/]"
        digests = (part.whole[:SHOWN_DIGITS], part.resumed[:SHOWN_DIGITS])
        rows.add_row(f"[bold]{part.name}[/]", part.size, *digests, same)
    last = (f"{loss:.9g}" for loss in proof.losses)
    same = "equal" if proof.losses[0] == proof.losses[1] else "[bold red]differs[/]"
    rows.add_row("[bold]last loss[/]", "", *last, same)
    print_table(rows)
    for difference in proof.differences:
        print_line(f"first difference: {difference}")
    if proof.equal:
        print_line("equal to the bit")
    for sentence in proof.notes:
        print_line(sentence)
