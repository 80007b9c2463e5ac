"""Members with a head, as Hugging Face's classes for them name it; others keep our own names."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kinfolk.errors import UserError
from kinfolk.hub.mapping import Family, ParameterMap, module, require
from kinfolk.nn.language_model import Pooling
from kinfolk.nn.task_heads import FIXED_LABELS, ModelWithHeadConfig, pooling_of
from kinfolk.text.tokenizer import SpecialTokens


@dataclass(frozen=True)
class HFHead:
    """One of Hugging Face's classes, and the names of its head."""

    name: str
    out: str
    dense: str | None = None  # the matrix before the last, where there is one


def _usual(name: str, text: tuple[str, ...], choice: tuple[str, ...]) -> dict[str, HFHead]:
    return {
        "text": HFHead(f"{name}ForSequenceClassification", *text),
        "tokens": HFHead(f"{name}ForTokenClassification", "classifier"),
        "span": HFHead(f"{name}ForQuestionAnswering", "qa_outputs"),
        "choice": HFHead(f"{name}ForMultipleChoice", *choice),
    }


SUMMED = "sequence_summary.summary"
XLNET = _usual("XLNet", ("logits_proj", SUMMED), ("logits_proj", SUMMED))
# By `model_type` and head; what is not here has no class there.
HF_HEADS = {
    "bert": _usual("Bert", ("classifier",), ("classifier",)),
    "albert": _usual("Albert", ("classifier",), ("classifier",)),
    "roberta": _usual(
        "Roberta",
        ("classifier.out_proj", "classifier.dense"),
        ("classifier", "roberta.pooler.dense"),
    ),
    "electra": _usual(
        "Electra", ("classifier.out_proj", "classifier.dense"), ("classifier", SUMMED)
    ),
    "xlnet": XLNET | {"span": HFHead("XLNetForQuestionAnsweringSimple", "qa_outputs")},
    "gpt2": {
        "text": HFHead("GPT2ForSequenceClassification", "score"),
        "tokens": HFHead("GPT2ForTokenClassification", "classifier"),
        "span": HFHead("GPT2ForQuestionAnswering", "qa_outputs"),
    },
    "openai-gpt": {"text": HFHead("OpenAIGPTForSequenceClassification", "score")},
}
# How the classes end that pretraining needs, with its heads or without.
BASE_SUFFIXES = ("Model", "PreTraining", "LM", "NextSentencePrediction", "ConditionalGeneration")
PROBLEM_TYPES = {
    False: "single_label_classification",
    True: "regression",
}  # by whether it regresses
# Where the dropout before the last matrix is said; `classifier_dropout` elsewhere.
DROPOUTS = {"albert": "classifier_dropout_prob", "xlnet": "summary_last_dropout"}


