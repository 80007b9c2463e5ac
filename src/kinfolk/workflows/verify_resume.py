"""The proof that a killed run resumes exactly: killed and left alone, compared to the bit.

`python -m kinfolk.workflows.verify_resume FOLDER STEP` trains FOLDER/killed, each time in a child
process: the first is killed after STEP, the second resumes it. A third trains FOLDER/whole.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from kinfolk.config import as_settings, read_json, type_name
from kinfolk.data import demo_text
from kinfolk.data.documents import read_documents
from kinfolk.data.parallel_text import ParallelText, write_parallel_corpus
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.extensions import import_extensions
from kinfolk.families import check_name, family, index
from kinfolk.text import train_tokenizer
from kinfolk.training import checkpoint
from kinfolk.training.loop import Callback, Progress
from kinfolk.training.run import log_interval
from kinfolk.training.run_differences import PARTS, counts, differences, digests
from kinfolk.training.workload import select_device
from kinfolk.workflows.comparison.step_timing import end_with_parent
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.folders import model_or_family
from kinfolk.workflows.prefix_tuning.recipe import PrefixRecipe
from kinfolk.workflows.pretrain import resume
from kinfolk.workflows.processes import ERROR_LINES, child_environment
from kinfolk.workflows.recipe import CorpusSource, Recipe, finalize, recipe

STEPS = 24
MIN_PROOF_STEPS = 4  # for a checkpoint, a step after it to be killed at, and one more
DOCUMENTS = 100  # of the text that every machine has
PROOF_VOCAB_SIZE = 512
LABELLED_LINES = 64  # of the labelled rows that a family without a pretraining objective learns
UNLABELLED_LINES = 256
MIN_LINE_WORDS = 4
PROOF_HOLDOUT = 0.1
KILLED, WHOLE = "killed", "whole"  # folders of the two runs
IMPORTED = ("torch.utils.tensorboard", "torch._dynamo")  # once, and not by each child process
NO_DETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")
CUDA_NOTE = (
    "CUDA: shown for this GPU, this driver and this torch, with deterministic algorithms where "
    "torch has them; kinfolk pretrain and finetune do not ask for these, so that their runs on "
    "CUDA may differ by rounding after a resume"
)


@dataclass(frozen=True)
class ComparedPart:
    """A part of both runs: its digests, and the first difference where there is one."""

    name: str  # one of PARTS
    size: str  # `28 tensors`
    whole: str  # SHA-256 of the run that was left alone
    resumed: str  # SHA-256 of the run that was killed and resumed
    difference: str | None = None


@dataclass(frozen=True, kw_only=True)
class ResumeProof:
    """What was run, where it was killed, and whether both runs are equal to the bit."""

    name: str  # family and size, or the folder of the run
    objective: str
    device: str
    steps: int
    save_every: int
    killed_at: int
    resumed_from: int  # step of the newest checkpoint; 0 where there was none
    losses: tuple[float, float]  # the last ones: left alone, resumed
    parts: tuple[ComparedPart, ...]
    notes: tuple[str, ...] = ()  # what it does not promise

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def differences(self) -> list[str]:
        """The first difference of each part that differs."""
        return [part.difference for part in self.parts if part.difference is not None]


def verify_resume(
    model: Path | str,
    *,
    corpus: CorpusSource | None = None,
    steps: int | None = None,
    objective: str | None = None,
    device: str | None = None,
    on_message: Callable[[str], None] = lambda message: None,
) -> ResumeProof:
    """Kill a run, resume it and compare it with a run that was left alone, to the bit.

    `verify_resume("gpt2/nano", steps=12).equal`

    The model is FAMILY[/SIZE], trained on the corpus or on Python's documentation, or the folder of
    a run of pretraining or fine-tuning, whose recipe and data are used. A family without a
    pretraining objective is fine-tuned to tag words of Python's documentation. Both runs are made
    in a temporary folder; nothing is written to the folder of a run.
    """
    with tempfile.TemporaryDirectory(prefix="kinfolk-verify-") as name:
        folder = Path(name)
        base, source = source_recipe(model, corpus, objective, folder)
        chosen, killed_at = verification_recipe(base, steps, device)
        for run in (KILLED, WHOLE):
            write_run(chosen, source, folder / run)
        events = train_in_processes(folder, killed_at, chosen.train.steps, on_message)
        return make_proof(chosen, str(model), folder, killed_at, events)


def source_recipe(
    model: Path | str, corpus: CorpusSource | None, objective: str | None, folder: Path
) -> tuple[Recipe | FineTuneRecipe, Path]:
    """Return the recipe of a run, or of a family on the text of every machine, and its folder."""
    name = str(model)
    given = corpus is not None or objective is not None
    if name.partition("/")[0] not in index():
        run = Path(model_or_family(name))
        return run_recipe(run, given=given), run
    check_name(name)
    if not index()[name.partition("/")[0]].objectives:
        if given:
            raise UserError(
                f"{name} has no pretraining objective and is fine-tuned on labelled rows of its "
                "own: leave --corpus and --objective out"
            )
        run = finetune_demo_task(name, folder)
        base = run_recipe(run, given=False)
        return replace(base, train=replace(base.train, device="auto")), run
    return family_recipe(name, corpus, objective, folder), folder


def family_recipe(
    name: str, corpus: CorpusSource | None, objective: str | None, folder: Path
) -> Recipe:
    """Return the recipe of pretraining a family on a corpus, or on the text of every machine."""
    if corpus is None:
        chosen = family(name.partition("/")[0])
        pairs = chosen.objective(objective) is chosen.objectives.get("pairs")
        corpus = write_demo_corpus(folder, pairs=pairs)
    return recipe(name, corpus, objective=objective)


def run_recipe(run: Path, *, given: bool) -> Recipe | FineTuneRecipe:
    """Read the recipe of a run, which has its own corpus and objective."""
    if given:
        raise UserError(f"{run} is a run with its own data: leave --corpus and --objective out")
    if not (run / "recipe.json").is_file():
        raise UserError(f"{run} is not a run (no recipe.json): give a run, or FAMILY/SIZE")
    found = read_json(run / "recipe.json")
    if isinstance(found, PrefixRecipe):
        raise UserError(f"{run} is a run of prefixes: give a run of pretraining or fine-tuning")
    if not isinstance(found, Recipe | FineTuneRecipe):
        raise UserError(f"{run} is a run in stages: give the folder of a stage, {run}/task")
    return found


def write_demo_corpus(folder: Path, *, pairs: bool) -> Path:
    """Prepare a corpus of Python's documentation; of pairs, each line is the source of the next."""
    documents = list(itertools.islice(demo_text.demo_documents(), DOCUMENTS))
    text, out = folder / "text.txt", folder / "corpus"
    blocks = [re.sub(r"\n\s*\n", "\n", document) for document in documents]
    text.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    tokenizer = train_tokenizer(
        (document.text for document in read_documents([text])),
        kind="bpe",
        vocab_size=PROOF_VOCAB_SIZE,
    )
    if not pairs:
        prepare([text], tokenizer=tokenizer, out=out, holdout=PROOF_HOLDOUT)
        return out
    table = folder / "pairs.tsv"
    couples = (itertools.pairwise(block.splitlines()) for block in blocks)
    lines = [f"{one.strip()}\t{two.strip()}\n" for one, two in itertools.chain(*couples)]
    table.write_text("".join(lines), encoding="utf-8")
    write_parallel_corpus(ParallelText(table), tokenizer, out)
    return out


