"""Families that are still described by models/, hub/ and recipes/."""

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kinfolk.families.base import Family, HFHead, HuggingFace, hf_heads

SUMMED = "sequence_summary.summary"
HEADS = {
    "bert": hf_heads("Bert", ("classifier",), ("classifier",)),
    "albert": hf_heads("Albert", ("classifier",), ("classifier",)),
    "roberta": hf_heads(
        "Roberta",
        ("classifier.out_proj", "classifier.dense"),
        ("classifier", "roberta.pooler.dense"),
    ),
    "electra": hf_heads(
        "Electra", ("classifier.out_proj", "classifier.dense"), ("classifier", SUMMED)
    ),
    "xlnet": hf_heads("XLNet", ("logits_proj", SUMMED), ("logits_proj", SUMMED))
    | {"span": HFHead("XLNetForQuestionAnsweringSimple", "qa_outputs")},
    "gpt2": {
        "text": HFHead("GPT2ForSequenceClassification", "score"),
        "tokens": HFHead("GPT2ForTokenClassification", "classifier"),
        "span": HFHead("GPT2ForQuestionAnswering", "qa_outputs"),
    },
    "gpt": {"text": HFHead("OpenAIGPTForSequenceClassification", "score")},
}
DROPOUTS = {"albert": "classifier_dropout_prob", "xlnet": "summary_last_dropout"}


class Legacy(HuggingFace):
    """A module of hub/."""

    def to_config(self, c: Any, special_tokens: Any) -> Any:
        return self.to_extra.to_config(c, special_tokens)  # type: ignore[attr-defined]

    def from_config(self, data: Any) -> Any:
        return self.to_extra.from_config(data)  # type: ignore[attr-defined]


def legacy(name: str) -> Family:
    """Put a family together."""
    model = import_module(f"kinfolk.models.{name}")
    line = re.match(r"([^(]+) \((.+), (\d{4})\): ", model.__doc__ or "")
    assert line
    recipe = import_module(f"kinfolk.recipes.{name}")
    hf = template = None
    if find_spec(f"kinfolk.hub.{name}"):
        table: Any = import_module(f"kinfolk.hub.{name}")
        template = table.FRAME
        parts = {}
        if name == "electra":
            parts = {"generator": lambda c, data: table.generator(c, data)}
        hf = Legacy(
            model_type=table.TYPE,
            architecture="",
            config=table.CONFIG,
            fields={},
            parameters=table.names,
            heads=HEADS.get(name, {}),
            head_dropout=DROPOUTS.get(name, "classifier_dropout"),
            subfolders=parts,
            to_extra=table,
        )
    if name == "transformer":
        template = "t5"
    network = next(iter(model.SIZES.values())).network()
    standard = ("nano", "tiny", "mini", "small", "medium", "base", "large")
    return Family(
        name=name,
        title=line[1],
        paper=f"{line[2]} {line[3]}",
        year=int(line[3]),
        model=network,
        sizes=model.SIZES,
        objectives=recipe.OBJECTIVES,
        training=recipe.TRAIN,
        paper_training={size: recipe.PAPER for size in model.SIZES if size not in standard},
        template=template,
        task_template="bert" if name == "glm" else None,
        hf=hf,
    )
