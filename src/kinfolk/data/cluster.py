"""Prepare the shards of a corpus on the machines of a Ray cluster, and merge them.

    .CORPUS.shards/plan.json   number of shards, and a hash of the input and the options
    .CORPUS.shards/3-of-8      a shard that is complete; .3-of-8.part is one that is being written

The text, `out` and, where paths are relative, the working folder have to be on a file system that
all machines share.
"""

import importlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kinfolk.data.corpus import SHARD_FILE, Corpus
from kinfolk.data.disk_space import estimate_text_bytes
from kinfolk.data.documents import DocumentUnit
from kinfolk.data.merge import merge_shards
from kinfolk.data.partial_corpus import check_vacant, exclusive_output
from kinfolk.data.prepare import Files, PrepareConfig, as_paths, prepare, prepare_config
from kinfolk.data.shards import MAX_SHARDS, Shard
from kinfolk.errors import UserError
from kinfolk.files import lock_file, new_file
from kinfolk.machine import available_cpus
from kinfolk.text import Tokenizer
from kinfolk.text.train import StageProgress
from kinfolk.types import OnMessage
from kinfolk.version import __version__

PLAN = "plan.json"
SHARDS_PER_CPU = 4  # so that no machine is idle for long while another is at its last shard
# Bytes of text. A worker starts in some seconds; the loss of one costs some minutes of work.
MIN_SHARD_BYTES, MAX_SHARD_BYTES = 32 * 10**6, 10**9
RETRIES = 3  # of a shard whose worker dies
CONNECT_SECONDS = 10.0
LOCK_SECONDS = 60.0  # for a worker of a killed command to end
REPORT_SECONDS = 0.5  # between two reports of progress
OBJECT_STORE_BYTES = 128 * 2**20  # of a local Ray: it holds the tokenizer
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about GPUs, which are not used
    "RAY_DEDUP_LOGS": "0",
}


def prepare_on_ray(
    files: Files,
    tokenizer: Tokenizer | Path | str,
    out: Path | str,
    *,
    address: str | None = None,
    num_shards: int | None = None,
    workers: int | None = None,
    document: DocumentUnit = "block",
    field: str | None = None,
    column: str | int | None = None,
    holdout: float | str = 0.0,
    word_boundaries: str | None = None,
    dedup: str | None = None,
    decontaminate: Files = (),
    strict: bool = False,
    progress: StageProgress = lambda stage, done, total: None,
    on_message: OnMessage = lambda sentence: None,
) -> Corpus:
    """Tokenize text files into a corpus at `out` on a Ray cluster, and return it.

    The bytes are those of `prepare` with the same options. `address` is that of a cluster ("auto",
    "ray://HOST:10001" or "HOST:6379"); without it a Ray of this machine is started and stopped. At
    most `workers` shards are prepared at once (None: one for each CPU). A shard whose worker dies
    is prepared again; an interrupted call resumes with the shards that are complete when it is
    repeated. `progress` receives the stage, the bytes done so far and their total.
    """
    tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    options: dict[str, Any] = {
        "document": document,
        "field": field,
        "column": column,
        "holdout": holdout,
        "word_boundaries": word_boundaries,
        "dedup": dedup,
        "decontaminate": as_paths(decontaminate),
    }
    paths, out = as_paths(files), Path(out)
    _check_counts(num_shards, workers)
    home = out.absolute().with_name(f".{out.absolute().name}.shards")
    if (out / "corpus.json").exists():  # complete, unless it was killed before it removed these
        shutil.rmtree(home, ignore_errors=True)
    check_vacant(out)
    work = prepare_config(paths, tokenizer, strict=strict, on_message=on_message, **options)
    Shard(1, 1).parts(work.files, work.options)  # text without a size cannot be cut
    with (
        exclusive_output(home, out),
        _kept_after_errors(home, on_message),
        ray_session(address, workers, on_message) as ray,
    ):
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        plan = ClusterPlan.make(work, num_shards, cpus)
        plan.resume(home, given=num_shards is not None, on_message=on_message)
        task = ShardTask(home, paths, options, plan.num_shards, Path.cwd())
        _Driver(ray, task, tokenizer, workers or plan.num_shards, progress).run(work)
        shards = [task.folder(number) for number in range(1, plan.num_shards + 1)]
        merge_progress = lambda done, total: progress("merging", done, total)  # noqa: E731
        corpus = merge_shards(shards, out, progress=merge_progress, on_message=on_message)
        for shard in shards:
            shutil.rmtree(shard)
        (home / PLAN).unlink()
    return corpus


def _check_counts(num_shards: int | None, workers: int | None) -> None:
    if num_shards is not None and not 1 <= num_shards <= MAX_SHARDS:
        raise UserError(f"num_shards {num_shards}: it must be from 1 to {MAX_SHARDS:,}")
    if workers is not None and workers < 1:
        raise UserError(f"workers {workers}: it must be at least 1")


