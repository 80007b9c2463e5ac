"""Before a run: what it is about to take; only what is sure is refused, with what would fit."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.machine import available_memory, free_disk
from kinfolk.training.distributed import Processes
from kinfolk.training.loop import Callback
from kinfolk.training.memory import resident_bytes
from kinfolk.workflows import pretrain as workflow
from kinfolk.workflows.planning.preflight import Room, check_finetuning, check_pretraining
from kinfolk.workflows.recipe import Recipe, recipe
from support.runs import Home

LARGE = 10**15


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


def room(memory: float = LARGE, disk: float = LARGE) -> Room:
    """Return a machine with so many bytes."""
    return Room("this machine", int(memory), int(disk))


def run(home: Home, *settings: str, size: str = "gpt2/nano") -> Recipe:
    """Return the recipe of a short run."""
    train = ["train.steps=12", "train.save_every=4", "train.batch_size=8", "train.warmup=0"]
    return recipe(size, home.corpus, length=32, settings=[*train, "train.device=cpu", *settings])


def sizes(home: Home, *settings: str) -> Any:
    """Return the trace of a step of the run."""
    from kinfolk.workflows.planning.step import PlannedStep

    chosen = run(home, *settings)
    step = PlannedStep(chosen.model, chosen.objective, cuda=False, bfloat16=False)
    return step.trace(chosen.train.batch_size // chosen.train.gradient_accumulation)


def test_the_lines_have_parameters_tokens_epochs_memory_and_disk(
    home: Home, tmp_path: Path
) -> None:
    found = check_pretraining(run(home), tmp_path / "run", room=room(4e9, 2e9))
    first, second = found.lines
    assert first.startswith("gpt2/nano: 129,024 parameters, 3,072 tokens in 0.755 epochs, 0.0238")
    assert second.startswith("memory: about ")
    assert second.endswith(" MB of 4 GB; disk: 3 checkpoints of 1.57 MB of 2 GB")
    assert not found.warnings


def test_one_checkpoint_is_singular_and_none_is_said_in_words(home: Home, tmp_path: Path) -> None:
    one = run(home, "train.save_every=12")
    found = check_pretraining(one, tmp_path / "run", room=room(4e9, 2e9))
    assert found.lines[1].endswith("; disk: 1 checkpoint of 1.57 MB of 2 GB")
    (tmp_path / "run" / "checkpoints" / "step-00000012").mkdir(parents=True)
    found = check_pretraining(one, tmp_path / "run", room=room(4e9, 2e9))
    assert found.lines[1].endswith("; disk: no more checkpoints")


def test_what_a_run_refuses_is_not_named_as_a_way_out(home: Home, tmp_path: Path) -> None:
    for settings, named in (((), True), (("train.optimizer=adafactor",), False)):
        with pytest.raises(UserError) as refused:
            check_pretraining(run(home, *settings), tmp_path / "run", room=room(1e5))
        assert ("fsdp on " in str(refused.value)) == named
        assert str(refused.value).endswith("a device with more memory")


def test_weights_gradients_and_moments_that_exceed_memory_are_refused(
    home: Home, tmp_path: Path
) -> None:
    sure = sizes(home).sure
    check_pretraining(run(home, "train.gradient_accumulation=8"), tmp_path, room=room(2 * sure))
    with pytest.raises(UserError) as refused:
        check_pretraining(run(home), tmp_path / "run", room=room(0.9 * sure))
    sentence = str(refused.value)
    assert sentence.startswith("gpt2/nano: weights, gradients and moments take 2.09 MB, and this ")
    assert "use fsdp on 2 devices or a device with more memory" in sentence
    with pytest.raises(UserError, match=r"the smaller size gpt2/nano"):
        check_pretraining(run(home, size="gpt2/tiny"), tmp_path / "run", room=room(2.5e6))


def test_a_batch_whose_activations_exceed_the_memory_of_a_cpu_is_refused(
    home: Home, tmp_path: Path
) -> None:
    trace = sizes(home)
    memory = trace.weights + trace.moments + 0.8 * trace.activations
    with pytest.raises(UserError) as refused:
        check_pretraining(run(home), tmp_path / "run", room=room(memory))
    sentence = str(refused.value)
    assert sentence.startswith("gpt2/nano: a step of 8 rows keeps ")
    assert "use train.gradient_accumulation=" in sentence
    assert "or train.checkpoint_activations" in sentence
    fitting = sentence.partition("train.gradient_accumulation=")[2].partition(",")[0]
    chosen = run(home, f"train.gradient_accumulation={fitting}")
    assert check_pretraining(chosen, tmp_path / "run", room=room(memory)).lines


def test_what_may_not_fit_is_a_warning_and_never_refused(home: Home, tmp_path: Path) -> None:
    trace = sizes(home)
    enough = max(trace.sure, trace.weights + trace.moments + trace.activations)
    found = check_pretraining(run(home), tmp_path / "run", room=room(enough))
    assert len(found.warnings) == 1
    assert "if it fails, use train.gradient_accumulation=" in found.warnings[0]
    with pytest.warns(UserWarning, match="a step may take"):
        found.warn()
    # A GPU compiles its step, which keeps less than the estimate.
    sparse = run(home, "train.compile=yes")
    memory = trace.weights + trace.moments + 0.5 * trace.activations
    assert check_pretraining(sparse, tmp_path / "run", room=room(max(memory, trace.sure))).warnings


def test_processes_share_rows_and_each_has_all_weights(home: Home, tmp_path: Path) -> None:
    alone = check_pretraining(run(home), tmp_path / "run", room=room())
    shared = check_pretraining(
        run(home), tmp_path / "run", processes=Processes(0, 4, 0, 4), room=room()
    )
    megabytes = [float(found.lines[1].split()[2]) for found in (alone, shared)]
    assert megabytes[1] < megabytes[0]
    with pytest.raises(UserError, match="processes cannot share equally"):
        check_pretraining(run(home), tmp_path / "run", processes=Processes(0, 3, 0, 3))


def test_checkpoints_that_the_disk_cannot_hold_are_refused(home: Home, tmp_path: Path) -> None:
    size = sizes(home).weights + sizes(home).moments
    with pytest.raises(UserError) as refused:
        check_pretraining(run(home), tmp_path / "run", room=room(disk=2.5 * size))
    sentence = str(refused.value)
    assert sentence.startswith("the run writes 3 checkpoints of 1.57 MB, and the disk of ")
    assert "lower train.keep_checkpoints" in sentence
    few = run(home, "train.keep_checkpoints=1")
    warned = check_pretraining(few, tmp_path / "run", room=room(disk=2.5 * size))
    assert "with the best one" in warned.warnings[0]
    for step in (4, 8):  # a run that is resumed has some already
        (tmp_path / "run" / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    assert not check_pretraining(run(home), tmp_path / "run", room=room(disk=1.5 * size)).warnings


def test_a_network_that_reads_texts_has_a_lower_bound(home: Home, tmp_path: Path) -> None:
    found = check_pretraining(run(home, size="ulmfit/nano"), tmp_path / "run", room=room())
    assert found.lines[1].startswith("memory: at least ")


def test_a_refused_run_leaves_nothing_behind(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinfolk.workflows.planning.preflight.available_memory", lambda: 10**6)
    for callbacks in ([], [Callback()]):
        with pytest.raises(UserError, match="weights, gradients and moments take"):
            workflow.pretrain(run(home), tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()


def test_the_callbacks_of_the_first_process_hear_the_estimate(home: Home, tmp_path: Path) -> None:
    heard: list[str] = []

    class Listener(Callback):
        def on_message(self, message: str) -> None:
            heard.append(message)

    for processes in (Processes(), Processes(1, 2, 1, 2)):
        found = workflow.estimated(run(home), tmp_path / "run", [Listener()], processes)
        workflow.announce_estimate(found, [Listener()], processes)
        assert [line.split()[0] for line in heard] == ["gpt2/nano:", "memory:"]


def test_what_the_process_has_already_is_said_beside_the_estimate(
    home: Home, tmp_path: Path
) -> None:
    chosen = run(home)
    here = Room.here(torch.device("cpu"), tmp_path, Processes())
    resident = resident_bytes("VmRSS")
    assert resident is not None and here.held == pytest.approx(resident, rel=0.2)
    full = Room("this machine", LARGE, LARGE, held=600_000_000)
    _, line = check_pretraining(chosen, tmp_path / "run", room=full).lines
    assert " MB beside the 600 MB of the process, of 1,000.0 TB; disk: " in line
    # The weights of a model that is built are in the process, and in the estimate: not twice.
    model = chosen.model.build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Room, "here", lambda *_: Room("this machine", 10**9, LARGE, held=10**8))
        (line,) = check_finetuning(model, chosen.train, tmp_path).lines
    assert "memory: 2.09 MB beside the 99.5 MB of the process, of 1 GB, and activations" in line


def test_finetuning_that_cannot_fit_is_refused(home: Home, tmp_path: Path) -> None:
    chosen = run(home)
    model = chosen.model.build()
    line = check_finetuning(model, chosen.train, tmp_path, room=room(4e9)).lines[0]
    assert line.startswith("129,024 parameters; memory: 2.09 MB of 4 GB, and activations; disk: ")
    with pytest.raises(UserError, match=r"use a smaller model or train.optimizer=adafactor"):
        check_finetuning(model, chosen.train, tmp_path, room=room(1e6))
    for parameter in [*model.parameters()][1:]:
        parameter.requires_grad = False  # no gradients and no moments
    assert check_finetuning(model, chosen.train, tmp_path, room=room(1e6)).lines


def test_memory_is_that_of_the_machine_or_less_in_a_container(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")

    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\nSwapFree: 1000 kB\n")
    assert available_memory(tmp_path) == 6000 * 1024
    write("proc/self/cgroup", "0::/jobs/one\n")
    write("sys/fs/cgroup/jobs/one/memory.max", "max\n")
    write("sys/fs/cgroup/jobs/one/memory.current", "100\n")
    write("sys/fs/cgroup/jobs/one/memory.stat", "inactive_file 50\n")
    assert available_memory(tmp_path) == 6000 * 1024
    write("sys/fs/cgroup/jobs/memory.max", "2000000\n")  # the limit of a group above
    write("sys/fs/cgroup/jobs/memory.current", "500000\n")
    write("sys/fs/cgroup/jobs/memory.stat", "anon 7\ninactive_file 100000\n")
    assert available_memory(tmp_path) == 1_600_000
    write("proc/self/cgroup", "5:cpu,memory:/own\n4:pids:/other\n")
    write("sys/fs/cgroup/memory/own/memory.limit_in_bytes", "900000\n")
    write("sys/fs/cgroup/memory/own/memory.usage_in_bytes", "100000\n")
    write("sys/fs/cgroup/memory/own/memory.stat", "total_inactive_file 0\n")
    assert available_memory(tmp_path) == 800_000


def test_a_machine_without_linux_files_has_what_the_system_says(tmp_path: Path) -> None:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_memory(tmp_path) == pages
    assert 0 < available_memory() <= 2 * pages


def test_the_disk_of_a_folder_that_does_not_exist_is_that_of_its_parent(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        assert free_disk(tmp_path / "a" / "b") == pytest.approx(free_disk(tmp_path), rel=0.05)
