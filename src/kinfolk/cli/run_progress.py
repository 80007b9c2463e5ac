"""The progress of a training run in the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kinfolk.cli.app import errors

if TYPE_CHECKING:
    from kinfolk.training.loop import Progress


@contextmanager
def run_progress(
    name: str, score: Callable[[], str] | None = None
) -> Iterator[Callable[["Progress"], None]]:
    """Show a run's progress: a live bar on a terminal, ten lines elsewhere.

    `score` is called for its text after each evaluation.
    """
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=errors, disable=not errors.is_terminal) as bar:
        task = bar.add_task(name, total=None, said="")
        held = ""

        def watch(progress: "Progress") -> None:
            nonlocal held
            said = f"loss {progress.loss:.3f}"
            for part, value in list(progress.losses.items())[1:]:  # the first is the loss itself
                said += f"  {part} {value:.3f}"
            if progress.eval_loss is not None:
                found = f"  held out {progress.eval_loss:.3f}"
                found += "" if score is None else f"  {score()}"
                said, held = said + found, f"{found} (step {progress.step:,})"
            else:
                said += held
            said += f"  {progress.tokens_per_second:,.0f} tokens/s"
            bar.update(task, completed=progress.step, total=progress.steps, said=said)
            every = max(1, progress.steps // 10)
            if not errors.is_terminal and (progress.step % every == 0):
                line = f"{name}  step {progress.step} of {progress.steps}  {said}"
                errors.print(line, highlight=False, soft_wrap=True)

        yield watch
