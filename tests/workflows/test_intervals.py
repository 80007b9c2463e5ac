"""Intervals from summed statistics are those of scoring every draw anew, and take no time."""

import random
import time

import numpy as np
import pytest

from kinfolk.metrics.bootstrap import resample
from kinfolk.tasks.rows import SourceTarget
from kinfolk.tasks.task import Prediction, Task

WORDS = ("the", "cat", "sat", "on", "a", "red", "mat", "and", "saw", "no", "dog", "in", "it", ".")


def written(count: int) -> tuple[list[SourceTarget], list[Prediction]]:
    """Make up texts, some with two references, and answers that are partly right."""
    chance = random.Random(3)
    rows, said = [], []
    for number in range(count):
        words = chance.choices(WORDS, k=chance.randint(4, 14))
        others = (" ".join(chance.choices(WORDS, k=8)),) if number % 3 == 0 else ()
        rows.append(SourceTarget("", " ".join(words), number + 1, others))
        keep = [word if chance.random() < 0.8 else chance.choice(WORDS) for word in words]
        said.append(Prediction(" ".join(keep)))
    return rows, said


@pytest.mark.parametrize("metric", ["bleu", "chrf", "rouge1", "rouge2", "rougeL"])
def test_the_interval_of_written_texts_is_that_of_scoring_each_draw(metric: str) -> None:
    task, (rows, said) = Task(kind="write", metric=metric), written(40)
    slow = [
        task.evaluate([rows[i] for i in drawn], [said[i] for i in drawn])[metric]
        for drawn in resample(40, 20, 1)
    ]
    found = task.interval(rows, said, n_resamples=20, seed=1)
    assert [found.low, found.high] == np.quantile(slow, [0.025, 0.975]).tolist()
    assert found.low < found.score == task.evaluate(rows, said)[metric] < found.high


def test_texts_are_read_once_for_all_draws() -> None:
    task, (rows, said) = Task(kind="write"), written(500)
    start = time.perf_counter()
    task.interval(rows, said, n_resamples=1000, seed=0)
    assert time.perf_counter() - start < 5  # each draw anew: about a minute
