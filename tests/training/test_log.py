"""A log that was cut by a kill and resumed has the same bytes as one that was not."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from kinfolk.errors import UserError
from kinfolk.training.log import MetricsLog, read


def values(step: int) -> dict[str, Any]:
    return {"loss": 10 / step, "lr": 1e-4 * step, "losses": {"mlm": 1 / 3, "nsp": 0.1 * step}}


def go(run: Path, resume_at: int, until: int) -> None:
    with MetricsLog.open(run, resume_at) as log:
        for step in range(resume_at + 1, until + 1):
            log.write(step, values(step), {"seconds": 0.5})
        log.sync()


def test_what_is_written_reads_back_to_the_bit(tmp_path: Path) -> None:
    go(tmp_path, 0, 3)
    assert read(tmp_path) == [{"step": step, **values(step)} for step in (1, 2, 3)]
    speed = (tmp_path / "speed.jsonl").read_text().splitlines()
    assert speed[0] == '{"step": 1, "seconds": 0.5}'
    assert len(speed) == 3


@pytest.mark.parametrize("torn", ["", '{"step": 9, "lo', '{"step": 9}', "\n", "[]\n", "\0\0\n"])
def test_a_resumed_log_has_the_bytes_of_an_uninterrupted_one(tmp_path: Path, torn: str) -> None:
    go(tmp_path / "straight", 0, 12)
    go(tmp_path / "cut", 0, 8)
    for name in ("log.jsonl", "speed.jsonl"):
        with (tmp_path / "cut" / name).open("a") as stream:
            stream.write(torn)
    go(tmp_path / "cut", 5, 12)
    for name in ("log.jsonl", "speed.jsonl"):
        straight, cut = ((tmp_path / run / name).read_bytes() for run in ("straight", "cut"))
        assert straight == cut
    assert not list((tmp_path / "cut").glob(".*"))


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with MetricsLog.open(tmp_path, 0) as log:
        log.write(1, {"loss": 1.0}, {})
        assert read(tmp_path) == [{"step": 1, "loss": 1.0}]


def test_a_torn_last_line_is_not_read(tmp_path: Path) -> None:
    go(tmp_path, 0, 3)
    os.truncate(tmp_path / "log.jsonl", (tmp_path / "log.jsonl").stat().st_size - 1)
    assert [entry["step"] for entry in read(tmp_path)] == [1, 2]


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    with MetricsLog.open(tmp_path, 0) as log:
        log.write(1, {"loss": math.nan, "losses": {"a": math.inf}}, {"seconds": -math.inf})
    text = (tmp_path / "log.jsonl").read_text() + (tmp_path / "speed.jsonl").read_text()
    entries = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert entries == [
        {"step": 1, "loss": None, "losses": {"a": None}},
        {"step": 1, "seconds": None},
    ]


def test_numbers_of_other_libraries_are_written_as_pythons(tmp_path: Path) -> None:
    with MetricsLog.open(tmp_path, 0) as log:
        log.write(1, {"a": np.float32(0.1), "b": torch.tensor(0.5), "tokens": 12}, {})
    (entry,) = read(tmp_path)
    assert entry == {"step": 1, "a": float(np.float32(0.1)), "b": 0.5, "tokens": 12}
    assert isinstance(entry["tokens"], int)


def test_minus_one_forgets_everything(tmp_path: Path) -> None:
    with MetricsLog.open(tmp_path, -1) as log:
        log.write(0, {"loss": 1.0}, {})
    with MetricsLog.open(tmp_path, -1):
        assert read(tmp_path) == []


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    go(tmp_path, 0, 8)
    for events in (tmp_path / "tensorboard").iterdir():
        # Files are read in order of the second in their name, and both runs began in one.
        events.rename(events.with_name("events.out.tfevents.1.first"))
    go(tmp_path, 5, 10)
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(board.Tags()["scalars"]) == {
        "loss",
        "lr",
        "losses/mlm",
        "losses/nsp",
        "speed/seconds",
    }
    assert [event.step for event in board.Scalars("loss")] == list(range(1, 11))
    assert board.Scalars("loss")[3].value == pytest.approx(2.5)


def test_without_tensorboard_there_is_one_warning_and_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(UserWarning, match="tensorboard is not installed") as seen:
        go(tmp_path, 0, 3)
    assert len(seen) == 1
    assert len(read(tmp_path)) == 3
    assert not (tmp_path / "tensorboard").exists()


def test_a_folder_without_a_log_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no log\.jsonl"):
        read(tmp_path)


def test_a_run_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="could not be written"):
        MetricsLog.open(tmp_path / "run", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_is_a_sentence() -> None:
    full = Path("/dev/full")
    log = MetricsLog(full, full.open("a", buffering=1), full.open("a", buffering=1), None)
    with pytest.raises(UserError, match="No space left on device"), log:
        log.write(1, {"loss": 1.0}, {})
