"""A corpus from a Ray cluster has the bytes of one machine; what is done is kept.

The fast tests use a stand-in that runs the tasks in this process. Ray itself, with two workers, is
used by the slow ones, which are skipped where it is not installed.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinfolk.data import cluster
from kinfolk.data.cluster import default_num_shards, prepare_on_ray
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.text import train_tokenizer
from support import ray_workers
from support.runs import Kinfolk, one_sentence, tree
from support.runs import text as made_up

ROOT = Path(__file__).parents[2]
BYTE = train_tokenizer([], kind="byte", vocab_size=0)
OPTIONS = ray_workers.OPTIONS
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed (240 MB): pip install 'kinfolk[ray]'",
)


class TaskError(Exception):
    """What Ray raises for an error in a task."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class InProcess:
    """Ray's functions that are used, with every task run in this process when it is waited for."""

    exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=OSError)

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.cancelled: list[Any] = []
        self.open = False

    def is_initialized(self) -> bool:
        return self.open

    def init(self, **settings: Any) -> None:
        if settings["address"] == "auto":
            raise ConnectionError("Could not find any running Ray instance.\nSecond line.")
        self.settings, self.open = settings, True

    def shutdown(self) -> None:
        self.open = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **settings: Any) -> Callable[[Any], Any]:
        def wrap(target: Any) -> Any:
            if isinstance(target, type):
                return SimpleNamespace(remote=lambda: Actor(target()))
            return SimpleNamespace(remote=lambda *args: Reference(lambda: target(*args)))

        return wrap

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return references[:1], references[1:]

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        return reference() if isinstance(reference, Reference) else reference

    def cancel(self, reference: Any, *, force: bool) -> None:
        self.cancelled.append(reference)

    def kill(self, actor: Any) -> None:
        pass


class Reference:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __call__(self) -> Any:
        try:
            return self.call()
        except Exception as error:
            raise error if isinstance(error, OSError) else TaskError(error) from None


class Actor:
    def __init__(self, instance: Any) -> None:
        for name in ("report", "read"):
            setattr(self, name, SimpleNamespace(remote=getattr(instance, name)))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    stand_in = InProcess()
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return stand_in


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text(made_up(60), encoding="utf-8")
    (folder / "b.txt").write_text(made_up(50, seed=1) + made_up(5), encoding="utf-8")
    (folder / "c.png").write_bytes(b"\0")
    (tmp_path / "eval.txt").write_text(made_up(3, seed=1), encoding="utf-8")
    return folder


def one_machine(text: Path, **options: Any) -> dict[str, bytes]:
    out = text.parent / "one"
    prepare([text], BYTE, out, **options)
    return tree(out)


@pytest.mark.parametrize("dedup", [None, "exact", "near"])
def test_the_bytes_are_those_of_one_machine(ray: InProcess, text: Path, dedup: str | None) -> None:
    options = {"holdout": "30%", "dedup": dedup, "decontaminate": text.parent / "eval.txt"}
    messages: list[str] = []
    prepare_on_ray(
        [text], BYTE, text.parent / "ray", num_shards=4, on_message=messages.append, **options
    )
    assert tree(text.parent / "ray") == one_machine(text, **options)
    assert {path.name for path in text.parent.iterdir()} == {"text", "eval.txt", "ray", "one"}
    assert any(line.startswith("skipped 1 file") for line in messages)
    assert ray.settings["include_dashboard"] is ray.settings["log_to_driver"] is False
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not ray.open