def finetune_demo_task(name: str, folder: Path) -> Path:
    """Fine-tune a family for one step to tell words from code; return the folder of the run.

    Words are those of Python's documentation. A family of cross-view training also learns from
    lines of it without labels.
    """
    documents = itertools.islice(demo_text.demo_documents(), DOCUMENTS)
    lines = (line.split() for document in documents for line in document.splitlines())
    long = (words for words in lines if len(words) >= MIN_LINE_WORDS)
    kept = [*itertools.islice(long, LABELLED_LINES + UNLABELLED_LINES)]
    rows, text = folder / "rows.jsonl", folder / "unlabelled.txt"
    labelled = [
        {"tokens": words, "tags": ["word" if word.isalpha() else "code" for word in words]}
        for words in kept[:LABELLED_LINES]
    ]
    rows.write_text("".join(json.dumps(row) + "\n" for row in labelled), encoding="utf-8")
    unlabelled = [" ".join(words) + "\n" for words in kept[LABELLED_LINES:]]
    text.write_text("".join(unlabelled), encoding="utf-8")
    views = "cross_view" in family(name.partition("/")[0]).formulations
    files = [text] if views else None
    return finetune(name, rows, folder / "source", unlabelled=files, steps=1, device="cpu")


def verification_recipe(
    base: Recipe | FineTuneRecipe, steps: int | None, device: str | None
) -> tuple[Any, int]:
    """Return a recipe of few steps with checkpoints between them, and the step to be killed at."""
    chosen = select_device(device or base.train.device)
    base = replace(base, train=replace(base.train, loggers=(), tensor=1, pipeline=1, minutes=None))
    interval = log_interval(chosen)
    counting = isinstance(base, Recipe) and base.model.counting_steps is not None
    if counting and steps is not None:
        raise UserError(
            f"--steps {steps} does not apply to {base.name}, which counts one order a step: "
            "leave it out"
        )
    total = base.model.counting_steps if counting else STEPS if steps is None else steps
    save_every, killed_at = kill_step(total, interval, counting=counting)
    # Evaluated where it is saved: fine-tuning also saves each evaluation that is the best so far.
    fields: dict[str, Any] = {"save_every": save_every, "eval_every": save_every}
    fields |= {"keep_checkpoints": 1, "device": str(chosen)}
    if not counting:
        fields["steps"] = total
    if isinstance(base, Recipe):
        return finalize(base, as_settings(fields, "train.")), killed_at
    fields["warmup"] = min(base.train.warmup, total)
    return replace(base, train=replace(base.train, **fields)), killed_at


