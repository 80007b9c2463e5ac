"""Which way each member solves a task, and the network that it takes."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.families.base import Family
from kinfolk.nn.task_heads import ModelWithHeadConfig, pooling_of
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.coreference_head import CoreferenceHead
from kinfolk.tasks.formulations.head import BareCausalHead as BareCausalHead
from kinfolk.tasks.formulations.head import CausalHead, SequenceHead, TokenHead
from kinfolk.tasks.formulations.scoring import Cloze, Prompt
from kinfolk.tasks.formulations.span_head import SpanHead
from kinfolk.tasks.formulations.text_to_text import TextToText
from kinfolk.tasks.task import Task
from kinfolk.text.tokenizer import Tokenizer

DEFAULT_MAX_LENGTH = 512  # tokens of a reading, where a network has no bound of its own
# The options of the command line that set a field of another name.
OPTIONS = {"verbalizer": "words", "distillation_weight": "teaching"}

FORMULATIONS: tuple[type[Formulation], ...] = (
    SequenceHead,
    TokenHead,
    SpanHead,
    CoreferenceHead,
    CausalHead,
    TextToText,
    Cloze,
    Prompt,
)


def choose_formulation(config: Any, kind: str, name: str | None = None) -> type[Formulation]:
    """Return the way that a network solves a kind of task: its own, or the one that is named."""
    nature = family_of(config)
    names = [w.name for w in FORMULATIONS]
    if name is not None and name not in names:
        raise UserError(f"no way is called {name!r}: {did_you_mean(name, sorted(set(names)))}")
    able = [
        w for own in nature.formulations for w in FORMULATIONS if w.name == own and kind in w.tasks
    ]
    able = [w for w in able if supports(w, nature, kind)]
    if name is None:
        learning = [w for w in able if w is not Prompt]
        if not learning:
            raise UserError(
                f"{nature.name} cannot {kind}: it solves {_solved(nature)}; choose another member"
            )
        return learning[0]
    found = [w for w in able if w.name == name]
    if not found:
        others = sorted({w.name for w in able})
        raise UserError(
            f"{nature.name} does not {kind} by {name!r}: "
            + (f"it can by {' or '.join(others)}" if others else "it cannot at all")
        )
    return found[0]


def supports(way: type[Formulation], nature: Family, kind: str) -> bool:
    """Say whether a network has what a way needs."""
    if way is SequenceHead or way is SpanHead:
        return nature.frame is not None
    if way is Cloze:  # a decoder cannot look behind a blank, but it can weigh what it says there
        return nature.layout is not None
    return True


def build_formulation(
    way: type[Formulation],
    task: Task,
    config: Any,
    tokenizer: Tokenizer,
    *,
    length: int | None = None,
    **said: Any,
) -> Formulation:
    """Make a way for a network and a task; what is said beside must be among its settings."""
    nature = family_of(config)
    limit = DEFAULT_MAX_LENGTH if config.max_length is None else config.max_length
    if length is not None and config.max_length is not None and length > limit:
        raise UserError(f"--length {length} is more than the model's context of {limit} tokens")
    if length is not None and length < 8:
        raise UserError(f"--length {length} leaves no room for a text: use 8 or more")
    names = {field.name for field in fields(way)}
    facts: dict[str, Any] = {
        "task": task,
        "max_length": min(limit, DEFAULT_MAX_LENGTH) if length is None else length,
        "pad_id": tokenizer.special_tokens.pad,
        "frame": nature.frame,
        "layout": nature.layout,
        "causal": nature.architecture == "decoder" and nature.frame is None,
    }
    given = {name: value for name, value in said.items() if value is not None}
    if unknown := given.keys() - names:
        option = sorted(OPTIONS.get(name, name) for name in unknown)[0]
        raise UserError(f"the way {way.name!r} has no --{option}: leave it out")
    return way(**{name: value for name, value in (facts | given).items() if name in names})


def model_config(way: Formulation, config: Any, *, dropout: float = 0.1) -> Any:
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


def _solved(nature: Family) -> str:
    kinds = {
        kind: None
        for own in nature.formulations
        for w in FORMULATIONS
        if w.name == own
        for kind in w.tasks
    }
    return ", ".join(kinds)
