"""The progress of a training run: a live bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import MofNCompleteColumn
from rich.progress import Progress as Bar

from kinfolk.cli.output import (
    SECONDS_BETWEEN_LINES,
    CutColumn,
    duration,
    errors,
    fixed,
    note,
    progress_bar,
)
from kinfolk.tasks.task import format_score, metric_title
from kinfolk.training.loop import Callback, Evaluation, Progress


class TerminalProgress(Callback):
    """Print messages, progress, and how to resume a run that is interrupted.

    The lines of `header` are printed with the first step, when all settings are known to be valid.
    """

    def __init__(
        self, bar: Bar, name: str, resume: str, header: Callable[[], Sequence[str]]
    ) -> None:
        self.bar, self.name, self.resume, self.header = bar, name, resume, header
        self.task = bar.add_task(name, total=None, values="")
        self.checkpoint: Path | None = None
        self.scores = ""  # of the newest evaluation
        self.evaluated = self.printed = 0  # steps
        self.first: int | None = None  # step that this process began at
        self.began = self.shown = time.monotonic()

    def on_message(self, message: str) -> None:
        """Print a message."""
        note(message)

    def on_evaluate(self, step: int, evaluation: Evaluation) -> None:
        """Keep the main metrics for the next line."""
        self.evaluated = step
        self.scores = "".join(
            f"  {metric_title(name)} {format_score(name, value)}"
            for name, value in evaluation.main_metrics.items()
        )

    def on_step(self, progress: Progress) -> None:
        """Show the losses and the speed; without a terminal, in a line every 30 s or 10 %."""
        if self.first is None:
            self.first = progress.step - 1
            for line in self.header():
                note(line)
        if progress.compile_seconds:
            note(f"compiled in {progress.compile_seconds:.1f} s")
        values = f"loss {format_loss(progress.loss, progress.losses)}"
        if progress.baseline is not None:
            values += "  {} {:.3f}".format(*progress.baseline)
        if progress.eval_loss is not None:
            eval_loss = format_loss(progress.eval_loss, progress.eval_losses)
            self.scores = f"  eval_loss {eval_loss}{self.scores}"
            values += self.scores
        elif self.evaluated:
            values += f"{self.scores} (step {self.evaluated:,})"
        values += f"  {progress.tokens_per_second:,.0f} tokens/s"
        self.bar.update(self.task, completed=progress.step, total=progress.steps, values=values)
        every, now = max(1, progress.steps // 10), time.monotonic()
        due = (
            progress.step // every > self.printed // every
            or now - self.shown >= SECONDS_BETWEEN_LINES
        )
        if not errors.is_terminal and due:
            self.shown, self.printed = now, progress.step
            if left := progress.steps - progress.step:
                rate = (now - self.began) / (progress.step - self.first)
                values += f"  ETA {duration(rate * left)}"
            note(f"{self.name}  step {progress.step}/{progress.steps}  {values}")

    def on_save(self, checkpoint: Path) -> None:
        """Keep the newest checkpoint."""
        self.checkpoint = checkpoint

    def on_end(self, step: int, *, interrupted: bool) -> None:
        """Print where an interrupted run was saved, and how to resume it."""
        if interrupted:
            self.bar.stop()
            saved = f"step {step} was saved before" if step else "nothing was saved"
            if self.checkpoint is not None:
                saved = f"saved {self.checkpoint}"
            resume = f"; resume with: {self.resume}" if self.resume else ""
            note(f"interrupted at step {step}: {saved}{resume}")


def format_loss(loss: float, parts: Mapping[str, float]) -> str:
    """Write a loss, with its parts if there are several: 5.800 (mlm 5.110, nsp 0.690)."""
    named = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
    return f"{loss:.3f} ({named})" if named else f"{loss:.3f}"


@contextmanager
def run_progress(
    name: str, resume: str = "", header: Callable[[], Sequence[str]] = tuple
) -> Iterator[TerminalProgress]:
    """Show the progress of a run; `resume` is the command that resumes it."""
    values = CutColumn(lambda task: str(task.fields["values"]))
    with progress_bar(MofNCompleteColumn(table_column=fixed()), values) as bar:
        yield TerminalProgress(bar, name, resume, header)
