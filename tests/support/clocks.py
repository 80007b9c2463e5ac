"""A clock that training steps move: how long a step takes is what a test says."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from kinfolk.training import first_estimate, loop
from kinfolk.training.step import TrainStep
from kinfolk.workflows.comparison import step_timing


@dataclass
class StepClock:
    """The seconds that all steps so far took."""

    seconds_of: Callable[[TrainStep, int], float]  # of a step, by how many were done before
    now: float = 0.0
    steps: int = 0

    def __call__(self) -> float:
        return self.now

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the training loop, and what times steps, read this clock."""
        call: Any = TrainStep.__call__

        def timed_call(step: TrainStep, *arguments: Any) -> Any:
            output = call(step, *arguments)
            self.now += self.seconds_of(step, self.steps)
            self.steps += 1
            return output

        monkeypatch.setattr(TrainStep, "__call__", timed_call)
        clock = SimpleNamespace(perf_counter=self, monotonic=time.monotonic)
        for module in (loop, first_estimate, step_timing):
            monkeypatch.setattr(module, "time", clock)
