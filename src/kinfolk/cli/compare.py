"""The command `compare`: families on one text and its tasks, with equal budgets."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from kinfolk.cli.app import (
    EVALUATE,
    JSON,
    MAX_TOKENS,
    MAX_VOCAB,
    OUT,
    command,
    flag,
    option,
)
from kinfolk.cli.options import UsageError, option_group, parse_count, parse_minutes
from kinfolk.cli.output import (
    SECONDS_BETWEEN_LINES,
    duration,
    note,
    numbers,
    print_facts,
    print_json,
    print_line,
    print_table,
    saved_on_signal,
    table,
    visible,
)
from kinfolk.cli.prepare import document_unit
from kinfolk.workflows.folders import check_new_folder

if TYPE_CHECKING:
    from kinfolk.workflows.comparison.plan import Job, Plan, PlannedTask

BUDGET, DATA, SCORES = "Budget (one of them)", "Data", "Scores"
RUNTIME = "Runtime"
BUDGET_PARSERS = {"minutes": parse_minutes, "flops": parse_count, "tokens": parse_count}
MAX_TASK_ROWS = 2**24
MAX_SENTENCES = 20  # of the verdict on the terminal; race.json has all
MIN_SHARE = 0.05  # of a job that tells how long the rest of it takes
TRAININGS = ("search", "pretrain", "finetune")  # kinds of jobs


@dataclass(frozen=True)
class BudgetOptions:
    """What each entrant may spend on pretraining."""

    minutes: str | None = option("M", "Minutes of training, measured on this machine: 3, 90s.")
    flops: str | None = option("F", "FLOPs of forward and backward passes: 1e14.")
    tokens: str | None = option("T", "Input tokens: 2e6 or 2M.")
    search: int = option(
        "N", "Learning rates that each entrant tries within its budget; 0: that of its size.",
        default=0,
    )  # fmt: skip
    seeds: int = option("N", "Seeds of each entrant.", default=3)


@dataclass(frozen=True)
class RaceDataOptions:
    """The text and the labelled files."""

    corpus: list[str] | None = option(
        "PATH", "Text files or folders, or a corpus from kinfolk prepare. Repeat for more."
    )
    task: list[str] | None = option(
        "FILE", "Labelled file, TRAIN,TEST, TRAIN,DEV,TEST or a folder of them. Repeat for more."
    )
    columns: str | None = option("LIST", "Text columns and label column: a,b,label.")
    document: str = option(
        "block|file", "A document is a block between blank lines, or a file.", default="block"
    )
    holdout: float | None = option("X", "Fraction of documents that is scored.", min=0, max=0.5)
    tokenizer: str | None = option("PATH", "Tokenizer of all entrants, in place of a new one.")
    vocab_size: int | None = option("N", "Size of the new BPE vocabulary.", min=300, max=MAX_VOCAB)
    own_tokenizers: bool = flag(
        "--own-tokenizers", "Each family has its own kind of tokenizer, of the same size."
    )
    length: int | None = option("N", "Tokens of a row, for all entrants.", min=8, max=MAX_TOKENS)
    batch_size: int | None = option("N", "Rows of a step, for all entrants.", min=1, max=2**16)


@dataclass(frozen=True)
class ScoreOptions:
    """What is scored, and how much of it."""

    labels: str = option("LIST", "Sizes of the labelled training sets.", default="16,64,256,all")
    test_rows: int = option("N", "Test rows, at most.", default=1000, min=1, max=MAX_TASK_ROWS)
    train_rows: int = option(
        "N", "Training rows, at most.", default=10_000, min=2, max=MAX_TASK_ROWS
    )
    task_steps: int = option("N", "Steps of a fine-tuning, at most.", default=320, min=1, max=2**30)
    task_epochs: float | None = option(
        "X", "Epochs of a fine-tuning [default: 3, and more for few rows].", min=0, max=1e6
    )
    max_tokens: int = option(
        "N", "Tokens that an encoder scores, evenly spread.", default=4096, min=1, max=2**40
    )
    samples: int = option("N", "Texts that decoders generate.", default=32, min=0, max=10_000)
    no_probes: bool = flag("--no-probes", "Leave out linear probes of frozen layers.")


@command(
    "kinfolk compare gpt2 bert ngram --corpus notes/ --task triage.tsv --minutes 3 -o runs/which",
    panel=EVALUATE,
)
@option_group("budget", BudgetOptions, panel=BUDGET)
@option_group("data", RaceDataOptions, panel=DATA)
@option_group("scores", ScoreOptions, panel=SCORES)
def compare_command(
    context: typer.Context,
    entrants: list[str] | None = typer.Argument(
        None,
        metavar="ENTRANT...",
        help="[NAME=]FAMILY[/SIZE], with settings in quotes: 'bert/mini objective=mlm'.",
    ),
    *,
    budget: BudgetOptions,
    data: RaceDataOptions,
    scores: ScoreOptions,
    out: Path | None = option("RACE", "Output folder. Must be new or empty.", *OUT),
    resume: Path | None = option("RACE", "Resume an interrupted comparison."),
    repeat: Path | None = option(
        "RACE", "Repeat a complete comparison in -o: the same data and numbers of steps."
    ),
    jobs: int | None = option(
        "N",
        "Processes at a time; 0: all in this one [default: 1, or the number of GPUs].",
        panel=RUNTIME,
        min=0,
        max=256,
    ),
    device: str = option("NAME", "auto, cpu or cuda.", default="auto", panel=RUNTIME),
    plan: bool = flag("--plan", "Print jobs, steps and the estimated time; train nothing."),
    json: bool = JSON,
) -> None:
    """Compare families on your text and your tasks, with equal budgets.

    Every entrant is pretrained from new weights on the same text with the same budget, scored on
    held-out text, and fine-tuned on each task with the same labels. RACE/race.html has the tables,
    their intervals and what they show. A comparison that was interrupted continues with --resume.
    With --repeat a complete one is done again: on a CPU its scores are the same to the last digit.
    """  # fmt: skip
    from kinfolk.workflows.comparison.options import check_inputs, race_options, read_options

    if resume is not None:
        check_alone(context, "resume", "jobs")
        read_options(resume)
        run(None, resume, jobs, json=json)
        return
    if repeat is not None:
        check_alone(context, "repeat", "out", "jobs")
        if out is None:
            raise UsageError("missing -o RACE: the folder to write")
        check_new_race(out)
        read_options(repeat)
        from kinfolk.workflows.comparison.repeat import write_repetition

        write_repetition(repeat, out)
        run(None, out, jobs, json=json)
        return
    if not entrants:
        raise UsageError("missing ENTRANT: name families, such as gpt2/tiny bert/tiny")
    if out is None and not plan:
        raise UsageError("missing -o RACE: the folder to write")
    if out is not None:
        check_new_race(out)
    if not data.corpus:
        raise UsageError("missing --corpus PATH: text, or a corpus from kinfolk prepare")
    amounts = {
        name: None if given is None else parse(given, f"--{name}")
        for name, parse in BUDGET_PARSERS.items()
        for given in [vars(budget)[name]]
    }
    settings = {**vars(data), **vars(scores), "device": device, "search": budget.search}
    settings["probes"] = not settings.pop("no_probes")
    settings["document"] = document_unit(data.document)
    labels = [part.strip() for part in settings.pop("labels").split(",") if part.strip()]
    options = race_options(
        entrants,
        settings.pop("corpus"),
        amounts,
        tasks=settings.pop("task") or (),
        seeds=budget.seeds,
        labels=labels,
        **settings,
    )
    check_inputs(options)
    if plan:
        from kinfolk.workflows.comparison.compare import plan_only

        show_race_plan(plan_only(options, jobs=jobs, on_message=note))
    elif out is not None:
        run(options, out, jobs, json=json)


def check_new_race(out: Path) -> None:
    """Refuse a folder that is not new; one of a comparison can be continued."""
    is_race = (out / "options.json").is_file()
    check_new_folder(out, f"choose another -o{', or continue it with --resume' if is_race else ''}")


def check_alone(context: typer.Context, name: str, *others: str) -> None:
    """Refuse options beside --resume or --repeat, but for these."""
    sources = {other: context.get_parameter_source(other) for other in context.params}
    given = {other for other, source in sources.items() if source and source.name != "DEFAULT"}
    if given - {name, *others, "json"}:
        shown = " and ".join({"out": "-o", "jobs": "--jobs"}[other] for other in others)
        raise UsageError(f"--{name} cannot be combined with other options, but for {shown}")


def run(options: Any, out: Path, jobs: int | None, *, json: bool) -> None:
    """Start or resume a comparison, with lines about its progress on stderr."""
    from kinfolk.workflows.comparison import compare as workflow

    began = time.monotonic()
    progress = terminal_progress()

    def saved() -> str:
        if not (out / "plan.json").is_file():
            return "nothing was trained; run the same command again with a new folder"
        return f"every finished job is kept; continue with: kinfolk compare --resume {out}"

    with saved_on_signal(saved):
        if options is None:
            result = workflow.resume_race(out, jobs=jobs, callbacks=[progress])
        else:
            result = workflow.start_race(options, out, jobs=jobs, callbacks=[progress])
    if json:
        print_json(result.race)
        return
    show_race(result.race)
    earlier = f"; jobs of earlier starts took {duration(progress.earlier)}"
    took = duration(time.monotonic() - began)
    print_line(f"\ndone in {took}{earlier if progress.earlier else ''}")
    print_line(f"page:   {out / 'race.html'}")


class TimeLeft:
    """The jobs of a comparison that are left, and an estimate of their seconds."""

    def __init__(self) -> None:
        self.waiting: dict[str, Job] = {}
        # Seconds of jobs, by kind and entrant, by kind, and of all trainings.
        self._spent: dict[Any, float] = defaultdict(float)
        self._guessed: dict[Any, float] = defaultdict(float)
        # When jobs began, the share that was done when that was first known, and now.
        self._running: dict[str, tuple[float, float | None, float]] = {}

    def start(self, job: "Job") -> None:
        """Note that a job begins."""
        self._running[job.name] = time.monotonic(), None, 0.0

    def progress(self, job: "Job", share: float) -> None:
        """Note the share of a job that is done."""
        now = time.monotonic()
        began, first, _ = self._running.get(job.name, (now, None, 0.0))
        if first is None:  # a job that is resumed begins in its middle
            began, first = now, share
        self._running[job.name] = began, first, share

    def done(self, job: "Job", seconds: float) -> None:
        """Keep how long a job took beside what was guessed."""
        self.waiting.pop(job.name, None)
        self._running.pop(job.name, None)
        for key in keys_of(job):
            self._spent[key] += seconds
            self._guessed[key] += job.seconds

    def __str__(self) -> str:
        """Return the time left; jobs that were done correct the guesses of others."""
        return duration(sum(self._seconds(job) for job in self.waiting.values()))

    def _seconds(self, job: "Job") -> float:
        """Estimate the seconds left of a job, one that runs by the share that is done."""
        guess = job.seconds
        for key in keys_of(job, looked_up=True):
            if self._guessed[key]:
                guess *= self._spent[key] / self._guessed[key]
                break
        if job.name not in self._running:
            return guess
        began, first, share = self._running[job.name]
        elapsed = time.monotonic() - began
        if first is not None and share - first >= MIN_SHARE:
            return elapsed * (1 - share) / (share - first)
        return max(0.0, guess - elapsed)


def terminal_progress() -> Any:
    """Return the callback that prints a line for each job."""
    from kinfolk.workflows.comparison.pool import RaceCallback

    class RaceProgress(RaceCallback):
        """Lines on stderr: what is done, how long it took, and how long the rest may take."""

        def __init__(self) -> None:
            self._left = TimeLeft()
            self._done = self._total = 0
            self._shown = time.monotonic()
            self.earlier = 0.0  # seconds of the jobs that earlier starts did

        def on_message(self, message: str) -> None:
            note(message)

        def on_earlier(self, job: "Job", seconds: float) -> None:
            self.earlier += seconds
            self._left.done(job, seconds)

        def on_plan(self, plan: "Plan", waiting: Sequence["Job"]) -> None:
            self._left.waiting = {job.name: job for job in waiting}
            self._total = len(plan.jobs)
            self._done = done = self._total - len(waiting)
            again = f", {done} of them done" if done else ""
            note(f"{self._total} jobs{again}, about {self._left}")

        def on_start(self, job: "Job") -> None:
            self._shown = time.monotonic()
            self._left.start(job)

        def on_progress(self, job: "Job", share: float) -> None:
            self._left.progress(job, share)
            now = time.monotonic()
            if now - self._shown >= SECONDS_BETWEEN_LINES:
                self._shown = now
                note(f"  {describe_job(job)}: {share:.0%}; about {self._left} left")

        def on_done(self, job: "Job", seconds: float, failed: str | None) -> None:
            self._done += 1
            self._left.done(job, seconds)
            end = f"left out: {failed}" if failed else duration(seconds)
            note(
                f"[{self._done}/{self._total}] {describe_job(job)}: {end}; about {self._left} left"
            )

    return RaceProgress()


def keys_of(job: "Job", *, looked_up: bool = False) -> list[Any]:
    """Return what a job tells about the pace of others, and whose pace tells about it."""
    is_training = job.kind in TRAININGS
    # A baseline without a network takes no time, and says nothing about one.
    general = [TRAININGS] if is_training or (looked_up and job.kind != "baseline") else []
    return [(job.kind, job.entrant), job.kind, *general]


def describe_job(job: "Job") -> str:
    """Return a job in words."""
    parts = [job.kind, job.entrant]
    parts += [f"on {job.task}"] if job.task else []
    parts += [f"with {job.labels} labels"] if job.labels else []
    parts += [f"lr {job.rate:g}"] if job.rate is not None else [f"seed {job.seed}"]
    return " ".join(parts)


def show_race_plan(plan: "Plan") -> None:
    """Print the plan: what each entrant does, the tasks, and the time."""
    timed = plan.budget.get("timed")
    seconds_title = "seconds a step" if timed else "guessed seconds a step"
    rows = table("entrant", "objective", *numbers("parameters", "steps", seconds_title))
    for entrant in plan.entrants:
        seconds = f"{entrant.cost['seconds']:.4f}" if entrant.cost else ""
        shown = entrant.left_out or entrant.objective or ("baseline" if entrant.baseline else "-")
        count = f"{entrant.parameters:,}" if entrant.parameters else ""
        ends = dict.fromkeys(f"{of([entrant.steps, *entrant.seed_steps]):,}" for of in (min, max))
        steps = " to ".join(ends) if entrant.steps else ""
        rows.add_row(escape(visible(entrant.name)), escape(visible(shown)), count, steps, seconds)
    print_table(rows)
    counts: dict[str, int] = {}
    for job in plan.jobs:
        counts[job.kind] = counts.get(job.kind, 0) + 1
    jobs = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    facts = [("budget", f"{plan.budget['words']}; {plan.budget['how']}")]
    facts += [(task.name, task_words(task)) for task in plan.tasks]
    facts += [
        (task.name, f"{name} is left out: {reason}")
        for task in plan.tasks
        for name, reason in task.left_out.items()
    ]
    total = sum(job.seconds for job in plan.jobs)
    how = "from a few steps of each entrant" if timed else "from FLOPs: no step was timed"
    estimate = f"about {duration(total)}: pretraining {how}, other jobs a guess"
    facts += [("jobs", jobs), ("estimate", estimate)]
    print_facts(facts)


def task_words(task: "PlannedTask") -> str:
    """Return how the file of a task was read, its rows, and the sizes of training sets."""
    classes = f", {len(task.class_counts):,} classes" if task.class_counts else ""
    return (
        f"{task.read_as}{classes}; {task.train:,} train, {task.dev:,} dev and "
        f"{task.test:,} test rows; labels: {', '.join(task.labels)}"
    )


def show_race(race: Mapping[str, Any]) -> None:
    """Print the tables and what they show."""
    from kinfolk.reports.page import plural

    show_text(race["likelihood"])
    for task in race["tasks"]:
        show_task(task)
    print_line("")
    for sentence in race["verdicts"][:MAX_SENTENCES]:
        print_line(f"- {sentence}")
    if left := max(0, len(race["verdicts"]) - MAX_SENTENCES):
        verb = "is" if left == 1 else "are"
        print_line(f"- {plural(left, 'more sentence')} {verb} in race.json")
    for sentence in race["notes"]:
        note(sentence)


def show_text(likelihood: Mapping[str, Any]) -> None:
    """Print the scores of held-out text: a table for those that are comparable, likelihoods first.

    Pseudo-likelihoods of another method, or of other units, stand in a table of their own.
    """
    comparable: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in likelihood["rows"]:
        is_pseudo = row["kind"] == "pseudo-likelihood"
        comparable[(row["words"], row.get("units", "")) if is_pseudo else ("", "")].append(row)
    unigrams = [row for row in likelihood["rows"] if row["kind"] == "baseline"]
    for (method, units), found in sorted(comparable.items()):
        if method:  # a model without context has the same pseudo-likelihood as likelihood
            levels = {row.get("unigram") for row in found}
            found += [row for row in unigrams if row["mean"] in levels]
        rows = table("entrant", *numbers("bits per byte", "95 % interval"), "kind")
        for row in sorted(found, key=lambda row: row["mean"]):
            name, interval = (
                escape(visible(row["entrant"])),
                f"{row['low']:.3f} to {row['high']:.3f}",
            )
            rows.add_row(name, f"{row['mean']:.3f}", interval, row["kind"])
        title = f"held-out text, {method}, {units}; not comparable with other tables"
        print_table(rows, escape(visible(title)) if method else "held-out text")


def show_task(task: Mapping[str, Any]) -> None:
    """Print the scores of a task: a row for each entrant, a column for each number of labels."""
    sizes = list(dict.fromkeys(row["labels"] for row in task["rows"]))
    scale = 1.0 if task["lower_is_better"] else 100 / task["maximum"]
    rows = table("entrant", *numbers(*(f"{size} labels" for size in sizes)), "95 % interval")
    cells = {(row["entrant"], row["labels"]): row for row in task["rows"]}
    names = dict.fromkeys(row["entrant"] for row in task["rows"])
    last = sizes[-1] if sizes else ""

    def key(name: str) -> float:
        row = cells.get((name, last))
        sign = 1 if task["lower_is_better"] else -1
        return sign * row["mean"] if row else float("inf")

    for name in sorted(names, key=key):
        found = [cells.get((name, size)) for size in sizes]
        scores = [f"{scale * row['mean']:.1f}" if row else "" for row in found]
        row = found[-1]
        interval = f"{scale * row['low']:.1f} to {scale * row['high']:.1f}" if row else ""
        is_baseline = any(row["baseline"] for row in found if row)
        shown = f"{name} (baseline)" if is_baseline else name
        rows.add_row(escape(visible(shown)), *scores, interval)
    metric = task.get("metric_title") or task["metric"]
    print_table(rows, escape(visible(f"{task['name']} ({metric}, {task['unit']})")))
    for entry in task["left_out"]:
        print_line(f"{entry['entrant']} is left out: {entry['reason']}")