@dataclass(frozen=True)
class WithHead:
    """What the other files of this package say of a member, said for it with a head."""

    member: Family
    there: HFHead
    head: str

    CONFIG = ModelWithHeadConfig

    @property
    def TYPE(self) -> str:  # noqa: N802  # as the constant of the other files
        """The `model_type`."""
        return self.member.TYPE

    @property
    def FRAME(self) -> str | None:  # noqa: N802
        """What its tokenizer puts around a text."""
        return self.member.FRAME

    def to_config(
        self, c: ModelWithHeadConfig, special_tokens: SpecialTokens | None
    ) -> dict[str, Any]:
        """Write config.json."""
        return {
            **self.member.to_config(c.backbone, special_tokens),
            "architectures": [self.there.name],
            "id2label": {str(i): label for i, label in enumerate(c.labels)},
            "label2id": {label: i for i, label in enumerate(c.labels)},
            **({"problem_type": PROBLEM_TYPES[c.regression]} if c.head == "text" else {}),
            **self._summing(c.pooling),
            **dict.fromkeys(self._dropouts(), c.dropout),
        }

    def from_config(self, data: Mapping[str, Any]) -> ModelWithHeadConfig:
        """Read config.json."""
        body: Any = self.member.from_config(data)
        way = pooling_of(body)
        require(data, **self._summing(way))
        labels = FIXED_LABELS.get(self.head) or _labels(data)
        regress = self.head == "text" and len(labels) == 1
        if self.head == "text" and data.get("problem_type") is not None:
            require(data, problem_type=PROBLEM_TYPES[regress])
        said = [data[name] for name in self._dropouts() if data.get(name) is not None]
        return ModelWithHeadConfig(
            backbone=body,
            head=self.head,  # type: ignore[arg-type]  # a key of the table
            labels=labels,
            pooling=way,
            regression=regress,
            dropout=said[0] if said else body.dropout,
        )

    def names(self, c: ModelWithHeadConfig) -> ParameterMap:
        """Name every parameter: the member's but for what was dropped, and the head's."""
        whole = self.member.names(c.backbone)
        gone = tuple(f"{name}." for name in c.removed_modules)
        left = [rule for rule in whole.rules if f"{rule.name}.".startswith(gone)]
        kept = [replace(r, name=f"backbone.{r.name}") for r in whole.rules if r not in left]
        dense = [] if self.there.dense is None else module("head.dense", self.there.dense)
        bias = c.pooling.bias or not c.pools_text
        # Older versions saved parts of the body that the head does not look at.
        old = [n for rule in left for n in rule.hf_names if n.startswith(whole.base_model_prefix)]
        return ParameterMap(
            base_model_prefix=whole.base_model_prefix,
            rules=[*kept, *dense, *module("head.out_proj", self.there.out, bias=bias)],
            duplicates={
                n: of for n, of in whole.duplicates.items() if n.startswith(whole.base_model_prefix)
            },
            legacy_suffixes=whole.legacy_suffixes,
            ignored_pattern="|".join([whole.ignored_pattern, *map(re.escape, old)]),
        )

    def _summing(self, way: Pooling) -> dict[str, Any]:
        """Say in Hugging Face's words how a text is summed up, where its class asks."""
        if self.there.dense != SUMMED:
            return {}
        return {
            "summary_type": way.token,
            "summary_use_proj": True,
            "summary_activation": way.activation,
        }

    def _dropouts(self) -> list[str]:
        """Say where the dropout is written, and looked for first to last."""
        names = [DROPOUTS.get(self.TYPE, "classifier_dropout")]
        if self.there.dense == SUMMED:
            names.insert(0, "summary_last_dropout")
        return names


def head_for_config(member: Family, c: ModelWithHeadConfig) -> WithHead | None:
    """Return the member with such a head, None where Hugging Face has no class like it."""
    there = HF_HEADS.get(member.TYPE, {}).get(c.head)
    if there is None or c.pooling != pooling_of(c.backbone):
        return None
    return WithHead(member, there, c.head)


def head_from_architectures(member: Family, data: Mapping[str, Any], where: str) -> Family:
    """Return the member with the head that a config.json tells of, as it is where there is none."""
    said = str((data.get("architectures") or [BASE_SUFFIXES[0]])[0])
    known = HF_HEADS.get(member.TYPE, {})
    for head, there in known.items():
        if there.name == said:
            return WithHead(member, there, head)
    if said.endswith(BASE_SUFFIXES):
        return member
    names = ", ".join(there.name for there in known.values())
    raise UserError(
        f"{where} says architectures=[{said!r}]: of {member.TYPE} with a head kinfolk opens "
        f"{names or 'none'}"
    )


def refuse_unnamed_head(member: Family, weights: Collection[str], where: str) -> None:
    """Refuse a task head in the weights of a folder whose config.json does not name its class."""
    known = HF_HEADS.get(member.TYPE, {}).values()
    if found := [there for there in known if f"{there.out}.weight" in weights]:
        names = " or ".join(f'["{there.name}"]' for there in found)
        raise UserError(
            f"{where} does not say `architectures`, and the weights beside it hold "
            f"{found[0].out}.weight, a task head: add architectures={names}"
        )


def _labels(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the names of the scores; two that have none are left out by Hugging Face."""
    said = data.get("id2label") or {str(i): f"LABEL_{i}" for i in range(2)}
    numbers = [str(i) for i in range(len(said))]
    if set(said) != set(numbers):
        raise UserError(
            f"config.json numbers its labels {', '.join(said)} in id2label: they must count from "
            f"0 to {len(said) - 1}, without holes"
        )
    return tuple(str(said[i]) for i in numbers)
