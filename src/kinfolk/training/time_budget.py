"""Runs that end after a number of seconds of training (train.minutes), not of steps.

The learning rate of a step follows from the number of all steps. A run that ends by the clock does
not know it, so it estimates it anew whenever a tenth of what was left is done: from the seconds of
its last steps, as many as are left. Each estimate is a decision, which is on disk before a step
follows it:

RUN/steps.jsonl   {"step": 120, "steps": 1180, "seconds": 6.02}: after 120 steps, which took 6.02
                  seconds, the run was to have 1180. The last line has the last step twice.

So a run that is killed and resumed repeats its decisions, and with them its learning rates, and a
run that is given all decisions of another has as many steps, at the same rates.
"""

import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import speed_lines

DECISIONS = "steps.jsonl"
# An estimate is renewed when this share of the seconds, or of the steps, is left that was left at
# the last one: about 25 times in 50 steps, 70 times in 10,000.
RENEWED_AT = 0.9


@dataclass(frozen=True)
class Decision:
    """How many steps a run is to have, decided after some of them."""

    step: int  # steps done
    steps: int  # of the whole run
    seconds: float  # of the steps done


class TimeBudget:
    """The seconds of a run, and the number of steps that fills them."""

    def __init__(self, train: TrainConfig, folder: Path) -> None:
        assert train.minutes is not None
        self.seconds, self.path, self.run = 60 * train.minutes, folder / DECISIONS, folder
        self.first = Decision(0, train.steps, 0.0)
        self.decisions: list[Decision] = []
        self.elapsed = array("d", [0.0])  # seconds of the first n steps

    def restart(self, step: int) -> int:
        """Continue after a step, with the decisions on disk; return the number of all steps.

        Steps that are in the log, and are done again, keep the number that they were done with: the
        log still has them when this is called.
        """
        if step or self.path.is_file():
            self.decisions = read_decisions(self.path)
        else:
            self.decisions = [self.first]
            write_decisions(self.path, self.decisions)
        lines = speed_lines(self.run)
        if [line["step"] for line in lines[:step]] != [*range(1, step + 1)]:
            raise UserError(
                f"{self.run / 'speed.jsonl'} has not the seconds of each of the first {step:,} "
                "steps, so that nobody knows how much of train.minutes is left: restore the file, "
                "or start a new run"
            )
        last, done = self.decisions[-1], lines[-1]["step"] if lines else 0
        if done > last.steps:
            raise damaged(self.path, f"the log has {done} steps, and it has {last.steps}")
        self._restore_seconds(lines)
        if done > max(step, last.step):  # some steps are done again
            self._decide(Decision(done, last.steps, self.elapsed[done]))
        return self.steps_at(step)

    def _restore_seconds(self, lines: Sequence[dict[str, Any]]) -> None:
        """Set the seconds of each step: those of the decisions, and after the last of the log.

        The log has only the last time of a step that was done more than once.
        """
        self.elapsed = array("d", [0.0])
        for before, after in pairwise(self.decisions):
            each = (after.seconds - before.seconds) / (after.step - before.step)
            steps = range(1, after.step - before.step + 1)
            self.elapsed.extend(before.seconds + each * n for n in steps)
        for line in lines[self.decisions[-1].step :]:
            self.elapsed.append(self.elapsed[-1] + line["seconds"])

    def check(self, step: int, saved: Sequence[int] | None) -> None:
        """Refuse decisions other than that under which a checkpoint was saved (`in_force`)."""
        if self.in_force(step) != saved:
            raise damaged(
                self.path, f"the decision in force at the checkpoint of step {step} is not in it"
            )

    def in_force(self, step: int) -> list[int]:
        """Return the decision in force at a step: after how many steps, and of how many."""
        decision = self.decisions[bisect_right(self.decisions, step, key=lambda d: d.step) - 1]
        return [decision.step, decision.steps]

    def steps_at(self, step: int) -> int:
        """Return the number of all steps by the decision in force at a step."""
        return self.in_force(step)[1]

    def observe(self, step: int, each: float) -> int:
        """Add the seconds of each of the steps up to this one; return the number of all steps.

        A decision that is due is on disk before this returns.
        """
        while len(self.elapsed) <= step:  # those of steps that are done again are known
            self.elapsed.append(self.elapsed[-1] + each)
        last = self.decisions[-1]
        if step <= last.step:  # it is done again, or all was decided before
            return self.steps_at(step)
        spent = self.elapsed[step]
        seconds_left, steps_left = self.seconds - spent, max(0, last.steps - step)
        if (
            seconds_left <= RENEWED_AT * (self.seconds - last.seconds)
            or steps_left <= RENEWED_AT * (last.steps - last.step)
        ):  # fmt: skip
            newest = min(step, steps_left) or step - last.step
            recent = (spent - self.elapsed[step - newest]) / newest
            more = max(1 if steps_left else 0, round(seconds_left / recent))
            self._decide(Decision(step, step + more, spent))
        return self.decisions[-1].steps

    def _decide(self, decision: Decision) -> None:
        try:
            write_decisions(self.path, [*self.decisions, decision])
        except OSError as error:
            raise UserError(
                f"{self.path} could not be written ({error.strerror}): the checkpoints are intact; "
                "fix the cause and resume the run"
            ) from error
        self.decisions.append(decision)


def write_decisions(path: Path, decisions: Sequence[Decision]) -> None:
    """Write decisions to the disk, all or none."""
    with new_file(path, durable=True) as file:
        file.writelines(json.dumps(asdict(decision)) + "\n" for decision in decisions)


def read_decisions(path: Path) -> list[Decision]:
    """Read the decisions of a run; refuse a file that is not as `write_decisions` leaves it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        raise damaged(path, "there is no such file") from None
    except UnicodeDecodeError:
        raise damaged(path, "it is not text") from None
    decisions: list[Decision] = []
    for number, line in enumerate(lines, 1):
        decision = parsed_decision(line)
        after = decisions[-1].step if decisions else -1
        if decision is None or decision.step <= after or (decision.step and not decisions):
            raise damaged(path, f"line {number} is not a decision that follows those before")
        decisions.append(decision)
    if not decisions:
        raise damaged(path, "it is empty")
    return decisions


def parsed_decision(line: str) -> Decision | None:
    """Return the decision of a line, None where it is none."""
    try:
        values: Any = json.loads(line)
        decision = Decision(**values)
    except (ValueError, TypeError):
        return None
    counts = type(decision.step) is int and type(decision.steps) is int
    seconds = decision.seconds
    if not counts or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return None
    return decision if line.endswith("\n") and 0 <= decision.step <= decision.steps else None


def damaged(path: Path, fault: str) -> UserError:
    """Return the error about a file of decisions."""
    return UserError(
        f"{path} is damaged ({fault}), and the learning rates of the run follow from it: restore "
        "it, or start a new run"
    )


def to_the_end(decisions: Sequence[Decision]) -> list[Decision]:
    """Return all decisions for a run that repeats these: it takes none of its own."""
    last = decisions[-1]
    if last.step == last.steps:
        return [*decisions]
    return [*decisions, Decision(last.steps, last.steps, last.seconds)]
