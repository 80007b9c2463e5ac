"""Which formulations a network has for a task, and the network with the head that one needs."""

from dataclasses import fields
from typing import Any

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.families.base import Family
from kinfolk.nn.task_heads import FIXED_LABELS, ModelWithHeadConfig, pooling_of
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.coreference_head import CoreferenceHead
from kinfolk.tasks.formulations.head import BareCausalHead as BareCausalHead
from kinfolk.tasks.formulations.head import CausalHead, SequenceHead, TokenHead
from kinfolk.tasks.formulations.scoring import Cloze, Prompt
from kinfolk.tasks.formulations.span_head import SpanHead
from kinfolk.tasks.formulations.text_to_text import TextToText
from kinfolk.tasks.task import Task, kinds
from kinfolk.text.tokenizer import Tokenizer

DEFAULT_MAX_LENGTH = 512  # tokens of an example, where a network has no bound of its own
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


def choose_formulation(config: Any, task: type[Task], name: str | None = None) -> type[Formulation]:
    """Return the formulation of a network for a kind of task: the preferred or the named one."""
    family = family_of(config)
    names = sorted({formulation.name for formulation in FORMULATIONS})
    if name is not None and name not in names:
        raise UserError(f"no way is called {name!r}: {did_you_mean(name, names)}")
    possible = [
        formulation
        for preferred in family.formulations
        for formulation in FORMULATIONS
        if formulation.name == preferred
        and task.output in formulation.outputs
        and supports(formulation, family)
    ]
    if name is None:
        trained = [formulation for formulation in possible if formulation.trains]
        if not trained:
            raise UserError(
                f"{family.name} cannot {task.name}: it solves {solved_kinds(family)}; "
                "choose another family"
            )
        return trained[0]
    found = [formulation for formulation in possible if formulation.name == name]
    if not found:
        others = sorted({formulation.name for formulation in possible})
        raise UserError(
            f"{family.name} does not {task.name} by {name!r}: "
            + (f"it can by {' or '.join(others)}" if others else "it cannot at all")
        )
    return found[0]


def supports(formulation: type[Formulation], family: Family) -> bool:
    """Return whether a network has what a formulation needs."""
    if formulation is SequenceHead or formulation is SpanHead:
        return family.frame is not None
    if formulation is Cloze:
        return family.layout is not None
    return True


def build_formulation(
    formulation: type[Formulation],
    task: Task,
    config: Any,
    tokenizer: Tokenizer,
    *,
    length: int | None = None,
    **options: Any,
) -> Formulation:
    """Build a formulation for a network and a task; options must be fields of it."""
    family = family_of(config)
    limit = DEFAULT_MAX_LENGTH if config.max_length is None else config.max_length
    if length is not None and config.max_length is not None and length > limit:
        raise UserError(f"--length {length} is more than the model's context of {limit} tokens")
    if length is not None and length < 8:
        raise UserError(f"--length {length} leaves no room for a text: use 8 or more")
    names = {field.name for field in fields(formulation)}
    derived: dict[str, Any] = {
        "task": task,
        "max_length": min(limit, DEFAULT_MAX_LENGTH) if length is None else length,
        "pad_id": tokenizer.special_tokens.pad,
        "frame": family.frame,
        "layout": family.layout,
        "causal": family.architecture == "decoder" and family.frame is None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := given.keys() - names:
        option = sorted(OPTIONS.get(name, name) for name in unknown)[0]
        raise UserError(f"the way {formulation.name!r} has no --{option}: leave it out")
    return formulation(**{n: value for n, value in (derived | given).items() if n in names})


def model_config(formulation: Formulation, config: Any, *, dropout: float = 0.1) -> Any:
    """Return the config of the network that a formulation needs, with a head or as it is."""
    if formulation.head is None:
        return config
    return ModelWithHeadConfig(
        backbone=config,
        head=formulation.head,  # type: ignore[arg-type]
        labels=FIXED_LABELS.get(formulation.head, formulation.task.head_labels),
        pooling=pooling_of(config),
        regression=formulation.task.output == "number",
        dropout=dropout,
    )


def solved_kinds(family: Family) -> str:
    """Return the names of the kinds that a network solves."""
    outputs = {
        output for f in FORMULATIONS if f.name in family.formulations for output in f.outputs
    }
    return ", ".join(name for name, task in kinds().items() if task.output in outputs)