def default_num_shards(text: float, cpus: int) -> int:
    """Return the number of shards for this many bytes of text: a few for each CPU."""
    fewest, most = -(-int(text) // MAX_SHARD_BYTES), max(1, int(text) // MIN_SHARD_BYTES)
    return min(max(min(SHARDS_PER_CPU * cpus, most), fewest, 1), MAX_SHARDS)


@dataclass
class ClusterPlan:
    """How the input is cut, and a hash of what decides the bytes of the shards."""

    fingerprint: str
    num_shards: int

    @classmethod
    def make(cls, work: PrepareConfig, num_shards: int | None, cpus: int) -> "ClusterPlan":
        """Return the plan for an input."""
        facts = [
            work.fingerprint(),
            sorted(map(str, work.named)),
            [(str(file.path), file.reason) for file in work.skipped],
            [str(path) for path in work.evaluation],
        ]
        fingerprint = blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
        text = estimate_text_bytes(work.files) or 0
        return cls(fingerprint, num_shards or default_num_shards(text, cpus))

    def resume(self, home: Path, *, given: bool, on_message: OnMessage) -> None:
        """Keep the shards of an earlier call with the same input; remove those of another.

        Unless the number of shards is given it stays, also where the cluster has changed.
        """
        earlier = self._read(home / PLAN)
        if earlier is not None and earlier.fingerprint == self.fingerprint and not given:
            self.num_shards = earlier.num_shards
        if earlier == self:
            done = sum(
                (home / f"{number}-of-{self.num_shards}" / SHARD_FILE).is_file()
                for number in range(1, self.num_shards + 1)
            )
            on_message(f"resuming with {done} of {self.num_shards} shards complete")
            return
        if (home / PLAN).exists():
            on_message("starting again: text, tokenizer, options or number of shards changed")
        for folder in home.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder)
        with new_file(home / PLAN, durable=True) as file:
            json.dump(vars(self), file)

    @classmethod
    def _read(cls, file: Path) -> "ClusterPlan | None":
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        return None


@dataclass(frozen=True)
class ShardTask:
    """What a worker needs to prepare a shard, besides the tokenizer."""

    home: Path
    files: list[Path]
    options: Mapping[str, Any]
    num_shards: int
    working_folder: Path
    version: str = __version__

    def folder(self, number: int) -> Path:
        """Return the folder of a shard."""
        return self.home / f"{number}-of-{self.num_shards}"

    @property
    def has_relative_paths(self) -> bool:
        """Whether paths are relative to the working folder."""
        return not all(path.is_absolute() for path in (*self.files, *self.options["decontaminate"]))


def prepare_shard(task: ShardTask, number: int, tokenizer: Tokenizer, progress: Any) -> None:
    """Prepare one shard, in a worker of Ray; `progress` is the actor that receives reports."""
    machine = socket.gethostname()
    if task.version != __version__:
        raise UserError(
            f"kinfolk {__version__} is installed on {machine}, and {task.version} here: install "
            "one version on all machines of the cluster"
        )
    if not task.home.is_dir() or (task.has_relative_paths and not task.working_folder.is_dir()):
        missing = task.home.parent if not task.home.is_dir() else task.working_folder
        raise UserError(
            f"{missing} does not exist on {machine}: use folders on a file system that all "
            "machines of the cluster share"
        )
    out = task.folder(number)
    if (out / SHARD_FILE).is_file():  # by a worker that died after it
        return
    _wait_for_lock(out.with_name(f".{out.name}.part") / "lock")
    reported = 0.0

    def report(done: int, total: int | None) -> None:
        nonlocal reported
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            progress.report.remote(number, done)

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker, one core
    with chdir(task.working_folder) if task.has_relative_paths else nullcontext():
        shard = f"{number}/{task.num_shards}"
        prepare(task.files, tokenizer, out, shard=shard, progress=report, **task.options)


def _wait_for_lock(lock: Path) -> None:
    """Wait until the worker of a command that was killed has ended."""
    end = time.monotonic() + LOCK_SECONDS
    while lock.exists() and time.monotonic() < end:
        try:
            lock_file(lock).close()
            return
        except BlockingIOError:
            time.sleep(REPORT_SECONDS)


class ShardProgress:
    """The bytes that are read of each shard: an actor, to which workers report."""

    def __init__(self) -> None:
        self.done: dict[int, int] = {}

    def report(self, number: int, done: int) -> None:
        """Record the bytes that are read of a shard."""
        self.done[number] = done

    def read(self) -> dict[int, int]:
        """Return the bytes of all shards."""
        return self.done


