"""Knowledge distillation (Hinton et al. 2015): what a larger model thinks of the training rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kinfolk.errors import UserError
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.instances import TOKENS_PER_BATCH, forward_instances
from kinfolk.workflows.predict import load_predictor


def distill(
    teacher: str,
    way: Formulation,
    rows: Sequence[Any],
    instances: Sequence[Sequence[Instance]],
    device: str,
) -> list[list[Instance]]:
    """Add to the examples of each row what a teacher thinks of it.

    Teacher and student may be of different families: they share the task and its labels, nothing
    else.
    """
    found = load_predictor(teacher, device=device)
    if not (hasattr(way, "soft_labels") and hasattr(found.formulation, "soft_labels")):
        able = "classify, regress, choose and tag by a head"
        raise UserError(f"{teacher} cannot teach this: teachers and students {able}")
    if (found.task.kind, found.task.labels) != (way.task.kind, way.task.labels):
        raise UserError(
            f"{teacher} learned another task: it knows {', '.join(found.task.labels)} and the file "
            f"has {', '.join(way.task.labels)}"
        )
    heated: Any = replace(
        found.formulation,
        temperature=way.temperature,  # type: ignore[call-arg, attr-defined]
    )
    taught = []
    asked = [heated.inference_instances(row, found.tokenizer) for row in rows]
    replies = iter(
        forward_instances(
            heated, found.model, [e for some in asked for e in some], TOKENS_PER_BATCH
        )
    )
    for own, questions in zip(instances, asked, strict=True):
        opinion = [heated.soft_labels(next(replies)) for _ in questions]
        if way.task.output == "tags":  # the two may split a long sentence at different words
            cuts = np.cumsum([len(e.examples[0].read_positions) for e in own])[:-1]
            opinion = list(np.split(np.concatenate(opinion), cuts))
        taught.append(
            [replace(e, teacher_probs=soft) for e, soft in zip(own, opinion, strict=True)]
        )
    return taught
