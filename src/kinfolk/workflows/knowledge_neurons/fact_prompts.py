"""Facts, their files, and the inputs that ask a network for the answer of a fact.

A prompt has a blank, [MASK], for the answer. An encoder reads the whole prompt; T5 and GLM read it
with a blank of their own; a decoder reads what is before the blank and predicts what follows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Inputs
from kinfolk.config import shorten
from kinfolk.data.examples import collate
from kinfolk.errors import UserError
from kinfolk.generation.fill import MASK, mask_token, query_inputs
from kinfolk.generation.prompts import check_prompts, device_of, source_inputs
from kinfolk.nn.language_model import LanguageModel
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.formulations.sequences import SequenceLayout, build_example
from kinfolk.tasks.rows import space_between
from kinfolk.text.tokenizer import Tokenizer

ANSWER_BLANK = re.compile(rf"{re.escape(MASK)}(?:\s*{re.escape(MASK)})*")  # one or several in a row
FACT_COLUMNS = "a column or field `answer`, and `prompt` or `prompts`"
FACT_LAYOUTS: dict[str | None, SequenceLayout] = {
    "causal": "decoder",
    "encoder-decoder": "encoder-decoder",
    "infilling": "blanks",
}


@dataclass(frozen=True)
class Fact:
    """A fact: prompts that ask for the same answer."""

    prompts: tuple[str, ...]
    answer: str

    def __post_init__(self) -> None:
        if not self.prompts:
            raise UserError(f"the fact with the answer {self.answer!r} has no prompt: add one")
        if not self.answer.strip():
            prompt = shorten(self.prompts[0])
            raise UserError(f"the answer of {prompt!r} is empty: give the missing words")


@dataclass(frozen=True, eq=False)
class FactInputs:
    """A prompt as a network reads it, in one row, and where it predicts the answer."""

    inputs: Inputs
    labels: Tensor  # (tokens,): the ids of the answer
    positions: Tensor  # (tokens,): where they are predicted
    # Of the blank in the encoder of an encoder-decoder; None in other networks.
    encoder_positions: Tensor | None = None

    @property
    def length(self) -> int:
        """The number of tokens."""
        given = self.inputs.encoder_inputs
        return self.inputs.input_ids.shape[1] + (0 if given is None else given.input_ids.shape[1])

    def positions_in(self, stack: str) -> Tensor:
        """Return the positions of the blank in a stack of layers."""
        if stack == "encoder" and self.encoder_positions is not None:
            return self.encoder_positions
        if self.inputs.target_positions is not None:  # the query stream has no other tokens
            return torch.arange(len(self.labels), device=self.labels.device)
        return self.positions


def to_fact(value: Any) -> Fact:
    """Return a fact from a pair of its prompts, or one prompt, and its answer."""
    if isinstance(value, Fact):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        given, answer = value
        prompts = [given] if isinstance(given, str) else given
        if isinstance(answer, str) and is_texts(prompts):
            return Fact(tuple(prompts), answer)
    raise UserError(f'{value!r} is no fact: give ("The capital of France is [MASK].", "Paris")')


def is_texts(value: Any) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


def read_facts(path: Path | str) -> list[Fact]:
    """Read facts from JSON lines or a table.

    JSON has `prompts`, or one `prompt`, and `answer`. Rows of a table with the same value in the
    column `fact` are prompts of one fact; without this column each row is a fact.
    """
    file = LabelledFile(path)
    if not file.path.is_file():
        raise UserError(f"no such file: {path}")
    records = _table_records(file) if file.is_delimited else list(file.records())
    grouped: dict[Any, list[tuple[list[str], str]]] = {}
    for number, record in records:
        where = f"row {number:,} of {path}"
        if not isinstance(record, Mapping):
            raise UserError(f"{where} is no fact: it needs {FACT_COLUMNS}")
        given, answer = record.get("prompts", record.get("prompt")), record.get("answer")
        prompts = [given] if isinstance(given, str) else given
        if not is_texts(prompts) or not prompts or not isinstance(answer, str):
            raise UserError(f"{where} is no fact: it needs {FACT_COLUMNS}, which are texts")
        group = grouped.setdefault(record.get("fact", ("row", number)), [])
        if group and group[0][1] != answer:
            raise UserError(
                f"{where} has the answer {answer!r}, and the first of the same fact "
                f"{group[0][1]!r}: a fact has one answer"
            )
        group.append((prompts, answer))
    if not grouped:
        raise UserError(f"{path} has no facts: each needs {FACT_COLUMNS}")
    return [
        Fact(tuple(prompt for prompts, _ in rows for prompt in prompts), rows[0][1])
        for rows in grouped.values()
    ]


def _table_records(file: LabelledFile) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a table with a header."""
    rows = list(file.cells())
    if not rows:
        return []
    header = rows[0][1]
    if not {"prompt", "answer"} <= set(header):
        raise UserError(f"{file} has the columns {', '.join(header)}: it needs prompt and answer")
    return [(number, dict(zip(header, cells, strict=False))) for number, cells in rows[1:]]


