"""Text to text: the text of a number."""

import pytest

from kinfolk.tasks.formulations.text_to_text import TextToText
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.task import Task
from support.task_rows import tokenizer


@pytest.mark.parametrize(
    ("numbers", "label", "said"),
    [
        ([0.0, 5.0], 3.27, "3.2"),  # as T5 writes STS-B
        ([0.5, 2.5], 1.09, "1.0"),
        ([0.0, 1.0], 0.03, "0.04"),
        ([0.0, 1.0], 0.48, "0.48"),
        ([0.0, 100.0], 87.65, "88"),
        ([-1.0, 1.0], -0.52, "-0.50"),
        ([3.0, 3.0], 3.0, "3.0"),
    ],
)
def test_numbers_are_rounded_by_their_range(numbers: list[float], label: float, said: str) -> None:
    rows = [LabelledText(("a",), number, 1) for number in numbers]
    fitted = TextToText(task=Task(kind="regress")).fit(rows, tokenizer())
    assert fitted.target_text(LabelledText(("a",), label, 1)) == said
    assert fitted.parse_output(rows[0], "no number").value == sum(numbers) / 2
