"""Choose and build the formulation of a family for a task, and the network that it needs."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.nn.language_model import Pooling
from kinfolk.nn.task_heads import FIXED_LABELS, ModelWithHeadConfig, pooling_of
from kinfolk.nn.views import ModelWithViewsConfig
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.concat_head import ConcatHead
from kinfolk.tasks.formulations.coreference_head import MentionRanking
from kinfolk.tasks.formulations.cross_view import CrossView, CrossViewTags, CrossViewTexts
from kinfolk.tasks.formulations.feature_reader import FeatureReader
from kinfolk.tasks.formulations.features import FeatureClassifier, Features, FeatureTagger
from kinfolk.tasks.formulations.head import CausalHead, SequenceHead, TokenHead
from kinfolk.tasks.formulations.scoring import Cloze, Prompt
from kinfolk.tasks.formulations.sentence_selection import SentenceSelection
from kinfolk.tasks.formulations.span_head import SpanHead
from kinfolk.tasks.formulations.text_to_text import TextToText
from kinfolk.tasks.task import Task, kinds
from kinfolk.text.tokenizer import Tokenizer

DEFAULT_MAX_LENGTH = 512  # tokens of an example, where the network has no maximum length

ALL_FORMULATIONS: tuple[type[Formulation], ...] = (
    SequenceHead,
    TokenHead,
    SpanHead,
    MentionRanking,
    SentenceSelection,
    CausalHead,
    ConcatHead,
    FeatureClassifier,
    FeatureTagger,
    FeatureReader,
    TextToText,
    Cloze,
    Prompt,
    CrossViewTags,
    CrossViewTexts,
)


class TaskFamily(Protocol):
    """The fields of a family that decide which formulations it has."""

    @property
    def name(self) -> str:
        """Its registered name."""

    @property
    def architecture(self) -> str:
        """encoder, decoder, encoder-decoder or recurrent."""

    @property
    def formulations(self) -> tuple[str, ...]:
        """Names of formulations by preference."""

    @property
    def layout(self) -> str | None:
        """How a prompt and its answer are laid out, None where it generates no answers."""

    @property
    def frame(self) -> str | None:
        """Template of the special tokens around the texts of a task."""


def no_formulation(family: TaskFamily, task: type[Task]) -> str:
    """Return that a family has no formulation that is trained on a kind of task."""
    return (
        f"{family.name} does not support {task.name} tasks (supported: {supported_kinds(family)})"
    )


def choose_formulation(
    family: TaskFamily, task: type[Task], name: str | None = None, *, file: str = "the file"
) -> type[Formulation]:
    """Return the formulation of a family for a kind of task: the preferred or the named one.

    `file` is named in the message about a file without labels.
    """
    names = sorted({formulation.name for formulation in ALL_FORMULATIONS})
    if name is not None and name not in names:
        raise UserError(f"unknown formulation {name!r}: {did_you_mean(name, names)}")
    possible = [
        formulation
        for preferred in family.formulations
        for formulation in ALL_FORMULATIONS
        if formulation.name == preferred
        and task.output in formulation.outputs
        and is_possible(formulation, family)
    ]
    if name is None:
        trained = [formulation for formulation in possible if formulation.trains]
        if not trained and task.output == "likelihood":
            raise UserError(
                f"{file} was read as text without labels, and {family.name} is fine-tuned on "
                "labelled rows: give a table with a text and a label (TSV, CSV, JSON lines), or "
                "lines of a label and a text with --task classify; to train on text, use kinfolk "
                "pretrain"
            )
        if not trained:
            raise UserError(
                f"{no_formulation(family, task)}: choose another family, or say what {file} holds "
                "with --task"
            )
        return trained[0]
    named = [formulation for formulation in possible if formulation.name == name]
    if not named:
        supported = sorted({formulation.name for formulation in possible})
        raise UserError(
            f"{family.name} does not support the formulation {name!r} for {task.name} tasks "
            f"(supported: {', '.join(supported) or 'none'})"
        )
    return named[0]


def build_formulation(
    formulation: type[Formulation],
    task: Task,
    family: TaskFamily,
    config: Any,
    tokenizer: Tokenizer,
    *,
    length: int | None = None,
    **options: Any,
) -> Formulation:
    """Build a formulation for a network and a task; options must be fields of it."""
    limit = DEFAULT_MAX_LENGTH if config.max_length is None else config.max_length
    if length is not None and config.max_length is not None and length > limit:
        raise UserError(
            f"--length {length} exceeds the model's maximum length of {limit} tokens: use a "
            "smaller --length"
        )
    if length is not None and length < 8:
        raise UserError(f"--length must be at least 8 (got {length})")
    names = {field.name for field in fields(formulation)}
    derived: dict[str, Any] = {
        "task": task,
        "max_length": min(limit, DEFAULT_MAX_LENGTH) if length is None else length,
        "pad_id": tokenizer.special_tokens.pad,
        "frame": family.frame,
        "layout": family.layout,
        "max_characters": config.max_characters,
        "causal": family.layout == "decoder" and family.frame is None,
    }
    pooling = config.network.pooling
    if pooling is not None and pooling.token == "mean":
        derived["mean_pooling"] = True
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := given.keys() - names:
        option = min(unknown).replace("_", "-")
        raise UserError(
            f"--{option} does not apply to the formulation {formulation.name!r} of {task.kind} "
            "tasks: remove it"
        )
    return formulation(**{n: value for n, value in (derived | given).items() if n in names})


def with_mean_pooling(formulation: Formulation) -> Formulation:
    """Return the formulation with a head over the mean of all tokens of a text or sentence."""
    if isinstance(formulation, SequenceHead | SentenceSelection) and not isinstance(
        formulation, CausalHead | ConcatHead
    ):
        return replace(formulation, mean_pooling=True)
    raise UserError(
        f"--pooling mean does not apply to the formulation {formulation.name!r} of "
        f"{formulation.task.kind} tasks, whose head does not score a text of an encoder: remove it"
    )


def model_config(
    formulation: Formulation,
    config: Any,
    *,
    dropout: float = 0.1,
    others: Sequence[Formulation] = (),  # that are trained together with it
) -> Any:
    """Return the config of the network that a formulation needs, with a head or as it is."""
    if isinstance(formulation, CrossView):
        together = (each for each in (formulation, *others) if isinstance(each, CrossView))
        return ModelWithViewsConfig(
            backbone=config, tasks=tuple(each.module_config for each in together)
        )
    if isinstance(formulation, Features):
        return formulation.model_config(config)
    if formulation.head is None:
        return config
    mean = isinstance(formulation, SequenceHead) and formulation.mean_pooling
    return ModelWithHeadConfig(
        backbone=config,
        head=formulation.head,
        labels=FIXED_LABELS.get(formulation.head, formulation.task.head_labels),
        pooling=Pooling(token="mean") if mean else pooling_of(config),
        regression=formulation.task.output == "number",
        dropout=dropout,
        label_sets=formulation.learned_sets if isinstance(formulation, SentenceSelection) else 0,
    )


def supported_kinds(family: TaskFamily) -> str:
    """Return the names of the task kinds that a family has a formulation for."""
    outputs = {output for f in ALL_FORMULATIONS if is_possible(f, family) for output in f.outputs}
    return ", ".join(name for name, task in kinds().items() if task.output in outputs)


def is_possible(formulation: type[Formulation], family: TaskFamily) -> bool:
    """Return whether a family has a formulation, and the special tokens that it needs."""
    return (
        formulation.name in family.formulations
        and (family.frame is not None or not formulation.needs_template)
        and (family.layout is not None or not formulation.needs_layout)
    )