@dataclass
class _Driver:
    """The tasks of all shards: started, waited for, their errors raised."""

    ray: Any
    task: ShardTask
    tokenizer: Tokenizer
    at_once: int
    progress: StageProgress
    running: dict[Any, int] = field(default_factory=dict)  # shards by the reference of their task
    read: dict[int, int] = field(default_factory=dict)  # bytes of shards

    def run(self, work: PrepareConfig) -> None:
        """Prepare the shards that are not complete."""
        numbers = range(1, self.task.num_shards + 1)
        sizes = {
            number: sum(
                (work.files[path] or 0) if part is None else part.stop - part.start
                for path, part in Shard(number, len(numbers))
                .parts(work.files, work.options)
                .items()
            )
            for number in numbers
        }
        self.read = dict.fromkeys(sizes, 0)
        waiting = []
        for number in numbers:
            if (self.task.folder(number) / SHARD_FILE).is_file():
                self.read[number] = sizes[number]
            else:
                waiting.append(number)
        if not waiting:
            return
        remote = self.ray.remote(num_cpus=1, max_retries=RETRIES)(prepare_shard)
        reports = self.ray.remote(num_cpus=0, max_restarts=-1)(ShardProgress).remote()
        task, tokenizer = self.ray.put(self.task), self.ray.put(self.tokenizer)
        waiting.reverse()
        try:
            while waiting or self.running:
                while waiting and len(self.running) < self.at_once:
                    number = waiting.pop()
                    self.running[remote.remote(task, number, tokenizer, reports)] = number
                done, _ = self.ray.wait([*self.running], timeout=REPORT_SECONDS)
                for reference in done:
                    self._finish(reference)
                    number = self.running.pop(reference)
                    self.read[number] = sizes[number]
                self._show(reports, sum(sizes.values()))
        except BaseException:
            for reference in self.running:
                with suppress(Exception):
                    self.ray.cancel(reference, force=True)
            raise
        finally:
            with suppress(Exception):
                self.ray.kill(reports)

    def _finish(self, reference: Any) -> None:
        """Raise what ended a task, in a sentence where a user can do something."""
        shard = f"{self.running[reference]}/{self.task.num_shards}"
        errors = self.ray.exceptions
        try:
            self.ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from None
            if "No module named 'kinfolk" in str(error):
                raise UserError(
                    "a machine of the cluster has no kinfolk: install the same version on all of "
                    "them, for the Python that runs Ray"
                ) from error
            raise
        except errors.RayError as error:
            first = str(error).strip().split("\n")[0]
            raise UserError(
                f"the worker of shard {shard} died {RETRIES + 1} times ({first}): check the memory "
                "and the logs of the cluster, then repeat the command"
            ) from error

    def _show(self, reports: Any, total: int) -> None:
        """Report the bytes that all workers have read."""
        with suppress(self.ray.exceptions.RayError):  # the actor may be on a machine that ended
            running = set(self.running.values())
            found = self.ray.get(reports.read.remote(), timeout=5)
            self.read |= {number: done for number, done in found.items() if number in running}
        self.progress("preparing", sum(self.read.values()), total)


@contextmanager
def _kept_after_errors(home: Path, on_message: OnMessage) -> Iterator[None]:
    """Say after an error what is kept; remove a folder without any shard."""
    try:
        yield
    except BaseException:
        shards = [*home.glob(f"*/{SHARD_FILE}"), *home.glob(".*.part/journal.json")]
        if shards:
            on_message(f"shards are kept in {home}: the same command resumes from them")
        else:
            for folder in home.iterdir():
                if folder.is_dir():
                    shutil.rmtree(folder, ignore_errors=True)
            (home / PLAN).unlink(missing_ok=True)
        raise


def check_reachable(address: str | None) -> None:
    """Raise OSError where nobody listens at HOST:PORT, which Ray would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?([^/:]+):(\d{1,5})", address or "", re.ASCII)
    if found is not None:
        socket.create_connection((found[1], int(found[2])), timeout=CONNECT_SECONDS).close()


@contextmanager
def ray_session(address: str | None, workers: int | None, on_message: OnMessage) -> Iterator[Any]:
    """Connect to a Ray cluster, or start a Ray of this machine, and stop it at the end.

    A session that this process has started before is used and left open.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise UserError("engine ray needs the package ray: pip install 'kinfolk[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        settings |= {
            "address": "local",
            "num_cpus": workers or available_cpus(),
            "num_gpus": 0,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    else:
        settings["address"] = address
    try:
        check_reachable(address)
        ray.init(**settings)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        cause = (str(error).strip() or type(error).__name__).split("\n")[0]
        if address is None:
            raise UserError(f"Ray could not be started on this machine: {cause}") from error
        raise UserError(
            f"no Ray cluster at {address} ({cause}): start one with ray start --head, or leave "
            "--address out to use this machine alone"
        ) from error
    try:
        if address is not None:
            resources = ray.cluster_resources()
            machines = sum(name.startswith("node:") and "head" not in name for name in resources)
            several = "machine" if machines == 1 else "machines"
            cpus = resources.get("CPU", 0)
            on_message(f"Ray cluster at {address}: {machines} {several}, {cpus:g} CPUs")
        yield ray
    finally:
        ray.shutdown()
