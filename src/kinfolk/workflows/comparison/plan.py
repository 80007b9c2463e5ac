"""The plan of a comparison: what is compared, and every job, decided before anything trains.

RACE/options.json   what was asked for
RACE/plan.json      entrants with their recipes and steps, tasks, jobs, versions, machine
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from kinfolk.config import did_you_mean, from_json
from kinfolk.data.documents import DocumentUnit
from kinfolk.errors import UserError
from kinfolk.families import check_name, index
from kinfolk.files import new_file

DEFAULT_SIZE = "tiny"
ALL_LABELS = "all"
DEFAULT_LABELS = ("16", "64", "256", ALL_LABELS)
ENTRANT_KEYS = ("objective", "tokenizer", "model", "train", "task", "layer_lr_decay")
# Settings that are the same for all entrants, or follow from the budget.
RACE_SETTINGS = {
    "train.steps": "the budget sets it",
    "train.minutes": "the budget sets it",
    "train.seed": "--seeds sets it",
    "train.device": "--device sets it for all entrants",
    "train.batch_size": "--batch-size sets it for all entrants",
    "train.gradient_accumulation": "it is the same for all entrants",
    "task.seed": "--seeds sets it",
    "task.device": "--device sets it for all entrants",
    "task.batch_size": "it is the same for all entrants",
    "task.steps": "--task-steps sets it for all entrants",
    "task.epochs": "--task-epochs sets it for all entrants",
    "objective.max_length": "--length sets it for all entrants",
    "model.max_length": "--length sets it for all entrants",
}
# Folders of what stands beside the entrants, as `folder_name` writes them.
BASELINE_NAMES = (
    "unigram",
    "5-gram",
    "majority",
    "mean",
    "tf-idf",
    "tag-per-word",
    "copy-of-input",
)
MAX_SEEDS, MAX_JOBS = 1000, 256
NAME_LENGTH = 80  # characters of an entrant's name


@dataclass(frozen=True)
class Entrant:
    """A family and size with its settings; it pretrains from new weights."""

    name: str  # in tables
    model: str  # FAMILY/SIZE
    settings: tuple[str, ...] = ()  # of the recipe, PATH=VALUE
    objective: str | None = None
    task_settings: tuple[str, ...] = ()  # of fine-tuning, KEY=VALUE
    tokenizer: str | None = None  # KIND:SIZE or a folder; None: the shared one

    @classmethod
    def parse(cls, text: str) -> "Entrant":
        """Parse `[NAME=]FAMILY[/SIZE][ KEY=VALUE ...]`."""
        words = text.split()
        if not words:
            raise UserError("an entrant is empty: write FAMILY[/SIZE], such as bert/tiny")
        at = next((n for n, word in enumerate(words) if _family(word) in index()), 0)
        start, _, model = words[at].rpartition("=")
        if _family(model) not in index() and Path(model).is_dir():
            raise UserError(
                f"{model} is a folder, and entrants start from new weights: write FAMILY[/SIZE], "
                "such as bert/tiny"
            )
        check_name(model)
        name = " ".join([*words[:at], start] if start else words[:at])
        chosen: dict[str, Any] = {"settings": [], "task_settings": []}
        for word in words[at + 1 :]:
            _add_setting(chosen, word, text)
        family, _, size = model.partition("/")
        model = f"{family}/{size or DEFAULT_SIZE}"
        given = ", ".join(words[at + 1 :])
        name = name or (f"{model} ({given})" if given else model)
        if len(name) > NAME_LENGTH:
            raise UserError(
                f"the name {name[:40]!r}... has {len(name)} characters, more than {NAME_LENGTH}: "
                f"give a shorter one, NAME={model}"
            )
        for key in ("settings", "task_settings"):
            chosen[key] = tuple(chosen[key])
        return cls(name, model, **chosen)

    @property
    def family(self) -> str:
        """The name of the family."""
        return self.model.partition("/")[0]

    @property
    def size(self) -> str:
        """The name of the size."""
        return self.model.partition("/")[2]


def _family(word: str) -> str:
    return word.rpartition("=")[2].partition("/")[0]


def _add_setting(chosen: dict[str, Any], word: str, text: str) -> None:
    """Add a KEY=VALUE of an entrant to what it has chosen."""
    path, equals, value = word.partition("=")
    group, _, key = path.partition(".")
    if not equals or not value:
        raise UserError(
            f"{word!r} in the entrant {text!r} is not a setting: write KEY=VALUE, such as "
            "objective=mlm or train.lr=1e-3"
        )
    if group not in ENTRANT_KEYS:
        raise UserError(f"{word} in the entrant {text!r}: {did_you_mean(group, ENTRANT_KEYS)}")
    if path in ("objective", "tokenizer"):
        chosen[path] = value
    elif group == "task" and key:
        chosen["task_settings"].append(f"{key}={value}")
    elif key or group == "layer_lr_decay":
        chosen["settings"].append(word)
    else:
        raise UserError(f"{word} in the entrant {text!r}: name a field, such as {group}.FIELD=")


@dataclass(frozen=True)
class RaceOptions:
    """What a comparison is asked for."""

    entrants: tuple[Entrant, ...]
    corpus: tuple[str, ...]  # a corpus folder, or text files and folders
    budget_kind: str
    budget_amount: float
    tasks: tuple[str, ...] = ()
    columns: str | None = None
    seeds: int = 3
    labels: tuple[str, ...] = DEFAULT_LABELS
    length: int | None = None
    batch_size: int | None = None
    tokenizer: str | None = None
    vocab_size: int | None = None
    own_tokenizers: bool = False
    document: DocumentUnit = "block"
    holdout: float | None = None
    search: int = 0  # learning rates that each entrant tries
    test_rows: int = 1000
    train_rows: int = 10_000
    task_steps: int = 320  # of a fine-tuning, at most: an epoch of all rows
    task_epochs: float | None = None  # of a fine-tuning; None: 3, and more for few rows
    max_tokens: int = 4096  # that an encoder scores
    probes: bool = True
    probe_seeds: bool = False  # probe the models of all seeds, not of the first alone
    baselines: bool = True  # that stand beside the entrants
    samples: int = 32  # texts that each entrant generates
    device: str = "auto"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the options of a comparison."""
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the options that were written as JSON."""
        others = {name: value for name, value in values.items() if name != "entrants"}
        entrants = tuple(_with_tuples(Entrant, entry) for entry in values["entrants"])
        return _with_tuples(cls, others, entrants=entrants)


@dataclass(frozen=True)
class PlannedEntrant:
    """An entrant with all that follows from the data and the budget."""

    name: str
    slug: str  # of its folders
    model: str
    settings: tuple[str, ...] = ()
    task_settings: tuple[str, ...] = ()
    objective: str | None = None  # of pretraining; None where it does not pretrain
    corpus: str = ""  # folder
    recipe: Mapping[str, Any] | None = None  # of pretraining, as JSON
    steps: int = 0
    seed_steps: tuple[int, ...] = ()  # of each seed, where they differ
    cost: Mapping[str, float] | None = None  # of one step: tokens, flops, seconds
    rates: tuple[float, ...] = ()  # learning rates of the search
    search_steps: int = 0  # of each of them
    parameters: int = 0
    non_embedding_parameters: int = 0
    baseline: bool = False  # it stands beside the entrants
    gradient_free: bool = False  # n-grams are counted, and no seed changes them
    left_out: str | None = None  # why it takes no part at all

    @property
    def family(self) -> str:
        """The name of the family."""
        return self.model.partition("/")[0]

    @property
    def size(self) -> str:
        """The name of the size."""
        return self.model.partition("/")[2]

    def steps_of(self, seed: int) -> int:
        """Return the steps of the run of a seed."""
        return self.seed_steps[seed] if self.seed_steps else self.steps

    @property
    def pretrains(self) -> bool:
        """Whether it is pretrained on the corpus."""
        return self.recipe is not None


@dataclass(frozen=True)
class PlannedTask:
    """The splits of a labelled file, and who solves it."""

    name: str  # the file, in tables
    slug: str
    kind: str  # name of the kind of task
    task: Mapping[str, Any]  # as JSON, with the labels of all training rows
    metric: str
    train: int  # rows
    dev: int
    test: int
    labels: tuple[str, ...]  # sizes of the training sets, "all" the last
    class_counts: Mapping[str, int] = field(default_factory=dict)
    entrants: tuple[str, ...] = ()  # that are fine-tuned
    left_out: Mapping[str, str] = field(default_factory=dict)  # reasons by entrant
    baselines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Shares of the test rows that are longer than what an entrant reads, by entrant.
    truncated: Mapping[str, float] = field(default_factory=dict)
    read_as: str = ""  # the format of the training file, in words

    @property
    def value(self) -> Any:
        """The task itself, with the labels of all training rows."""
        return from_json(dict(self.task))


@dataclass(frozen=True)
class Job:
    """A unit of work with a result of its own; the jobs of a group share a process."""

    name: str  # of its result
    kind: str  # search, pretrain, likelihood, finetune, baseline, probe or sample
    group: str
    entrant: str
    seed: int = 0
    task: str = ""  # slug
    labels: str = ""
    rate: float | None = None
    stage: int = 1  # groups of a stage wait for those of the stages before
    seconds: float = 0.0  # estimate


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before training."""

    options: RaceOptions
    corpus: Mapping[str, Any]
    budget: Mapping[str, Any]
    entrants: tuple[PlannedEntrant, ...]
    tasks: tuple[PlannedTask, ...]
    jobs: tuple[Job, ...]
    length: int
    threads: int
    machine: Mapping[str, Any]
    kinfolk: str
    created: str
    notes: tuple[str, ...] = ()
    raw_weights: bool | None = None  # all are fine-tuned as raw weights, or all as pretrained
    # Folder of the corpus whose held-out text is continued, and whose n-grams measure all samples.
    samples_corpus: str = ""
    repeats: str = ""  # folder of the comparison that this one repeats
    # By job, how many steps its run is to have, as the repeated comparison decided it: (steps done,
    # all steps, seconds).
    decisions: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)

    @cached_property
    def entrant_of(self) -> dict[str, PlannedEntrant]:
        """The entrants by name."""
        return {entrant.name: entrant for entrant in self.entrants}

    @cached_property
    def task_of(self) -> dict[str, PlannedTask]:
        """The tasks by slug."""
        return {task.slug: task for task in self.tasks}

    def groups(self) -> dict[str, list[Job]]:
        """Return the jobs of each process, in the order in which they start."""
        groups: dict[str, list[Job]] = {}
        for job in self.jobs:
            groups.setdefault(job.group, []).append(job)
        return groups

    def write(self, path: Path) -> None:
        """Write plan.json."""
        write_finite_json(asdict(self), path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read plan.json."""
        values = json.loads(path.read_text(encoding="utf-8"))
        options = RaceOptions.from_json(values.pop("options"))
        for entrant in values["entrants"]:  # an earlier name of the field
            if "counted" in entrant:
                entrant["gradient_free"] = entrant.pop("counted")
        parts = {
            name: tuple(_with_tuples(kind, entry) for entry in values.pop(name))
            for name, kind in (("entrants", PlannedEntrant), ("tasks", PlannedTask), ("jobs", Job))
        }
        return _with_tuples(cls, values, options=options, **parts)


def write_finite_json(value: Any, path: Path) -> None:
    """Write JSON, atomically; numbers that are not finite are written as null."""
    with new_file(path, durable=True) as file:
        file.write(json.dumps(_finite(value), ensure_ascii=False, indent=1) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:  # infinite or NaN
        return None
    return value


def _with_tuples(cls: Any, values: Mapping[str, Any], **others: Any) -> Any:
    """Build a dataclass from JSON, whose lists were tuples."""
    known = {f.name for f in fields(cls)}
    read = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in known
    }
    return cls(**read, **others)


def check_entrant_names(entrants: Sequence[Entrant]) -> None:
    """Refuse a comparison without entrants, and two entrants of one name."""
    if not entrants:
        raise UserError("no entrant is given: name families, such as gpt2/tiny bert/tiny")
    counts = Counter(entrant.name for entrant in entrants)
    for name, count in counts.items():
        if count > 1:
            raise UserError(
                f"{count} entrants are called {name!r}: give them names, as in first={name} "
                f"second={name}"
            )
    for entrant in entrants:
        if not entrant.name.isprintable():
            raise UserError(
                f"the name {entrant.name!r} has characters that cannot be printed: choose another"
            )
        check_shared(entrant)
        slug = folder_name(entrant.name)
        of_baseline = slug in BASELINE_NAMES and entrant.family != "ngram"
        if of_baseline or (slug.startswith("bilstm-") and entrant.family != "bilstm"):
            raise UserError(
                f"the entrant {entrant.name!r} is called like a baseline, which stands beside all "
                "entrants: choose another name"
            )


def check_shared(entrant: Entrant) -> None:
    """Refuse settings of one entrant that are the same for all."""
    for setting in (*entrant.settings, *(f"task.{text}" for text in entrant.task_settings)):
        if (reason := RACE_SETTINGS.get(setting.partition("=")[0])) is not None:
            raise UserError(f"{setting} of the entrant {entrant.name!r} cannot be set: {reason}")


def parse_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return sizes of training sets in ascending order, `all` the last."""
    sizes = set()
    if not labels:
        raise UserError("--labels is empty: give numbers from 1 and all, such as 16,64,256,all")
    for text in labels:
        if text == ALL_LABELS:
            continue
        if not text.isdecimal() or not 1 <= int(text) <= 2**24:
            raise UserError(f"--labels {text}: give numbers from 1 and all, such as 16,64,256,all")
        sizes.add(int(text))
    return (*map(str, sorted(sizes)), ALL_LABELS)


def folder_name(name: str) -> str:
    """Return a name as that of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.").lower()[:60] or "entrant"


def slugs(names: Sequence[str]) -> Iterator[str]:
    """Yield a different name of a folder for each name."""
    used: set[str] = set()
    for name in names:
        base = folder_name(name)
        slug, number = base, 2
        while slug in used:
            slug, number = f"{base}-{number}", number + 1
        used.add(slug)
        yield slug
