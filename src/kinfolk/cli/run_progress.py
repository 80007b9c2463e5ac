"""The progress of a training run in the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kinfolk.cli.app import errors
from kinfolk.tasks.task import format_score, metric_title
from kinfolk.training.loop import Callback, Evaluation, Progress

LINES = 10  # printed in a run where there is no terminal


class TerminalProgress(Callback):
    """Print messages, a live bar on a terminal and ten lines elsewhere, and how a run ended."""

    def __init__(self, bar: Bar, name: str, resume: str) -> None:
        self.bar, self.name, self.resume = bar, name, resume
        self.task = bar.add_task(name, total=None, values="")
        self.checkpoint: Path | None = None
        self.scores = ""  # of the newest evaluation
        self.evaluated = self.printed = 0  # steps

    def on_message(self, message: str) -> None:
        """Print a message beside the output."""
        print_message(message)

    def on_evaluate(self, step: int, evaluation: Evaluation) -> None:
        """Keep the main metrics for the next line."""
        self.evaluated = step
        self.scores = "".join(
            f"  {metric_title(name)} {format_score(name, value)}"
            for name, value in evaluation.main_metrics.items()
        )

    def on_step(self, progress: Progress) -> None:
        """Show the losses and the speed."""
        values = f"loss {progress.loss:.3f}"
        for name, value in list(progress.losses.items())[1:]:  # the first is the loss itself
            values += f"  {name} {value:.3f}"
        if progress.eval_loss is not None:
            self.scores = f"  held out {progress.eval_loss:.3f}{self.scores}"
            values += self.scores
        elif self.evaluated:
            values += f"{self.scores} (step {self.evaluated:,})"
        values += f"  {progress.tokens_per_second:,.0f} tokens/s"
        self.bar.update(self.task, completed=progress.step, total=progress.steps, values=values)
        every = max(1, progress.steps // LINES)
        if not errors.is_terminal and progress.step // every > self.printed // every:
            self.printed = progress.step
            print_message(f"{self.name}  step {progress.step} of {progress.steps}  {values}")

    def on_save(self, checkpoint: Path) -> None:
        """Keep the newest checkpoint."""
        self.checkpoint = checkpoint

    def on_end(self, step: int, *, interrupted: bool) -> None:
        """Say where an interrupted run was saved, and how to resume it."""
        if interrupted:
            self.bar.stop()
            saved = "nothing to save" if self.checkpoint is None else f"saved {self.checkpoint}"
            print_message(f"interrupted at step {step}: {saved}; resume with: {self.resume}")


def print_message(message: str) -> None:
    """Print a message on the error stream, as it is."""
    errors.print(message, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def run_progress(name: str, resume: str = "") -> Iterator[TerminalProgress]:
    """Show the progress of a run; `resume` is the command that resumes it."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[values]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=errors, disable=not errors.is_terminal) as bar:
        yield TerminalProgress(bar, name, resume)
