"""Whatever happens while saving, there is a whole checkpoint, and a torn one is never used."""

import copy
import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from kinfolk.errors import UserError
from kinfolk.files import checksum_fault
from kinfolk.nn.language_model import LayerStack
from kinfolk.training.checkpoint import (
    CorruptCheckpointWarning,
    checkpoint_step,
    latest_valid,
    load_training_state,
    save_checkpoint,
    save_training_state,
)
from kinfolk.training.config import Optimizer, TrainConfig
from kinfolk.training.optimizer import build_optimizer, load_optimizer_state


def fill(text: str = "weights") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(text)
        (folder / "extra").mkdir()
        (folder / "extra" / "config.json").write_text("{}")

    return write


def fail(error: BaseException) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise error

    return write


def listing(run: Path) -> list[str]:
    return sorted(os.listdir(run / "checkpoints"))  # noqa: PTH208 (the hidden ones too)


def test_a_checkpoint_is_whole_and_last_points_to_it(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, 500, fill(), keep=2)
    assert folder == tmp_path / "checkpoints" / "step-00000500"
    assert listing(tmp_path) == ["last", "step-00000500"]
    assert checksum_fault(folder) is None
    assert latest_valid(tmp_path) == folder
    sums = json.loads((folder / "checksums.json").read_text())
    assert sorted(sums) == ["extra/config.json", "model.safetensors"]
    assert sums["model.safetensors"]["size"] == 7
    link = tmp_path / "checkpoints" / "last"
    assert link.readlink() == Path("step-00000500")  # relative: the run may be moved
    assert checkpoint_step(folder) == checkpoint_step(link) == 500


def test_no_run_has_no_checkpoint(tmp_path: Path) -> None:
    assert latest_valid(tmp_path) is None
    assert latest_valid(tmp_path / "nowhere") is None


def test_a_foreign_folder_has_no_step(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="step-00000500"):
        checkpoint_step(tmp_path)


def test_the_oldest_are_pruned_and_the_links_always_resolve(tmp_path: Path) -> None:
    home = tmp_path / "checkpoints"
    for step in range(1, 8):
        save_checkpoint(tmp_path, step, fill(str(step)), keep=2, best=step == 2)
        assert (home / "last").resolve() == home / f"step-{step:08d}"
        assert step < 2 or (home / "best" / "model.safetensors").read_text() == "2"
    kept = ["step-00000002", "step-00000006", "step-00000007"]
    assert listing(tmp_path) == ["best", "last", *kept]
    save_checkpoint(tmp_path, 8, fill(), keep=1, best=True)
    assert listing(tmp_path) == ["best", "last", "step-00000008"]


def test_the_one_just_written_is_kept_when_later_ones_are_there(tmp_path: Path) -> None:
    for step in (4, 5):
        save_checkpoint(tmp_path, step, fill(), keep=2)
    folder = save_checkpoint(tmp_path, 3, fill(), keep=1)
    assert checksum_fault(folder) is None
    assert checkpoint_step(tmp_path / "checkpoints" / "last") == 3


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, fill("old"), keep=1)
    folder = save_checkpoint(tmp_path, 1, fill("new"), keep=1)
    assert (folder / "model.safetensors").read_text() == "new"
    assert checksum_fault(folder) is None
    assert listing(tmp_path) == ["last", "step-00000001"]


def test_a_kill_between_setting_aside_and_replacing_loses_nothing(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, 1, fill("old"), keep=2)
    aside = folder.with_name(".step-00000001.aside")
    folder.rename(aside)
    assert latest_valid(tmp_path) == aside
    assert checkpoint_step(aside) == 1
    save_checkpoint(tmp_path, 2, fill(), keep=2)
    assert listing(tmp_path) == ["last", "step-00000001", "step-00000002"]
    assert checksum_fault(folder) is None


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_write_that_breaks_off_leaves_no_trace(tmp_path: Path, error: BaseException) -> None:
    save_checkpoint(tmp_path, 1, fill(), keep=1)
    with pytest.raises(type(error)):
        save_checkpoint(tmp_path, 2, fail(error), keep=1)
    assert listing(tmp_path) == ["last", "step-00000001"]
    assert latest_valid(tmp_path) == tmp_path / "checkpoints" / "step-00000001"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EFBIG, "File too large"),
        SafetensorError("Error while serializing: I/O error: No space left (os error 28)"),
        Exception("No space left on device (os error 28)"),  # what `tokenizers` raises
    ],
)
def test_a_full_disk_is_a_sentence_and_the_checkpoint_before_is_whole(
    tmp_path: Path, error: Exception
) -> None:
    words = "the disk is full while saving step 500 to .*: "
    with pytest.raises(UserError, match=words + "there is no earlier checkpoint"):
        save_checkpoint(tmp_path, 500, fail(error), keep=1)
    before = save_checkpoint(tmp_path, 400, fill(), keep=1)
    with pytest.raises(UserError, match=words + "the checkpoint of step 400 is intact; free some"):
        save_checkpoint(tmp_path, 500, fail(error), keep=1)
    assert listing(tmp_path) == ["last", "step-00000400"]
    assert latest_valid(tmp_path) == before


