"""Token sequences of labelled rows: special-token templates, truncation, prompts and answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import IntArray
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.tasks.rows import Row, space_between
from kinfolk.text.characters import OpenVocabulary
from kinfolk.text.tokenizer import TEMPLATES, SpecialTokens, Tokenizer, glm_tokens

PATTERN_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
TEMPLATE_PART = re.compile(r"(\$[AB]|\{\w+\})(?::(\d))?")


@dataclass(frozen=True)
class TemplatedInput:
    """Texts between special tokens."""

    ids: IntArray
    token_type_ids: IntArray
    offsets: tuple[int, ...]  # position of the first token of each text
    cls_index: int  # position of the token whose hidden state represents the texts

    def example(self, read_positions: IntArray) -> Example:
        """Return the example of a bidirectional network."""
        return Example(
            input_ids=self.ids,
            order=np.zeros_like(self.ids),
            token_type_ids=self.token_type_ids,
            read_positions=read_positions,
        )


def parse_template(template: str, texts: int) -> list[tuple[str, int]]:
    """Return the parts of a template: roles of tokens, texts `$A` and `$B`, each with its type."""
    return [
        (name.strip("{}"), int(kind or 0))
        for name, kind in TEMPLATE_PART.findall(TEMPLATES[template][texts - 1])
    ]


def num_special_tokens(template: str | None, texts: int) -> int:
    """Return the number of special tokens of a template; without one, there is one per text."""
    if template is None:
        return texts
    return sum(not name.startswith("$") for name, _ in parse_template(template, texts))


def apply_template(
    template: str, special_tokens: SpecialTokens, texts: Sequence[Sequence[int]]
) -> TemplatedInput:
    """Put one text or two into a template: `[CLS] a [SEP] b [SEP]`."""
    ids: list[int] = []
    token_type_ids: list[int] = []
    starts = []
    cls_index = 0
    for name, kind in parse_template(template, len(texts)):
        if name.startswith("$"):
            chunk = texts["AB".index(name[1])]
            starts.append(len(ids))
        else:
            chunk = [special_tokens.require(name)]
        if name == "cls":
            cls_index = len(ids)
        ids += chunk
        token_type_ids += [kind] * len(chunk)
    return TemplatedInput(
        np.array(ids, np.int64), np.array(token_type_ids, np.int64), tuple(starts), cls_index
    )


def truncate_longest_first(
    texts: Sequence[Sequence[int]], room: int
) -> tuple[list[list[int]], int]:
    """Truncate texts to a number of tokens, the longest first; also return how many were cut.

    Two that are both too long get half each; the longer one gets an odd token, as in Hugging Face's
    tokenizers.
    """
    over = sum(map(len, texts)) - room
    if room < len(texts):
        raise UserError(
            f"--length leaves {room} tokens for {len(texts)} texts: use a larger --length"
        )
    if over <= 0:
        return [list(text) for text in texts], 0
    sizes = [room]
    if len(texts) == 2:
        least = min(*map(len, texts), room // 2)
        sizes = [least, room - least]
        if len(texts[0]) > len(texts[1]):
            sizes.reverse()
    return [list(text[:size]) for text, size in zip(texts, sizes, strict=True)], over


def encode_plain(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts without special tokens; a `[MASK]` in them is plain text."""
    return [tokenizer.offsets(text)[0] for text in texts]


SequenceLayout = Literal["decoder", "encoder-decoder", "blanks"]
ANSWER_FIELD = "{answer}"
NUM_LAYOUT_TOKENS = 2  # special tokens around text and answer, at most


def build_example(
    layout: SequenceLayout,
    special_tokens: SpecialTokens,
    before: Sequence[int],
    answer: Sequence[int],
    after: Sequence[int] = (),
    *,
    end: bool = True,
    infill: bool = False,
) -> Example:
    """Return the example of a text and its answer; `end` predicts the end, too.

    A decoder predicts what follows the answer as well, since it cannot read it. With `infill` the
    answer fills a blank in the text, else it follows the text.
    """
    if layout == "encoder-decoder":
        eos = special_tokens.require("eos")
        mark = list(special_tokens.sentinels[:1]) if infill else []
        ids = np.array([special_tokens.pad, *mark, *answer], np.int64)
        labels = np.append(ids[1:], eos if end else IGNORE_INDEX)
        labels[: len(mark)] = IGNORE_INDEX
        return Example(
            input_ids=ids,
            order=np.arange(len(ids)),
            encoder_input_ids=np.array([*before, *mark, *after, eos], np.int64),
            labels=labels,
        )
    if layout == "blanks":
        known = glm_tokens(special_tokens)
        text = [*before, known.mask if infill else known.gmask, *after]
        zeros, steps = np.zeros(len(text), np.int64), np.arange(1, len(answer) + 2)
        labels = np.array([*answer, known.end if end else IGNORE_INDEX], np.int64)
        # The answer has the position of its mask, and block positions within the blank.
        return Example(
            input_ids=np.array([*text, known.start, *answer], np.int64),
            order=np.append(zeros, steps),
            position_ids=np.append(np.arange(len(text)), np.full_like(steps, len(before))),
            block_position_ids=np.append(zeros, steps),
            labels=np.append(np.full_like(zeros, IGNORE_INDEX), labels),
        )
    opening = special_tokens.require("eos") if special_tokens.bos is None else special_tokens.bos
    closing = [special_tokens.require("eos")] if end else []
    line = np.array([opening, *before, *answer, *after, *closing], np.int64)
    labels = line[1:].copy()
    labels[: len(before)] = IGNORE_INDEX
    return Example(input_ids=line[:-1], order=np.arange(len(line) - 1), labels=labels)


