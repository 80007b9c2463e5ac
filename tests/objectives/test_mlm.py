"""Masked language modelling: the picture, who sees whom, and the shares of the paper."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import Chunk, InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.objectives.mlm import MLM, mask_tokens
from kinfolk.rng import Stream, generator
from kinfolk.text import KINDS, train_tokenizer
from kinfolk.text.segment import tokens_starting_words, word_starts

RNG = np.random.default_rng(0)


def mlm(special_tokens: Any, **settings: Any) -> MLM:
    return MLM(special_tokens=special_tokens, vocab_size=80, **settings)


def test_the_picture_holds(special_tokens: Any, ids: Any, chunk: Any, chosen: Any) -> None:
    rng = chosen([[2], []], [0.5])  # the token in slot 2, none swapped; a die that says [MASK]
    example = mlm(special_tokens).example(chunk(ids("the cat sat down")), rng)
    assert example.input_ids.tolist() == ids("[C] the [M] sat down [S]")
    assert example.labels.tolist() == ids(". . cat . . .")


class Ordered:
    """Random numbers that take words in a chosen order, and hide each token behind [MASK]."""

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def permutation(self, words: int) -> np.ndarray:
        assert sorted(self.order) == list(range(words))
        return np.array(self.order)

    def random(self, tokens: int) -> np.ndarray:
        return np.full(tokens, 0.5)

    def choice(self, *_: object) -> np.ndarray:
        return np.zeros(0, np.int64)


def test_the_picture_of_whole_words_holds(special_tokens: Any, ids: Any) -> None:
    text = ids("the cat sat down")  # of which "cat sat" is one word
    documents = InMemoryDocuments.from_lists([[text]], words=[True, True, False, True])
    way = mlm(special_tokens, mask_rate=0.4, whole_word_masking=True)
    example = way.example(Chunk(documents, 0, 0, 4), Ordered([1, 0, 2]))  # type: ignore[arg-type]
    assert example.input_ids.tolist() == ids("[C] the [M] [M] down [S]")
    assert example.labels.tolist() == ids(". . cat sat . .")


@pytest.mark.parametrize(
    ("order", "hidden"),
    [
        ([0, 1, 2, 3], {10, 11}),  # two tokens of ten: the word of two is enough
        ([1, 0, 3, 2], {10, 11}),  # the word of four is passed over, and so is what comes after
        ([3, 1, 0, 2], {19}),  # one more token would do, and no word has one
    ],
)
def test_a_word_that_would_be_too_much_is_passed_over(
    special_tokens: Any, order: list[int], hidden: set[int]
) -> None:
    words = np.array([1, 0, 1, 0, 0, 0, 1, 0, 0, 1], bool)  # of two, four, three and one
    rng: Any = Ordered(order)
    masked = mask_tokens(np.arange(10, 20), 0.2, special_tokens, np.arange(10, 20), rng, words)
    assert set(masked.labels[masked.labels != IGNORE_INDEX].tolist()) == hidden


def test_at_least_one_word_is_hidden_the_shortest_where_all_are_long(special_tokens: Any) -> None:
    words = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0, 0], bool)
    seen = set()
    for index in range(30):
        masked = mask_tokens(
            np.arange(10, 20),
            0.1,
            special_tokens,
            np.arange(10, 20),
            generator(0, Stream.EXAMPLE, 0, index),
            words,
        )
        seen.add(tuple(masked.labels[masked.labels != IGNORE_INDEX].tolist()))
    assert seen == {(14, 15, 16), (17, 18, 19)}


def whole(example: Any, words: np.ndarray, special_tokens: Any) -> bool:
    """Say whether each word of a framed example is hidden with all its tokens or with none."""
    number = np.cumsum(np.concatenate([[True], words, [True]]))
    text = np.where(example.labels == IGNORE_INDEX, example.input_ids, example.labels)
    ordinary = ~np.isin(text, list(special_tokens.ids))
    hidden = example.labels != IGNORE_INDEX
    shares = [hidden[(number == n) & ordinary] for n in np.unique(number[ordinary])]
    return all(share.all() or not share.any() for share in shares)


LINE = "The cat's whiskers twitched unbelievably, 我们在北京大学学习语言模型。 Café १२ ＡＢＣ！ "
SIZES = {"bpe": 370, "word-bpe": 200, "wordpiece": 200, "unigram": 150, "word": 120}


@pytest.mark.parametrize("by", ["spaces", "jieba"])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_words_are_hidden_whatever_the_tokens_and_the_language(kind: str, by: str) -> None:
    tokenizer = train_tokenizer([LINE * 3], kind=kind, vocab_size=SIZES.get(kind, 400))
    ids, places = tokenizer.offsets(LINE * 12)
    words = tokens_starting_words(word_starts(LINE * 12, by), places)
    way = MLM(
        special_tokens=tokenizer.special_tokens,
        vocab_size=tokenizer.vocab_size,
        max_length=66,
        whole_word_masking=True,
    )
    chunks = way.chunks(InMemoryDocuments.from_lists([[ids]], words=words.tolist()))
    assert len(chunks) > 2
    counts = maskable = 0
    for index in range(len(chunks)):
        chunk = chunks[index]
        first = chunk.words.tolist()
        for turn in range(10):
            example = way.example(chunk, generator(0, Stream.EXAMPLE, turn, index))
            again = way.example(chunk, generator(0, Stream.EXAMPLE, turn, index))
            assert (example.input_ids == again.input_ids).all() and (
                example.labels == again.labels
            ).all()
            assert whole(example, chunk.words, tokenizer.special_tokens)
            text = np.where(example.labels == IGNORE_INDEX, example.input_ids, example.labels)
            assert text[1:-1].tolist() == chunk.ids.tolist() and chunk.words.tolist() == first
            counts += int((example.labels != IGNORE_INDEX).sum())
            maskable += int((~np.isin(text, list(tokenizer.special_tokens.ids))).sum())
    # Some words are passed over, and a short rest of a document may be one long word.
    assert 0.12 < counts / maskable < 0.18


def test_whole_words_are_hidden_at_the_rate_and_each_token_has_its_own_fate(
    special_tokens: Any,
) -> None:
    draws = generator(0, Stream.ORDER)
    words = draws.random(400) < 0.6
    words[0] = True
    ids = np.arange(10, 410)
    counts = np.zeros(3)
    mixed = 0
    for index in range(300):
        masked = mask_tokens(
            ids,
            0.15,
            special_tokens,
            np.arange(10, 10_000),
            generator(3, Stream.EXAMPLE, 0, index),
            words,
        )
        at = masked.labels != IGNORE_INDEX
        assert at.sum() == 60  # with so many words there is always one that fits
        behind, kept = masked.input_ids == special_tokens.mask, masked.input_ids == ids
        counts += (behind & at).sum(), (kept & at).sum(), (~behind & ~kept & at).sum()
        number = np.cumsum(words)
        mixed += sum(len(set(behind[at & (number == n)])) == 2 for n in np.unique(number[at]))
    expected = np.array([0.8, 0.1, 0.1]) * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 18.4
    assert mixed > 100


def test_every_word_is_hidden_in_some_draw(special_tokens: Any) -> None:
    words = np.array([1, 0, 1, 1, 0, 0] * 5, bool)
    ids, seen = np.arange(10, 40), set[int]()
    for index in range(200):
        masked = mask_tokens(
            ids, 0.2, special_tokens, ids, generator(5, Stream.EXAMPLE, 0, index), words
        )
        seen |= set(masked.labels.tolist())
    assert seen == {IGNORE_INDEX, *ids.tolist()}


def test_the_rest_of_a_word_that_began_before_its_piece_is_a_word(special_tokens: Any) -> None:
    documents = InMemoryDocuments.from_lists(
        [[list(range(20, 28))]], words=[1, 0, 0, 0, 0, 0, 1, 1]
    )  # type: ignore[list-item]
    way = mlm(special_tokens, max_length=6, mask_rate=0.5, whole_word_masking=True)
    second = way.chunks(documents)[1]
    assert second.words.tolist() == [False, False, True, True]
    seen = set()
    for index in range(40):
        labels = way.example(second, generator(0, Stream.EXAMPLE, 0, index)).labels
        seen.add(tuple(labels[labels != IGNORE_INDEX].tolist()))
    assert seen == {(24, 25), (26, 27)}


def test_specials_are_never_hidden_with_their_words(special_tokens: Any) -> None:
    ids = np.array([20, special_tokens.unk, 21, 22])
    words = np.array([True, False, False, True])
    for index in range(50):
        masked = mask_tokens(
            ids, 0.7, special_tokens, np.array([30]), generator(0, Stream.EXAMPLE, 0, index), words
        )
        assert masked.labels[1] == IGNORE_INDEX and masked.input_ids[1] == special_tokens.unk
    nothing = mask_tokens(ids[1:2], 0.7, special_tokens, np.array([30]), RNG, words[:1])
    assert (nothing.labels == IGNORE_INDEX).all()


def test_documents_that_do_not_know_their_words_are_refused_at_once(special_tokens: Any) -> None:
    with pytest.raises(UserError, match="whole-word masking needs word boundaries"):
        mlm(special_tokens, whole_word_masking=True).chunks(
            InMemoryDocuments.from_lists([[[20, 21]]])
        )
    assert len(mlm(special_tokens).chunks(InMemoryDocuments.from_lists([[[20, 21]]]))) == 1


def test_sight_is_the_whole_of_ones_own_text(
    special_tokens: Any, ids: Any, chunk: Any, chosen: Any
) -> None:
    way = mlm(special_tokens, max_length=9)
    first = way.example(chunk(ids("the cat")), chosen([[2], []], [0.5]))
    second = way.example(chunk(ids("sat")), chosen([[1], []], [0.5]))
    batch = way.collate([[first, second]])
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0, 0, 1, 1],
    ]
    assert batch.inputs.input_ids[0].tolist() == ids("[C] the [M] [S] [C] [M] [S] <p> <p>")
    assert batch.inputs.position_ids[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 0]
    assert batch.inputs.token_type_ids is None
    assert batch.targets.labels.tolist() == ids("cat sat")
    assert batch.targets.positions is not None and batch.targets.positions.tolist() == [2, 5]
    assert batch.counts == {"mlm": 2}


@pytest.mark.parametrize(
    ("tokens", "hidden"), [(1, 1), (3, 1), (9, 1), (10, 2), (40, 6), (100, 15), (510, 76)]
)
def test_fifteen_percent_are_predicted_in_every_draw(
    special_tokens: Any, tokens: int, hidden: int
) -> None:
    ids = np.arange(10, 10 + tokens)
    for index in range(20):
        masked = mask_tokens(
            ids, 0.15, special_tokens, np.arange(10, 20), generator(0, Stream.EXAMPLE, 0, index)
        )
        assert (masked.labels != IGNORE_INDEX).sum() == hidden


def test_the_shares_behind_a_mask_behind_another_and_kept_are_those_of_the_paper(
    special_tokens: Any,
) -> None:
    """80, 10 and 10 %, by chi-square with two degrees of freedom at one in ten thousand."""
    ordinary = np.arange(10, 1000)
    counts = np.zeros(3)
    swaps: list[int] = []
    for index in range(400):
        ids = generator(1, Stream.EXAMPLE, 0, index).integers(10, 1000, 200)
        masked = mask_tokens(
            ids, 0.15, special_tokens, ordinary, generator(2, Stream.EXAMPLE, 0, index)
        )
        at = masked.labels != IGNORE_INDEX
        assert (masked.labels[at] == ids[at]).all()
        assert (masked.input_ids[~at] == ids[~at]).all()
        behind, kept = masked.input_ids[at] == special_tokens.mask, masked.input_ids[at] == ids[at]
        counts += behind.sum(), kept.sum(), (~behind & ~kept).sum()
        swaps += masked.input_ids[at][~behind & ~kept].tolist()
    expected = np.array([0.8, 0.1, 0.1]) * counts.sum()
    assert counts.sum() == 400 * 30
    assert ((counts - expected) ** 2 / expected).sum() < 18.4
    # What is swapped in may be any ordinary token, and no other.
    assert set(swaps) <= set(ordinary.tolist()) and len(set(swaps)) > 600


def test_specials_in_a_text_are_neither_hidden_nor_swapped_in(special_tokens: Any) -> None:
    way = mlm(special_tokens)
    assert set(way.replacement_ids.tolist()) == set(range(80)) - special_tokens.ids
    ids = np.array(
        [
            special_tokens.cls,
            20,
            special_tokens.unk,
            21,
            special_tokens.sentinels[0],
            special_tokens.sep,
        ]
    )
    touched: set[int] = set()
    for index in range(200):
        masked = mask_tokens(
            ids, 0.5, special_tokens, way.replacement_ids, generator(0, Stream.EXAMPLE, 0, index)
        )
        touched |= set(np.flatnonzero(masked.labels != IGNORE_INDEX).tolist())
        assert (masked.labels != IGNORE_INDEX).sum() == 1
    assert touched == {1, 3}


def test_a_text_of_specials_alone_predicts_nothing(special_tokens: Any) -> None:
    masked = mask_tokens(
        np.array([special_tokens.unk] * 3), 0.15, special_tokens, np.array([20]), RNG
    )
    assert (masked.labels == IGNORE_INDEX).all() and (masked.input_ids == special_tokens.unk).all()


def test_the_text_itself_is_left_as_it_was(special_tokens: Any, chunk: Any) -> None:
    text = chunk(range(20, 60))
    mlm(special_tokens, mask_rate=0.9).example(text, RNG)
    assert text.ids.tolist() == list(range(20, 60))


def test_the_exam_hides_each_token_by_itself(special_tokens: Any, ids: Any, chunk: Any) -> None:
    exam = mlm(special_tokens).for_evaluation()
    chunks = exam.chunks(chunk(ids("the cat sat")).documents)
    examples = [exam.example(p, RNG) for p in chunks]
    assert [e.input_ids.tolist() for e in examples] == [
        ids("[C] [M] cat sat [S]"),
        ids("[C] the [M] sat [S]"),
        ids("[C] the cat [M] [S]"),
    ]
    assert [e.labels.tolist() for e in examples] == [
        ids(". the . . ."),
        ids(". . cat . ."),
        ids(". . . sat ."),
    ]


@pytest.mark.parametrize("role", ["mask", "cls", "sep"])
def test_a_tokenizer_that_lacks_a_token_is_refused(special_tokens: Any, role: str) -> None:
    with pytest.raises(UserError, match=role):
        mlm(dataclasses.replace(special_tokens, **{role: None}))


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0, 1.5])
def test_a_rate_that_is_no_share_is_refused(special_tokens: Any, rate: float) -> None:
    with pytest.raises(
        UserError, match=rf"objective.mask_rate={rate}: it must be above 0 and less than 1"
    ):
        mlm(special_tokens, mask_rate=rate)


def test_the_unknown_token_is_never_masked(special_tokens: Any) -> None:
    """A deviation of docs/weights.md: BERT's code masks it like any word."""
    ids = np.array([special_tokens.unk, *range(20, 29)])
    for seed in range(50):
        rng = generator(seed, Stream.ORDER)
        masked = mask_tokens(ids, 0.9, special_tokens, np.arange(20, 30), rng)
        assert masked.input_ids[0] == special_tokens.unk and masked.labels[0] == IGNORE_INDEX