def kill_step(steps: int, interval: int, *, counting: bool = False) -> tuple[int, int]:
    """Return the steps between checkpoints, and a step between two of them, near the middle.

    It is one that is logged: each is on a CPU, every tenth on CUDA.
    """
    for save_every in range(max(2, steps // 3), 1, -1):
        between = [n for n in range(interval, steps, interval) if n > save_every and n % save_every]
        if between:
            return save_every, min(between, key=lambda step: abs(step - steps / 2))
    if counting and steps > 1:  # two or three orders: killed before the first checkpoint
        return steps, 1
    least = 2 if counting else max(MIN_PROOF_STEPS, interval + 1)
    raise UserError(f"--steps must be at least {least}, to be killed between two (got {steps})")


def write_run(chosen: Recipe | FineTuneRecipe, source: Path, folder: Path) -> None:
    """Write a run folder that has not begun: a resume starts it."""
    folder.mkdir()
    chosen.write(folder / "recipe.json")
    if isinstance(chosen, FineTuneRecipe):
        shutil.copytree(source / "tokenizer", folder / "tokenizer")


def train_in_processes(
    folder: Path, killed_at: int, steps: int, on_message: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Train both runs in processes of their own; return what these reported."""
    environment = child_environment(
        OMP_NUM_THREADS=str(torch.get_num_threads()),
        CUBLAS_WORKSPACE_CONFIG=":4096:8",  # deterministic products on CUDA
    )
    command = [sys.executable, "-m", "kinfolk.workflows.verify_resume", str(folder), str(killed_at)]
    events: list[dict[str, Any]] = []
    with (
        (folder / "errors.txt").open("wb") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closed at the end of this process, which ends the others
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None and process.stdin is not None
        try:
            for line in process.stdout:
                events.append(json.loads(line))
                on_message(message(events[-1], steps))
        finally:
            process.stdin.close()
            code = process.wait()
    if code:
        lines = (folder / "errors.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        end = " ".join(lines[-ERROR_LINES:]) or "without a message"
        raise UserError(f"a process that trains ended with code {code}: {end}")
    return events


def message(event: dict[str, Any], steps: int) -> str:
    """Return what a process reported as a sentence."""
    if event["event"] == "killed":
        return f"process {event['process']} was killed (SIGKILL) after step {event['step']}"
    if event["event"] == "resumed":
        return f"process {event['process']} resumed it and trained to step {steps}"
    return f"process {event['process']} trained {steps} steps without interruption"


def make_proof(
    chosen: Recipe | FineTuneRecipe,
    name: str,
    folder: Path,
    killed_at: int,
    events: list[dict[str, Any]],
) -> ResumeProof:
    """Compare both runs."""
    whole, killed = folder / WHOLE, folder / KILLED
    found, sizes = differences(whole, killed), counts(whole)
    whole_digests, digests_after = digests(whole), digests(killed)
    parts = [
        ComparedPart(part, sizes[part], whole_digests[part], digests_after[part], found.get(part))
        for part in PARTS
    ]
    notes: list[str] = []
    if chosen.train.device.startswith("cuda"):
        log = (folder / "errors.txt").read_text(encoding="utf-8", errors="replace")
        notes = [CUDA_NOTE, *(f"CUDA: {name} is not deterministic" for name in unsure(log))]
    return ResumeProof(
        name=chosen.name if name in index() else name,
        objective=learned_by(chosen),
        device=chosen.train.device,
        steps=chosen.train.steps,
        save_every=chosen.train.save_every,
        killed_at=killed_at,
        resumed_from=events[0]["checkpoint"],
        losses=(last_loss(whole), last_loss(killed)),
        parts=tuple(parts),
        notes=tuple(notes),
    )


def learned_by(chosen: Recipe | FineTuneRecipe) -> str:
    """Return the objective of pretraining, or what fine-tuning learns from."""
    if isinstance(chosen, Recipe):
        return type_name(chosen.objective)
    return "labelled rows" if chosen.unlabelled is None else "labelled rows and unlabelled text"


def unsure(log: str) -> list[str]:
    """Return the operations that torch says it has no deterministic algorithm for."""
    return [*dict.fromkeys(NO_DETERMINISTIC.findall(log))]


def last_loss(run: Path) -> float:
    """Return the loss of the last step in the log."""
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return float(json.loads(lines[-1])["loss"])


class WaitAt(Callback):
    """Report a step and wait there to be killed."""

    def __init__(self, step: int, pipe: int) -> None:
        self.step, self.pipe = step, pipe

    def on_step(self, progress: Progress) -> None:
        """Wait where the run is to be killed: the step is logged, and not saved."""
        if progress.step == self.step:
            os.write(self.pipe, b"!")
            threading.Event().wait()


def train_in_child(run: Path, kill_at: int | None) -> int:
    """Start or resume a run in a child process, kill it at a step; return the process id."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        train_and_exit(run, [] if kill_at is None else [WaitAt(kill_at, writing)])
    os.close(writing)
    if os.read(reading, 1):
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != (0 if kill_at is None else -signal.SIGKILL):
        sys.exit(abs(code) or 1)
    return child


def train_and_exit(run: Path, callbacks: list[Callback]) -> None:
    """Train in this process and end it; it ends too when the command does."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        if read_json(run / "recipe.json").train.device.startswith("cuda"):
            use_deterministic_algorithms()
        resume(run, callbacks=callbacks)
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(2)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def use_deterministic_algorithms() -> None:
    """Let torch choose algorithms on CUDA that add up in a fixed order, where it has them."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    # With `warn_only` the backward passes of these add up in any order all the same.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def main(folder: str, killed_at: str) -> None:
    """Train both runs, a child process each time, and report each as a line of JSON."""

    def report(event: str, process: int, **values: Any) -> None:
        print(json.dumps({"event": event, "process": process, **values}), flush=True)

    for name in IMPORTED:
        import_module(name)
    import_extensions()
    killed, step = Path(folder, KILLED), int(killed_at)
    process = train_in_child(killed, step)
    newest = checkpoint.latest_valid(killed)
    reached = 0 if newest is None else checkpoint.checkpoint_step(newest)
    report("killed", process, step=step, checkpoint=reached)
    report("resumed", train_in_child(killed, None))
    report("whole", train_in_child(Path(folder, WHOLE), None))


if __name__ == "__main__":
    main(*sys.argv[1:])
