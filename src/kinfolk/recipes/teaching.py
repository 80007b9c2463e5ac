"""Knowledge distillation (Hinton et al. 2015): what a larger model thinks of the training rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kinfolk.errors import UserError
from kinfolk.recipes.answering import solver
from kinfolk.tasks.examples import Example
from kinfolk.tasks.lessons import TOKENS, replied
from kinfolk.tasks.ways.way import Way


def opinions(
    teacher: str,
    way: Way,
    rows: Sequence[Any],
    lessons: Sequence[Sequence[Example]],
    device: str,
) -> list[list[Example]]:
    """Add to the examples of each row what a teacher thinks of it.

    Teacher and student may be of different families: they share the task and its labels, nothing
    else.
    """
    found = solver(teacher, device=device)
    if not (hasattr(way, "opinion") and hasattr(found.way, "opinion")):
        able = "classify, regress, choose and tag by a head"
        raise UserError(f"{teacher} cannot teach this: teachers and students {able}")
    if (found.task.kind, found.task.labels) != (way.task.kind, way.task.labels):
        raise UserError(
            f"{teacher} learned another task: it knows {', '.join(found.task.labels)} and the file "
            f"has {', '.join(way.task.labels)}"
        )
    heated: Any = replace(found.way, heat=way.heat)  # type: ignore[call-arg, attr-defined]
    taught = []
    asked = [heated.questions(row, found.tokenizer) for row in rows]
    replies = iter(replied(heated, found.model, [e for some in asked for e in some], TOKENS))
    for own, questions in zip(lessons, asked, strict=True):
        opinion = [heated.opinion(next(replies)) for _ in questions]
        if way.task.kind == "tag":  # the two may part a long sentence at different words
            cuts = np.cumsum([len(e.readings[0].slots) for e in own])[:-1]
            opinion = list(np.split(np.concatenate(opinion), cuts))
        taught.append([replace(e, soft=soft) for e, soft in zip(own, opinion, strict=True)])
    return taught