def fill_pattern(pattern: str, row: Row) -> tuple[str, str]:
    """Fill the fields of a pattern, and split it at the answer."""
    known = row.fields
    before, separator, after = pattern.partition(ANSWER_FIELD)
    if not separator:
        raise UserError(f"the pattern {pattern!r} has no {ANSWER_FIELD}: add one for the answer")

    def fill(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] not in known:
            names = ", ".join(f"{{{name}}}" for name in known)
            raise UserError(
                f"the pattern {pattern!r} names a field that the rows do not have "
                f"({match[0]!r}): use {names} and {ANSWER_FIELD}, and write other braces twice"
            )
        return known[match[1]]

    return PATTERN_FIELD.sub(fill, before), PATTERN_FIELD.sub(fill, after)


def encode_continuation(tokenizer: Tokenizer, before: str, answer: str) -> list[int]:
    """Return the ids of an answer, with the space between it and the text before."""
    return tokenizer.target.offsets(space_between(before, answer) + answer)[0]


def causal_special_tokens(special_tokens: SpecialTokens) -> tuple[int, int, int]:
    """Return the ids of the start, the delimiter and the token that is read.

    GPT-2's has <|endoftext|> alone, which serves as all three.
    """
    last = special_tokens.require("eos")
    start = last if special_tokens.bos is None else special_tokens.bos
    delimiter = last if special_tokens.sep is None else special_tokens.sep
    return start, delimiter, last if special_tokens.cls is None else special_tokens.cls


def last_token_example(ids: IntArray, labels: IntArray | None = None) -> Example:
    """Return a causal example whose last token is read."""
    last = np.array([len(ids) - 1])
    return Example(input_ids=ids, order=np.arange(len(ids)), labels=labels, read_positions=last)


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each word as in running text; at least one token per word."""
    unknown = tokenizer.special_tokens.unk
    unknown = tokenizer.special_tokens.pad if unknown is None else unknown
    tokens = []
    before = ""
    for word in words:
        tokens.append(tokenizer.offsets(space_between(before, word) + word)[0] or [unknown])
        before = word
    return tokens


def words_example(
    words: Sequence[Sequence[int]],
    predicate: Sequence[int] | None,
    special_tokens: SpecialTokens,
    *,
    template: str | None,
    causal: bool,
) -> Example:
    """Return the example of words, and of the predicate whose roles are predicted.

    One token of every word is read: the first, or in a decoder the last.
    """
    ids = [id for word in words for id in word]
    ends = np.cumsum([len(word) for word in words])
    starts = np.append(0, ends[:-1])
    if template is not None:
        texts = [ids] if predicate is None else [ids, predicate]
        templated = apply_template(template, special_tokens, texts)
        return templated.example(starts + templated.offsets[0])
    start, delimiter, _ = causal_special_tokens(special_tokens)
    before = [start] if predicate is None else [start, *predicate, delimiter]
    input_ids = np.array([*before, *ids], np.int64)
    return Example(
        input_ids=input_ids,
        order=np.arange(len(input_ids)) if causal else np.zeros_like(input_ids),
        read_positions=(ends - 1 if causal else starts) + len(before),
    )


def split_to_fit(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Split words into parts that fit: the first word of each, and the one after its last."""
    parts, start, used = [], 0, 0
    for index, size in enumerate(sizes):
        if index > start and used + size > room:
            parts.append((start, index))
            start, used = index, 0
        used += min(size, room)
    return [*parts, (start, len(sizes))] if sizes else []


def with_characters(example: Example, vocabulary: OpenVocabulary, size: int) -> Example:
    """Return an example with the characters of its tokens, and ids of the vocabulary alone."""
    ids = example.input_ids
    return replace(
        example,
        input_ids=vocabulary.close(ids),
        character_ids=vocabulary.character_ids(ids, size),
    )
