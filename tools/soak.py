"""Kill trainings and preparations again and again, resume them, and compare with the uninterrupted.

Every family with each of its objectives, fine-tuning, `prepare` and the training of a tokenizer run
in a process of two threads each, which is killed by SIGKILL and started again, several times in a
row; the last process runs to its end. What it leaves must equal, to the bit, what a process left
that nobody killed. Half of the kills hit at an access to a file of the output, whose number is
drawn; the others at a moment. What is run and killed is a function of the seed; what a moment hits
depends on the speed of the machine.

    python tools/soak.py --kills 100 --seed 0 --json soak.json
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PRELOADED = (
    *("kinfolk.data.prepare", "kinfolk.workflows.pretrain"),
    *("kinfolk.workflows.finetuning.finetune", "kinfolk.workflows.verify_resume"),
    *("torch.utils.tensorboard", "torch._dynamo"),
)
FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link"}
GROUP_CHARS, GROUPS = 2000, 2  # of a preparation: little text has many entries in its journal
TRAIN = ("steps=6", "save_every=2", "eval_every=3", "eval_batches=1", "batch_size=4", "warmup=1")
RUNTIME = ("device=cpu", "keep_checkpoints=2")
LENGTH = 32
LINKS = ("last", "best")  # to checkpoints
SHORTER = 0.6  # what a resumed process has left to do, about
PATIENCE = 300  # seconds that a process may take
THREADS = 2  # what one thread adds up in a fixed order, several may not
# Each way of fine-tuning: heads, features of a network, text, cross-view training.
FINETUNED = ("bert", "gpt2", "t5", "ulmfit", "bilstm", "elmo", "cove", "cvt")
OWN_TOKENIZER = ("bilstm", "cvt")  # words, from the labelled rows


@dataclass(frozen=True)
class Job:
    """Something that is run into a folder: a kind, and what is run."""

    kind: str  # pretrain, finetune, prepare or tokenizer
    name: str  # family, corpus or text
    objective: str = ""

    @property
    def title(self) -> str:
        """The words that the table has."""
        return " ".join(filter(None, (self.kind, self.name, self.objective)))


@dataclass(frozen=True)
class Kill:
    """When a process is killed: at an access to a file of its output, or at a moment."""

    access: int | None = None  # counts from 1
    seconds: float | None = None  # after its start


@dataclass
class Result:
    """What became of a job."""

    job: Job
    seconds: float = 0.0
    hits: Counter[str] = field(default_factory=Counter)
    fault: str = ""

    @property
    def kills(self) -> int:
        """The number of kills."""
        return self.hits.total()


def main() -> None:
    """Run all jobs; exit with 1 if a run is lost, unreadable or different."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=100, help="number of SIGKILLs (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is killed, and when")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--only", default="", help="only jobs whose title has this text")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kinfolk-soak-") as folder:
        results = soak(Path(folder), options.kills, options.seed, options.only)
    report(results, time.monotonic() - began)
    if options.json is not None:
        values = {
            "kills": sum(result.kills for result in results),
            "seed": options.seed,
            "seconds": round(time.monotonic() - began, 1),
            "jobs": [
                {
                    "job": result.job.title,
                    "kills": result.kills,
                    "hits": dict(result.hits),
                    "seconds": round(result.seconds, 1),
                    "fault": result.fault,
                }
                for result in results
            ],
        }
        options.json.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(result.fault for result in results))