def test_another_error_of_the_system_is_a_sentence_too(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 400, fill(), keep=1)
    error = PermissionError(errno.EACCES, "Permission denied", "vocab.txt")
    with pytest.raises(UserError, match=r"Permission denied: 'vocab.txt'.*step 400 is intact"):
        save_checkpoint(tmp_path, 500, fail(error), keep=1)


def test_a_run_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="step 1 could not be saved"):
        save_checkpoint(tmp_path / "run", 1, fill(), keep=1)


def script(text: str, run: Path) -> subprocess.CompletedProcess[str]:
    head = (
        "import os, resource, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from kinfolk.errors import UserError\n"
        "from kinfolk.training.checkpoint import save_checkpoint, save_training_state\n"
        "run = Path(sys.argv[1])\n"
    )
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", head + text, str(run)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_file_the_system_refuses_to_grow_is_a_full_disk(tmp_path: Path) -> None:
    before = save_checkpoint(tmp_path, 400, fill(), keep=1)
    text = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
writers = [
    lambda folder: save_training_state(folder, {"memory": torch.zeros(10_000)}),
    lambda folder: (folder / "a").write_bytes(bytes(10_000)),
    lambda folder: [(folder / f"{i:0200d}").touch() for i in range(50)],  # fills checksums.json
]
for write in writers:
    try:
        save_checkpoint(run, 500, write, keep=1)
    except UserError as error:
        print(error)
"""
    done = script(text, tmp_path)
    assert done.returncode == 0, done.stderr
    sentences = done.stdout.splitlines()
    assert len(sentences) == 3
    assert all("disk is full" in s and "step 400 is intact" in s for s in sentences)
    assert listing(tmp_path) == ["last", "step-00000400"]
    assert checksum_fault(before) is None


def test_what_a_killed_save_leaves_is_ignored_and_cleared_by_the_next(tmp_path: Path) -> None:
    before = save_checkpoint(tmp_path, 400, fill(), keep=2)
    text = """
def write(folder):
    (folder / "model.safetensors").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
