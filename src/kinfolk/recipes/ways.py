"""Which way each member solves a task, and the network that it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.hub import template_of
from kinfolk.nn.language_model import ModelConfig
from kinfolk.nn.task_heads import ModelWithHeadConfig, pooling_of
from kinfolk.tasks.task import Task
from kinfolk.tasks.ways.cloze import Cloze
from kinfolk.tasks.ways.clusters import Clusters
from kinfolk.tasks.ways.ends import Ends
from kinfolk.tasks.ways.prompts import Prompts
from kinfolk.tasks.ways.text import Text
from kinfolk.tasks.ways.transformed import Bare as Bare
from kinfolk.tasks.ways.transformed import Transformed
from kinfolk.tasks.ways.way import Way
from kinfolk.tasks.ways.whole import Whole
from kinfolk.tasks.ways.words import Words
from kinfolk.text.tokenizer import Tokenizer

LONGEST = 512  # tokens of a reading, where a network has no bound of its own

WAYS: tuple[type[Way], ...] = (Whole, Words, Ends, Clusters, Transformed, Text, Cloze, Prompts)


@dataclass(frozen=True)
class Nature:
    """What decides how a network solves tasks."""

    kind: str  # encoder, decoder, encoder-decoder, recurrent
    speaks: str | None  # how it says a text, if it does
    frame: str | None  # what its tokenizer puts around a text
    ways: tuple[str, ...]  # its own first

    @classmethod
    def of(cls, config: ModelConfig) -> "Nature":
        """Find it by the config of a network."""
        network, frame = config.network(), template_of(config)
        kind = network.architecture
        if network.decoding == "infilling":
            return cls(kind, "blanks", "bert", ("cloze", "text", "head", "prompt"))
        if kind == "encoder-decoder":
            return cls(kind, kind, frame, ("text", "cloze", "prompt"))
        if kind == "decoder":
            return cls(kind, "decoder", None, ("transformed", "text", "head", "prompt", "cloze"))
        return cls(kind, None, frame or "bert", ("head",))


def choose(config: Any, kind: str, name: str | None = None) -> type[Way]:
    """Return the way that a network solves a kind of task: its own, or the one that is named."""
    nature = Nature.of(config)
    names = [w.name for w in WAYS]
    if name is not None and name not in names:
        raise UserError(f"no way is called {name!r}: {did_you_mean(name, sorted(set(names)))}")
    able = [w for own in nature.ways for w in WAYS if w.name == own and kind in w.solves]
    able = [w for w in able if fits(w, nature, kind)]
    if name is None:
        learning = [w for w in able if w is not Prompts]
        if not learning:
            raise UserError(
                f"{_called(config)} cannot {kind}: it solves {_solved(nature)}; "
                "choose another member"
            )
        return learning[0]
    found = [w for w in able if w.name == name]
    if not found:
        others = sorted({w.name for w in able})
        raise UserError(
            f"{_called(config)} does not {kind} by {name!r}: "
            + (f"it can by {' or '.join(others)}" if others else "it cannot at all")
        )
    return found[0]


def fits(way: type[Way], nature: Nature, kind: str) -> bool:
    """Say whether a network has what a way needs."""
    if way is Whole or way is Ends:
        return nature.frame is not None
    if way is Cloze:  # a decoder cannot look behind a blank, but it can weigh what it says there
        return nature.speaks is not None
    return True


def build(
    way: type[Way],
    task: Task,
    config: Any,
    tokenizer: Tokenizer,
    *,
    length: int | None = None,
    **said: Any,
) -> Way:
    """Make a way for a network and a task; what is said beside must be among its settings."""
    nature = Nature.of(config)
    limit = LONGEST if config.max_length is None else config.max_length
    if length is not None and config.max_length is not None and length > limit:
        raise UserError(f"--length {length} is more than the model's context of {limit} tokens")
    if length is not None and length < 8:
        raise UserError(f"--length {length} leaves no room for a text: use 8 or more")
    names = {field.name for field in fields(way)}
    facts: dict[str, Any] = {
        "task": task,
        "length": min(limit, LONGEST) if length is None else length,
        "pad": tokenizer.specials.pad,
        "frame": nature.frame,
        "speaks": nature.speaks,
        "causal": nature.kind == "decoder" and nature.frame is None,
    }
    given = {name: value for name, value in said.items() if value is not None}
    if unknown := given.keys() - names:
        option = sorted(unknown)[0].replace("_", "-")
        raise UserError(f"the way {way.name!r} has no --{option}: leave it out")
    return way(**{name: value for name, value in (facts | given).items() if name in names})


def network(way: Way, config: Any, *, dropout: float = 0.1) -> Any:
    """Return the config of the network that a way needs: a member with a head, or as it is."""
    if way.head is None:
        return config
    task = way.task
    labels: Sequence[str] = task.labels
    if way.head == "span":
        labels = ("start", "end")
    elif way.head in ("choice", "coref") or task.kind == "regress":
        labels = ("score",)
    return ModelWithHeadConfig(
        backbone=config,
        head=way.head,  # type: ignore[arg-type]
        labels=tuple(labels),
        pooling=pooling_of(config),
        regression=task.kind == "regress",
        dropout=dropout,
    )


def _called(config: Any) -> str:
    return type(config).__module__.rpartition(".")[2]


def _solved(nature: Nature) -> str:
    kinds = {kind: None for own in nature.ways for w in WAYS if w.name == own for kind in w.solves}
    return ", ".join(kinds)