def soak(home: Path, kills: int, seed: int, only: str) -> list[Result]:
    """Share the kills among all jobs; return what became of each."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([*PRELOADED])
    write_data(home)
    chosen = [job for job in jobs() if only in job.title]
    rng = random.Random(seed)
    shares = Counter(rng.sample(chosen, kills % len(chosen)))
    results = []
    for job in chosen:
        count = kills // len(chosen) + shares[job]
        if not count:
            continue
        result = run_job(server, job, home, count, random.Random(f"{seed} {job.title}"))
        print(row(result), flush=True)
        results.append(result)
    return results


def jobs() -> Iterator[Job]:
    """Yield every family with each objective, fine-tuning, preparing and a tokenizer."""
    from kinfolk.families import index

    for name, entry in index().items():
        for objective in entry.objectives:
            yield Job("pretrain", name, objective)
    for name in FINETUNED:
        yield Job("finetune", name)
    yield Job("prepare", "text")
    yield Job("tokenizer", "text")


def write_data(home: Path) -> None:
    """Write the text, the tokenizer, the corpora and the labelled rows of all jobs."""
    from kinfolk.text import train_tokenizer
    from kinfolk.workflows.verify_resume import write_demo_corpus

    for name in ("texts", "pairs"):
        (home / name).mkdir()
        write_demo_corpus(home / name, pairs=name == "pairs")
    text = (home / "texts" / "text.txt").read_text(encoding="utf-8")
    train_tokenizer([text], kind="bpe", vocab_size=420).save(home / "tokenizer")
    lines = [f"the {n % 7} {word} thing\t{word}\n" for n in range(24) for word in ("good", "bad")]
    (home / "rows.tsv").write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    unlabelled = [f"a {word} thing number {n}\n" for n in range(24) for word in ("new", "old")]
    (home / "unlabelled.txt").write_text("".join(unlabelled), encoding="utf-8")


def run_job(server: Any, job: Job, home: Path, kills: int, rng: random.Random) -> Result:
    """Run a job without a kill and with kills, and compare what both leave."""
    result, began = Result(job), time.monotonic()
    whole, out = home / "whole" / "out", home / "killed" / "out"
    try:
        code, seconds, accesses = run_process(server, job, home, whole, Kill())
        if code:
            raise RuntimeError(f"uninterrupted: {last_words(whole)}")
        fresh = True
        while result.kills < kills:
            kill = draw_kill(rng, accesses, seconds, fresh)
            code, _, _ = run_process(server, job, home, out, kill)
            if code == -signal.SIGKILL:
                result.hits[place(out, kill)] += 1
                fresh = False
                continue
            if code:
                raise RuntimeError(f"after {result.kills} kills: {last_words(out)}")
            check_equal(job, whole, out)  # it ended before the kill
            shutil.rmtree(out.parent)
            fresh = True
        code, _, _ = run_process(server, job, home, out, Kill())
        if code:
            raise RuntimeError(f"after the last kill: {last_words(out)}")
        check_equal(job, whole, out)
    except RuntimeError as error:
        result.fault = str(error)
    for folder in (whole.parent, out.parent):
        shutil.rmtree(folder, ignore_errors=True)
    result.seconds = time.monotonic() - began
    return result


def draw_kill(rng: random.Random, accesses: int, seconds: float, fresh: bool) -> Kill:
    """Draw when the next process is killed; one that resumes has less to do."""
    part = rng.random() * (1.0 if fresh else SHORTER)
    if rng.random() < 0.5:
        return Kill(access=max(1, round(part * accesses)))
    return Kill(seconds=part * seconds)


def run_process(
    server: Any, job: Job, home: Path, out: Path, kill: Kill
) -> tuple[int | None, float, int]:
    """Run a job in a process; return its exit code, its seconds and its accesses to its output."""
    out.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    process = server.Process(target=child, args=(job, home, out, kill.access))
    process.start()
    process.join(PATIENCE if kill.seconds is None else kill.seconds)
    if process.is_alive():
        process.kill()
        process.join()
        if kill.seconds is None:
            raise RuntimeError(f"no end after {PATIENCE} seconds: {last_words(out)}")
    counted = out.parent / "accesses"
    accesses = int(counted.read_text()) if counted.is_file() else 0
    return process.exitcode, time.monotonic() - began, accesses


def child(job: Job, home: Path, out: Path, access: int | None) -> None:
    """Start or resume a job, with its output in a file; die at an access to a file."""
    import torch

    multiprocessing.set_start_method(None, force=True)  # workers as in any process
    torch.set_num_threads(THREADS)
    output = os.open(out.parent / "output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    place = os.open(out.parent / "place", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    own, count, inside = os.getpid(), 0, str(out.parent)

    def count_access(event: str, arguments: Sequence[Any]) -> None:
        nonlocal count
        if event not in FILE_EVENTS or os.getpid() != own or not arguments:
            return
        path = arguments[0]
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(inside):
            count += 1
            if count == access:
                os.write(place, os.fspath(path).removeprefix(inside).encode())
                os.kill(own, signal.SIGKILL)

    sys.addaudithook(count_access)
    ACTIONS[job.kind](job, home, out)
    (out.parent / "accesses").write_text(str(count))


def pretrain_job(job: Job, home: Path, out: Path) -> None:
    """Start a run of pretraining, or resume it."""
    from kinfolk.workflows.pretrain import pretrain
    from kinfolk.workflows.recipe import recipe

    if resumes(out):
        return
    corpus = home / ("pairs" if job.objective == "pairs" else "texts") / "corpus"
    counts = job.name == "ngram"
    settings = [f"train.{text}" for text in (() if counts else TRAIN)] + ["train.device=cpu"]
    length = None if counts else LENGTH
    chosen = recipe(
        f"{job.name}/nano", corpus, objective=job.objective, length=length, settings=settings
    )
    pretrain(chosen, out)


def finetune_job(job: Job, home: Path, out: Path) -> None:
    """Start a run of fine-tuning, or resume it."""
    from kinfolk.workflows.finetuning.finetune import finetune
    from kinfolk.workflows.finetuning.recipe import parse_initial_weights

    if resumes(out):
        return
    tokenizer = None if job.name in OWN_TOKENIZER else home / "tokenizer"
    weights = parse_initial_weights(f"{job.name}/nano", tokenizer=tokenizer)
    settings = [f"train.{text}" for text in (*TRAIN, *RUNTIME)]
    rows, text = home / "rows.tsv", [home / "unlabelled.txt"] if job.name == "cvt" else None
    finetune(weights, rows, out, dev=rows, unlabelled=text, settings=settings)


def resumes(out: Path) -> bool:
    """Resume a run if there is one; a run that is complete is."""
    from kinfolk.errors import UserError
    from kinfolk.workflows.pretrain import resume

    if not (out / "recipe.json").is_file():
        return False
    try:
        resume(out)
    except UserError as error:
        if " is complete (" not in str(error):
            raise
    return True


def prepare_job(job: Job, home: Path, out: Path) -> None:
    """Prepare a corpus, or go on with that, in small steps."""
    from kinfolk.data import prepare as module
    from kinfolk.text import Tokenizer

    if (out / "corpus.json").is_file():
        return
    module.GROUP_CHARS, module.GROUPS_PER_CHECKPOINT = GROUP_CHARS, GROUPS
    tokenizer = Tokenizer.load(home / "tokenizer")
    module.prepare([home / "texts" / "text.txt"], tokenizer, out, holdout=0.2, dedup="exact")


def tokenizer_job(job: Job, home: Path, out: Path) -> None:
    """Train a tokenizer by the command."""
    from kinfolk.cli import main as kinfolk

    if out.exists():
        return
    sys.argv = [
        "kinfolk",
        "tokenizer",
        "train",
        str(home / "texts" / "text.txt"),
        "--vocab-size",
        "420",
    ]
    sys.argv += ["-o", str(out)]
    kinfolk()


ACTIONS: dict[str, Callable[[Job, Path, Path], None]] = {
    "pretrain": pretrain_job,
    "finetune": finetune_job,
    "prepare": prepare_job,
    "tokenizer": tokenizer_job,
}


def check_equal(job: Job, whole: Path, out: Path) -> None:
    """Raise RuntimeError where two outputs differ in a bit."""
    from kinfolk.training.run_differences import differences

    if job.kind in ("pretrain", "finetune"):
        found = differences(out, whole)
        lacking = [name for name in ("report.html", "log.jsonl") if not (out / name).is_file()]
        links = [
            [(run / "checkpoints" / name).readlink() for name in LINKS] for run in (out, whole)
        ]
        if links[0] != links[1]:
            found["links"] = f"links to {links[0]} and {links[1]}"
        if found or lacking:
            raise RuntimeError("; ".join([*found.values(), *(f"no {name}" for name in lacking)]))
    elif files(out) != files(whole):
        raise RuntimeError("the files differ")
    left = {path.name for path in out.parent.iterdir()} - {"out", "output", "place", "accesses"}
    if left:
        raise RuntimeError(f"left beside the output: {', '.join(sorted(left))}")


def files(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def place(out: Path, kill: Kill) -> str:
    """Return what a kill hit, by the file that was accessed or by what the process left."""
    accessed = (out.parent / "place").read_text(encoding="utf-8") if kill.access else ""
    if "checkpoints" in accessed or any(out.glob("checkpoints/.*.partial")):
        return "checkpoint"
    if any(name in accessed for name in ("log.jsonl", "speed.jsonl", "tensorboard")):
        return "log"
    if (out / "report.html").exists() or any(
        name in accessed for name in ("report.html", "scores.json")
    ):
        return "report"
    if not out.exists():
        return "output in the making" if any(out.parent.glob(".out.*")) else "before the output"
    if accessed:
        return "other file"
    return "training" if (out / "log.jsonl").exists() else "start"


def last_words(out: Path) -> str:
    """Return the last line that a process printed."""
    lines = (out.parent / "output").read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "no output"


def row(result: Result) -> str:
    """Return a line of the table."""
    hits = ", ".join(f"{name} {count}" for name, count in result.hits.most_common())
    state = f"FAILED: {result.fault}" if result.fault else "equal"
    return f"{result.job.title:32}{result.kills:>6}{result.seconds:>9.1f}  {state:8}{hits}"


def report(results: Sequence[Result], seconds: float) -> None:
    """Print the sums, by what was hit."""
    hits: Counter[str] = sum((result.hits for result in results), Counter())
    failed = [result.job.title for result in results if result.fault]
    print(f"\n{hits.total()} kills of {len(results)} jobs in {seconds / 60:.1f} minutes:")
    for name, count in hits.most_common():
        print(f"{count:>6}  {name}")
    print(f"lost or different: {', '.join(failed)}" if failed else "all equal to the bit")


if __name__ == "__main__":
    main()