def test_relative_paths_are_those_of_the_working_folder_of_the_command(
    ray: InProcess, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text.parent)
    prepare(["text"], BYTE, "one")
    moved, original = text.parent / "elsewhere", cluster.prepare_shard
    moved.mkdir()

    def elsewhere(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.chdir(moved)
            original(*arguments)

    monkeypatch.setattr(cluster, "prepare_shard", elsewhere)
    prepare_on_ray(["text"], BYTE, "ray", num_shards=2)
    assert tree(Path("ray")) == tree(Path("one"))


def stop_before(number: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[int]:
    """Raise an error in place of a shard; return the list of those that are prepared."""
    prepared: list[int] = []
    original = cluster.prepare_shard

    def task(work: Any, shard: int, *others: Any) -> None:
        if shard == number:
            raise error
        prepared.append(shard)
        original(work, shard, *others)

    monkeypatch.setattr(cluster, "prepare_shard", task)
    return prepared


def test_an_interrupted_command_resumes_with_the_shards_that_are_complete(
    ray: InProcess, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    call = {"num_shards": 4, "on_message": messages.append, **OPTIONS}
    out = text.parent / "ray"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_before(3, patch, KeyboardInterrupt())
        prepare_on_ray([text], BYTE, out, **call)
    assert not out.exists()
    assert len(ray.cancelled) == 2  # shards 3 and 4
    assert messages[-1].endswith(".ray.shards: the same command resumes from them")
    prepared = stop_before(0, monkeypatch, KeyboardInterrupt())
    # The number of shards stays, whatever the cluster has by now.
    prepare_on_ray([text], BYTE, out, **{**call, "num_shards": None})
    assert prepared == [3, 4]
    assert "resuming with 2 of 4 shards complete" in messages
    assert tree(out) == one_machine(text, **OPTIONS)


@pytest.mark.parametrize("change", ["option", "text", "shards"])
def test_shards_of_another_input_are_not_merged(
    ray: InProcess, text: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    out, options = text.parent / "ray", dict(OPTIONS)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_before(2, patch, KeyboardInterrupt())
        prepare_on_ray([text], BYTE, out, num_shards=3, **options)
    if change == "option":
        options["holdout"] = 0.5
    elif change == "text":
        (text / "a.txt").write_text(made_up(20), encoding="utf-8")
    messages: list[str] = []
    number = 2 if change == "shards" else None
    prepare_on_ray([text], BYTE, out, num_shards=number, **options, on_message=messages.append)
    assert any(line.startswith("starting again: ") for line in messages)
    assert tree(out) == one_machine(text, **options)


def test_an_error_of_a_worker_is_its_sentence_and_leaves_nothing_without_a_shard(
    ray: InProcess, text: Path
) -> None:
    (text / "a.txt").write_bytes(b"\xff" * 3000)
    with pytest.raises(UserError, match=r"a\.txt.* is not UTF-8") as raised:
        prepare_on_ray([text], BYTE, text.parent / "ray", num_shards=2, workers=1)
    assert "\n" not in str(raised.value)
    assert {path.name for path in text.parent.iterdir()} == {"text", "eval.txt"}


def test_a_worker_that_keeps_dying_is_one_sentence(
    ray: InProcess, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_before(2, monkeypatch, OSError("The worker died unexpectedly.\nMore."))
    with pytest.raises(UserError, match=r"^the worker of shard 2/2 died 4 times \(The worker died"):
        prepare_on_ray([text], BYTE, text.parent / "ray", num_shards=2)


def test_workers_of_another_version_or_without_the_folders_are_refused(
    ray: InProcess, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = cluster.prepare_shard
    task = cluster.ShardTask(Path("/nowhere/.c.shards"), [], {"decontaminate": []}, 1, Path("/"))
    with pytest.raises(UserError, match=r"^/nowhere does not exist on .* machines .* share"):
        original(task, 1, BYTE, None)
    monkeypatch.setattr(cluster, "__version__", "0.0.0")
    with pytest.raises(UserError, match=r"^kinfolk 0\.0\.0 is installed on .* install one version"):
        original(task, 1, BYTE, None)
    lost = ModuleNotFoundError("No module named 'kinfolk'")
    stop_before(1, monkeypatch, lost)
    with pytest.raises(UserError, match=r"^a machine of the cluster has no kinfolk: install"):
        prepare_on_ray([text], BYTE, text.parent / "ray", num_shards=1)


def test_the_number_of_shards_follows_the_cluster_and_the_text() -> None:
    assert default_num_shards(10_000, 64) == 1  # not worth the start of a worker
    assert default_num_shards(64e9, 16) == 64  # 4 for each CPU
    assert default_num_shards(1e9, 64) == 31  # of 32 MB
    assert default_num_shards(5e12, 64) == 5000  # of 1 GB


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--engine", "dask"], "--engine must be local or ray (got dask)"),
        (["--engine", "ray", "--shard", "1/2"], "--engine ray prepares all shards"),
        (["--address", "auto"], "--address applies to a Ray cluster: add --engine ray"),
        (["--num-shards", "3"], "--num-shards applies to a Ray cluster: add --engine ray"),
        (["--engine", "ray", "--address", "auto"], "no Ray cluster at auto (Could not find any "),
        (
            ["--engine", "ray", "--address", "ray://127.0.0.1:1"],
            "no Ray cluster at ray://127.0.0.1:1",
        ),
    ],
)
def test_wrong_options_are_one_sentence(
    ray: InProcess, kinfolk: Kinfolk, text: Path, options: list[str], sentence: str
) -> None:
    BYTE.save(text.parent / "tok")
    said = kinfolk(
        *("prepare", text, "--tokenizer", text.parent / "tok", "-o", text.parent / "c"), *options
    )
    assert sentence in one_sentence(said)
    assert not [path for path in text.parent.iterdir() if path.name.startswith(".")]


def test_without_ray_a_sentence_says_how_to_install_it(
    kinfolk: Kinfolk, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    BYTE.save(text.parent / "tok")
    said = kinfolk(
        *("prepare", text, "--tokenizer", text.parent / "tok", "-o", text.parent / "c"),
        *("--engine", "ray"),
    )
    assert one_sentence(said) == ("engine ray needs the package ray: pip install 'kinfolk[ray]'")


class Marked:
    """Processes that are found by a variable of their environment."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "KINFOLK_TEST_MARK": self.mark,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
        }

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, *map(str, arguments)]
        return subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    def running(self) -> list[str]:
        found = []
        for process in Path("/proc").iterdir():
            try:
                if self.mark.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text(encoding="utf-8"))
            except OSError:  # no process, or one that has ended
                continue
        return [command for command in found if command]

    def all_ended(self, seconds: float = 120) -> bool:
        end = time.monotonic() + seconds
        while self.running() and time.monotonic() < end:
            time.sleep(0.2)
        return not self.running()


@pytest.fixture
def marked() -> Iterator[Marked]:
    processes = Marked()
    yield processes
    assert processes.all_ended(), processes.running()


def script(kind: str, text: Path) -> tuple[object, ...]:
    return ray_workers.__file__, kind, text, text.parent / "ray"


@needs_ray
@pytest.mark.slow
def test_ray_gives_the_bytes_of_one_machine_and_the_progress_of_its_workers(
    text: Path, marked: Marked
) -> None:
    tokenizer = text.parent / "tok"
    BYTE.save(tokenizer)
    eval_file = text.parent / "eval.txt"
    code, out, err = marked.run(
        *("-W", "error::DeprecationWarning:kinfolk", "-m", "kinfolk", "prepare", text),
        *("--tokenizer", tokenizer, "--holdout", "0.3", "--dedup", "near"),
        *("--decontaminate", eval_file, "--engine", "ray", "--workers", "2"),
        *("--num-shards", "3", "-o", text.parent / "ray"),
    )
    assert (code, "Traceback" in err) == (0, False), err
    assert out.startswith("corpus: ")
    assert not [line for line in err.splitlines() if "ray" in line.lower().replace(".ray", "")], err
    one = one_machine(text, holdout=0.3, dedup="near", decontaminate=eval_file)
    assert tree(text.parent / "ray") == one


@needs_ray
@pytest.mark.slow
def test_ray_prepares_the_shard_of_a_dead_worker_again(text: Path, marked: Marked) -> None:
    code, out, err = marked.run(*script("dies_once", text))
    assert code == 0, err
    assert (text.parent / "died").exists()
    size = sum(file.stat().st_size for file in text.glob("*.txt"))
    assert f"'preparing': ({size}, {size})" in out
    assert tree(text.parent / "ray") == one_machine(text, **OPTIONS)


@needs_ray
@pytest.mark.slow
def test_ray_says_in_a_sentence_that_a_worker_keeps_dying(text: Path, marked: Marked) -> None:
    code, _, err = marked.run(*script("dies", text))
    assert code == 1
    assert err.splitlines()[-1].startswith("error: the worker of shard 2/3 died 4 times (")
    assert "Traceback" not in err


@needs_ray
@pytest.mark.slow
def test_a_killed_driver_resumes_with_the_shards_that_are_complete(
    text: Path, marked: Marked
) -> None:
    driver = marked.start(*script("waits", text))
    shard, end = text.parent / ".ray.shards" / "1-of-3" / "shard.json", time.monotonic() + 120
    while not shard.is_file() and time.monotonic() < end:
        assert driver.poll() is None
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.communicate(timeout=60)
    code, out, err = marked.run(*script("well", text))
    assert code == 0, err
    assert "resuming with 1 of 3 shards complete" in out
    assert tree(text.parent / "ray") == one_machine(text, **OPTIONS)