def fact_inputs(model: LanguageModel, tokenizer: Tokenizer, prompt: str, answer: str) -> FactInputs:
    """Return the inputs that predict an answer at the blank of a prompt."""
    if tokenizer.special_tokens.mask is not None:
        prompt = prompt.replace(mask_token(tokenizer), MASK)
    blanks = list(ANSWER_BLANK.finditer(prompt))
    if len(blanks) > 1:
        raise UserError(
            f"the prompt {shorten(prompt)!r} has {MASK} in {len(blanks)} places: {MASK} must occur "
            "exactly once (several side by side count as one)"
        )
    layout = FACT_LAYOUTS.get(model.decoding)
    if not blanks and layout is None:
        raise UserError(
            f"the prompt {shorten(prompt)!r} has no {MASK}: it must occur exactly once, where the "
            f"answer is missing, for {model.family_name} models predict masked tokens"
        )
    if blanks:
        before, after = prompt[: blanks[0].start()], prompt[blanks[0].end() :]
    else:
        before, after = prompt + space_between(prompt, answer), ""
    ids = split_ids(tokenizer, before, answer, "" if layout == "decoder" else after)
    if not blanks and layout == "encoder-decoder":
        ids = tokenizer.offsets(prompt)[0], tokenizer.target.offsets(answer)[0], []
    if tokenizer.special_tokens.unk in ids[1]:
        raise UserError(
            f"the answer {answer!r} has words that the tokenizer does not know: give another"
        )
    if layout is None:
        masks = blanks[0].group().count(MASK)
        return _masked_inputs(model, tokenizer, ids, prompt, answer, masks)
    if layout == "encoder-decoder" and blanks and not tokenizer.special_tokens.sentinels:
        raise UserError(
            f"the tokenizer has no sentinel token for {MASK}: leave it out, and the answer is what "
            "the decoder generates"
        )
    return _generated_inputs(model, tokenizer, layout, ids, infill=bool(blanks))


def split_ids(
    tokenizer: Tokenizer, before: str, answer: str, after: str
) -> tuple[list[int], list[int], list[int]]:
    """Return the ids before an answer, of the answer and after it, as in the whole text."""
    text = f"{before}{answer}{after}"
    ids, offsets = tokenizer.offsets(text)
    first, last = len(before), len(before) + len(answer)
    inside = [n for n, (start, stop) in enumerate(offsets) if start < last and stop > first]
    if not inside:
        raise UserError(f"the tokenizer has no token for the answer {answer!r}: give another")
    start, stop = offsets[inside[0]][0], offsets[inside[-1]][1]
    if text[min(start, first) : first].strip() or text[last : max(stop, last)].strip():
        raise UserError(
            f"the answer {answer!r} shares the token {text[start:stop]!r} with the text beside it: "
            "put spaces around the blank, or give a whole word"
        )
    return ids[: inside[0]], ids[inside[0] : inside[-1] + 1], ids[inside[-1] + 1 :]


def _masked_inputs(
    model: LanguageModel,
    tokenizer: Tokenizer,
    ids: tuple[list[int], list[int], list[int]],
    prompt: str,
    answer: str,
    masks: int,
) -> FactInputs:
    """Mask the tokens of the answer, which an encoder predicts all at once."""
    before, hidden, after = ids
    special = tokenizer.special_tokens
    if len(hidden) != masks:
        raise UserError(
            f"the answer {shorten(answer)!r} is {len(hidden)} tokens, and {shorten(prompt)!r} has "
            f"{MASK} {masks} times: write {MASK} once for each token, side by side"
        )
    row = [*before, *[special.require("mask")] * masks, *after]
    opening = [] if model.decoding == "two-stream" or special.cls is None else [special.cls]
    closing = (
        [special.sep] if opening or model.decoding != "two-stream" else [special.sep, special.cls]
    )
    line = [*opening, *row, *(id for id in closing if id is not None)]
    check_prompts(model, [line], "prompt")
    device = device_of(model)
    inputs = source_inputs([line]).to(device)
    first = len(opening) + len(before)
    positions = torch.arange(first, first + masks, device=device)
    if model.decoding == "two-stream":
        is_mask = torch.zeros_like(inputs.input_ids, dtype=torch.bool)
        is_mask[0, positions] = True
        inputs = query_inputs(inputs, is_mask)
    return FactInputs(inputs, torch.tensor(hidden, device=device), positions)


def _generated_inputs(
    model: LanguageModel,
    tokenizer: Tokenizer,
    layout: SequenceLayout,
    ids: tuple[Sequence[int], Sequence[int], Sequence[int]],
    *,
    infill: bool,
) -> FactInputs:
    """Predict the tokens of the answer one after the other."""
    example = build_example(layout, tokenizer.special_tokens, *ids, end=False, infill=infill)
    encoder = example.encoder_input_ids
    for row in (example.input_ids, encoder):
        if row is not None:
            check_prompts(model, [row.tolist()], "prompt")
    device = device_of(model)
    collated = collate([[example]], example.lengths, tokenizer.special_tokens.pad)
    assert example.labels is not None
    labels = torch.from_numpy(example.labels)
    positions = (labels != IGNORE_INDEX).nonzero()[:, 0]
    blank = None
    if encoder is not None:  # without a blank, the end of the source stands for it
        place = len(ids[0]) if infill else len(encoder) - 1
        blank = torch.tensor([place], device=device)
    return FactInputs(
        collated.inputs.to(device), labels[positions].to(device), positions.to(device), blank
    )
