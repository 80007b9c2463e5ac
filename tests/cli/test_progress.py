"""Progress elsewhere than on a terminal: a line every 30 seconds or 10 % of the steps."""

import pytest

from kinfolk.cli import run_progress as module
from kinfolk.cli.output import duration
from kinfolk.cli.run_progress import run_progress
from kinfolk.training.loop import Progress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1.0, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]),
        (20.0, [2, 4, 6]),  # 40 s: the first step of each half minute
    ],
)
def test_a_slow_run_is_reported_every_30_seconds(
    seconds: float,
    expected: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with run_progress("gpt2/nano", header=["header"]) as progress:
        for step in range(1, 1001 if seconds < 2 else 8):
            clock.now += seconds if seconds > 2 else 0.01
            progress.on_step(Progress(step, 1000, 5.0, None, 1234.0))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "header"
    steps = [int(line.split("step ")[1].partition("/")[0]) for line in lines[1:]]
    assert steps == expected


def test_the_time_left_follows_from_the_steps_of_this_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with run_progress("run") as progress:
        clock.now = 60.0
        progress.on_step(Progress(901, 1000, 5.0, None, 1234.0))  # resumed at step 900
    assert "  ETA 1h39m" in capsys.readouterr().err
    assert [duration(x) for x in (0.4, 12, 185, 3725)] == ["0s", "12s", "3m05s", "1h02m"]