save_checkpoint(run, 500, write, keep=2)
"""
    assert script(text, tmp_path).returncode == -signal.SIGKILL
    (tmp_path / "checkpoints" / ".last.partial").symlink_to("step-00000500")
    assert ".step-00000500.partial" in listing(tmp_path)
    assert latest_valid(tmp_path) == before
    save_checkpoint(tmp_path, 600, fill(), keep=2)
    assert listing(tmp_path) == ["last", "step-00000400", "step-00000600"]


def test_two_that_save_at_once_take_turns(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for step in (1, 2, 3):
                save_checkpoint(tmp_path, step, fill(), keep=2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    whole = latest_valid(tmp_path)
    assert whole is not None and checkpoint_step(whole) == 3


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 3)


def flip(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[2] ^= 1
    file.write_bytes(data)


TEARS: list[tuple[Callable[[Path], Any], str]] = [
    (truncate, "model.safetensors: 3 bytes where 7 were written"),
    (flip, "model.safetensors: checksum differs"),
    (lambda folder: (folder / "checksums.json").unlink(), "checksums.json: missing"),
    (lambda folder: os.truncate(folder / "checksums.json", 20), "checksums.json: unreadable"),
    (lambda folder: (folder / "checksums.json").write_text('{"a": {}}'), "unreadable"),
    (lambda folder: (folder / "checksums.json").write_bytes(b"\xff"), "unreadable"),
    (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: missing"),
    (lambda folder: (folder / "extra" / "config.json").unlink(), "extra/config.json: missing"),
]


@pytest.mark.parametrize(("tear", "fault"), TEARS)
def test_a_torn_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, tear: Callable[[Path], Any], fault: str
) -> None:
    before = save_checkpoint(tmp_path, 400, fill(), keep=3)
    torn = save_checkpoint(tmp_path, 500, fill(), keep=3)
    tear(torn)
    assert fault in str(checksum_fault(torn))
    with pytest.warns(CorruptCheckpointWarning, match=f"step-00000500 is corrupt .*{fault}"):
        assert latest_valid(tmp_path) == before
    tear(before)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert latest_valid(tmp_path) is None
    assert len(seen) == 2
    assert (
        checksum_fault(save_checkpoint(tmp_path, 500, fill(), keep=3)) is None
    )  # written again, whole


def test_a_note_beside_the_files_tears_nothing(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, 1, fill(), keep=1)
    (folder / "note.txt").write_text("the good one")
    assert checksum_fault(folder) is None


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def test_a_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {
        "step": 7,
        "best": math.inf,
        "worst": [math.nan, -math.inf, 0.1, -0.0, 1e-320],
        "pair": (0.9, None, (True, "text")),
        "named": {"3": 1, "été": "猫"},
        "numbered": {3: {"x": torch.tensor(1.5)}, 1: {}},
        "memory": {
            "view": base[1:],
            "whole": base,
            "turned": base.T,
            "spread": torch.tensor([1.0]).expand(3),
            "empty": torch.zeros(0, 4),
            "nan": torch.tensor([math.nan, -0.0, math.inf]),
            "learnt": nn.Parameter(torch.ones(2)),
        },
        "kinds": [torch.ones(2, dtype=d) for d in (torch.bfloat16, torch.int64, torch.bool)],
    }
    save_training_state(tmp_path, state)
    back = load_training_state(tmp_path)
    assert same(state, back)
    assert same(load_training_state(tmp_path), back)
    json.loads((tmp_path / "training.json").read_text(), parse_constant=pytest.fail)


def test_a_state_without_tensors_comes_back(tmp_path: Path) -> None:
    save_training_state(tmp_path, {"step": 1})
    assert load_training_state(tmp_path) == {"step": 1}


def test_a_read_state_does_not_lean_on_its_file(tmp_path: Path) -> None:
    save_training_state(tmp_path, {"memory": torch.ones(1000)})
    memory = load_training_state(tmp_path)["memory"]
    memory.add_(1)
    os.truncate(tmp_path / "training.safetensors", 0)
    assert memory.sum() == 2000


def test_what_cannot_be_written_safely_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="loop/seen: a set cannot be written"):
        save_training_state(tmp_path, {"loop": {"seen": {1}}})


@pytest.mark.parametrize("gone", ["training.json", "training.safetensors"])
def test_a_folder_that_cannot_be_resumed_is_a_sentence(tmp_path: Path, gone: str) -> None:
    save_training_state(tmp_path, {"step": 1})
    (tmp_path / gone).unlink()
    with pytest.raises(UserError, match=f"{gone} is missing"):
        load_training_state(tmp_path)


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = LayerStack([nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_an_optimiser_goes_on_from_the_disk_to_the_bit(tmp_path: Path, name: Optimizer) -> None:
    torch.manual_seed(0)
    model: nn.Module = Stacked()
    x = torch.randn(4, 7)

    def build(model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, TrainConfig(optimizer=name, lr=1e-2, weight_decay=0.1))

    def step(model: nn.Module, built: torch.optim.Optimizer) -> None:
        built.zero_grad()
        model(x).square().sum().backward()
        built.step()

    built = build(model)
    for _ in range(3):
        step(model, built)
    state = built.state_dict()
    save_training_state(tmp_path, {"step": 3, "optimiser": state})
    back = load_training_state(tmp_path)["optimiser"]
    assert same(state, back)

    twin = copy.deepcopy(model)
    resumed = build(twin)
    assert load_optimizer_state(resumed, back)
    for _ in range(2):
        step(model, built)
        step(twin, resumed)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert same(built.state_dict(), resumed.state_dict())


def test_moments_come_from_the_file_and_settings_from_the_recipe() -> None:
    model = nn.Linear(3, 2)
    saved = build_optimizer(model, TrainConfig(weight_decay=0.1))
    model(torch.ones(1, 3)).sum().backward()
    saved.step()
    state = saved.state_dict()
    built = build_optimizer(model, TrainConfig(weight_decay=0.3))
    assert load_optimizer_state(built, state)
    assert built.param_groups[0]["weight_decay"] == 0.3
    assert same(built.state_dict()["state"], state["state"])
    other = build_optimizer(nn.Linear(4, 2), TrainConfig())
    assert not load_optimizer_state(other, state), "moments of another shape"
    assert not load_optimizer_state(built, {"state": {7: state["state"][0]}}), "no such parameter"
