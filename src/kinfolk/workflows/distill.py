"""Knowledge distillation (Hinton et al. 2015): soft labels of a teacher for the training rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kinfolk.errors import UserError
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.head import ClassificationHead
from kinfolk.tasks.instances import TOKENS_PER_BATCH, forward_instances
from kinfolk.workflows.predict import load_predictor


def distill(
    teacher: str,
    student: Formulation,
    rows: Sequence[Any],
    instances: Sequence[Sequence[Instance]],
    device: str,
) -> list[list[Instance]]:
    """Add the soft labels of a teacher to the instances of each row.

    Teacher and student may be of different families: they share the task and its labels alone.
    """
    predictor = load_predictor(teacher, device=device)
    formulation, task = predictor.formulation, predictor.task
    if not isinstance(student, ClassificationHead) or not formulation.distills:
        raise UserError(
            f"{teacher} cannot teach this: teachers and students classify, regress, choose and "
            "tag by a head"
        )
    if (task.kind, task.labels) != (student.task.kind, student.task.labels):
        raise UserError(
            f"{teacher} learned another task: it knows {', '.join(task.labels)} and the file has "
            f"{', '.join(student.task.labels)}"
        )
    asked = [formulation.instances(row, predictor.tokenizer, labelled=False) for row in rows]
    flat = [instance for some in asked for instance in some]
    logits = iter(forward_instances(formulation, predictor.model, flat, TOKENS_PER_BATCH))
    taught = []
    for own, questions in zip(instances, asked, strict=True):
        soft = [formulation.soft_labels(next(logits), student.temperature) for _ in questions]
        if task.output == "tags":  # the two may split a long sentence at different words
            cuts = np.cumsum([len(i.examples[0].read_positions) for i in own])[:-1]
            soft = list(np.split(np.concatenate(soft), cuts))
        taught.append([replace(i, teacher_probs=probs) for i, probs in zip(own, soft, strict=True)])
    return taught
