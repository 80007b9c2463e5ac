"""What a job costs is the sum of all of its starts."""

import time
from pathlib import Path

import pytest

from kinfolk.workflows.comparison.usage import EarlierUsage, JobUsage


def test_an_interrupted_start_counts(tmp_path: Path) -> None:
    path = tmp_path / "jobs" / "a.usage"
    first = JobUsage(path, "cpu")
    with pytest.raises(KeyboardInterrupt), first.measuring(energy=True):
        time.sleep(0.05)
        raise KeyboardInterrupt
    earlier = EarlierUsage.read(path)
    assert earlier.seconds == pytest.approx(first.seconds) and first.seconds >= 0.05
    assert earlier.peak_bytes > 0 and earlier.starts == 1
    second = JobUsage(path, "cpu")
    with second.measuring(energy=True):
        time.sleep(0.05)
    assert second.seconds >= earlier.seconds + 0.05
    assert second.peak_bytes >= earlier.peak_bytes
    assert second.joules is None


def test_a_start_that_is_killed_counts_up_to_its_last_report(tmp_path: Path) -> None:
    path = tmp_path / "a.usage"
    killed = JobUsage(path, "cpu")
    with killed.measuring(energy=False):
        assert EarlierUsage.read(path).starts == 1  # from the beginning
        time.sleep(0.05)
        killed.update()
        found = EarlierUsage.read(path)
        assert found.seconds >= 0.05 and found.peak_bytes > 0 and found.starts == 1
    assert JobUsage(path, "cpu").earlier.seconds >= found.seconds


@pytest.mark.parametrize("content", [None, "", "{"])
def test_a_first_start_has_nothing_before_it(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "a.usage"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert JobUsage(path, "cpu").earlier == EarlierUsage()