@pytest.mark.parametrize("fixed", [False, True])
def test_fixed_masks_are_those_of_the_first_epoch_in_every_epoch(
    special_tokens: Any, fixed: bool
) -> None:
    texts = [[list(range(10 + n, 40 + n))] for n in range(6)]
    way = mlm(special_tokens, max_length=32, fixed_masks=fixed)
    feed = PackedDataset(way, InMemoryDocuments.from_lists(texts), batch_size=1, seed=4)

    def masked(epoch: int) -> dict[int, Any]:
        batches = [feed[epoch * len(feed) + n] for n in range(len(feed))]
        found = {}
        for batch in batches:
            ids, targets = batch.inputs.input_ids[0], batch.targets
            original = ids.clone()
            original[targets.positions] = targets.labels
            found[int(original[1])] = ids.tolist(), targets.labels.tolist()
        return found

    first = masked(0)
    assert len(first) == len(texts)
    same = [masked(epoch)[key] == first[key] for epoch in (1, 2) for key in first]
    assert all(same) if fixed else not any(same)


def test_fixed_masks_begin_with_the_masks_that_fresh_ones_begin_with(special_tokens: Any) -> None:
    documents = InMemoryDocuments.from_lists([[list(range(10, 60))]])
    feeds = [
        PackedDataset(
            mlm(special_tokens, max_length=32, fixed_masks=fixed), documents, batch_size=1
        )
        for fixed in (False, True)
    ]
    for fresh, fixed in zip(*([feed[n] for n in range(2)] for feed in feeds), strict=True):
        assert fresh.inputs.input_ids.tolist() == fixed.inputs.input_ids.tolist()
