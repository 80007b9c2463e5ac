"""Pairs: the picture, who sees whom, what does not fit, and the smoothed loss."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.families.transformer import FAMILY
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.rng import Stream, generator

MARKS = ("<p>", "<u>", "<s>", "</s>", "[C]", "[S]", "[M]", "<x>", "<y>", "<z>")
KNOWN = (*MARKS, "the", "cat", "sat", "die", "Katze", "lag", "a", "dog", "ein", "Hund")


def words(text: str) -> list[int]:
    return [IGNORE_INDEX if word == "." else KNOWN.index(word) for word in text.split()]


def pairs(special_tokens: Any, **settings: Any) -> Seq2Seq:
    return Seq2Seq(
        special_tokens=special_tokens, vocab_size=len(KNOWN), **({"max_length": 8} | settings)
    )


def text(*both: tuple[str, str]) -> InMemoryDocuments:
    return InMemoryDocuments.from_lists([[words(source), words(target)] for source, target in both])


def test_the_picture_holds(special_tokens: Any) -> None:
    way = pairs(special_tokens)
    (chunk,) = way.chunks(text(("the cat sat", "die Katze lag")))
    example = way.example(chunk, generator(0, Stream.EXAMPLE, 0, 0))
    assert example.encoder_input_ids.tolist() == words("the cat sat </s>")
    assert example.input_ids.tolist() == words("<p> die Katze lag")
    assert example.labels.tolist() == words("die Katze lag </s>")


def test_sight_of_encoder_decoder_and_across(special_tokens: Any) -> None:
    way = pairs(special_tokens)
    both = text(("the cat", "die"), ("a dog sat", "ein Hund lag"))
    batch = way.collate(
        [[way.example(chunk, generator(0, Stream.EXAMPLE, 0, 0)) for chunk in way.chunks(both)]]
    )
    inputs, source = batch.inputs, batch.inputs.encoder_inputs
    assert source is not None
    assert source.input_ids[0].tolist() == words("the cat </s> a dog sat </s> <p>")
    assert inputs.input_ids[0].tolist() == words("<p> die <p> ein Hund lag <p> <p>")
    assert batch.targets.labels.tolist() == words("die </s> ein Hund lag </s> . .")
    assert source.position_ids[0].tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
    assert inputs.position_ids[0].tolist() == [0, 1, 0, 1, 2, 3, 0, 0]
    assert batch.counts == {"pairs": 6, "label_smoothing": 6}
    reading = [[1, 1, 1, 0, 0, 0, 0, 0]] * 3 + [[0, 0, 0, 1, 1, 1, 1, 0]] * 4
    assert source.attention_mask.dense()[0].int().tolist() == [*reading, [0] * 7 + [1]]
    assert inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1, 1],
    ]
    across = (
        inputs.attention_mask.document_ids[0][:, None]
        == source.attention_mask.document_ids[0][None, :]
    )
    assert across.int().tolist() == (
        [[1, 1, 1, 0, 0, 0, 0, 0]] * 2
        + [[0, 0, 0, 1, 1, 1, 1, 0]] * 4
        + [[0, 0, 0, 0, 0, 0, 0, 1]] * 2
    )


def test_a_pair_that_fits_no_row_is_left_out_aloud(special_tokens: Any) -> None:
    long = "the " * 8
    some = text(("the", "die"), (long, "die"), ("a dog", "ein Hund"), ("the", long))
    way = pairs(special_tokens)
    with pytest.warns(UserWarning, match=r"2 of 4 pairs are left out: .* 7 tokens .*--length 9"):
        chunks = way.chunks(some)
    assert chunks.document.tolist() == [0, 2]
    assert [chunk.ids.tolist() for chunk in chunks] == [words("the die"), words("a dog ein Hund")]
    assert len(way.with_max_length_for(some).chunks(some)) == 4  # and no warning
    assert way.with_max_length_for(text(("the", "die"))) == way
    with pytest.raises(UserError, match="no pair fits a row of 8 tokens: with --length 9 all fit"):
        way.chunks(text((long, "die")))


def test_a_text_that_is_no_pairs_is_refused(special_tokens: Any) -> None:
    for wrong, count in (([words("the")], 1), ([words("the"), words("cat"), words("sat")], 3)):
        document = InMemoryDocuments.from_lists([[words("the"), words("die")], wrong])
        with pytest.raises(UserError, match=f"document 2 .* has {count} sentences.*--source"):
            pairs(special_tokens).chunks(document)


@pytest.mark.parametrize("wrong", [-0.1, 1.0, 1.5])
def test_a_share_that_cannot_be_is_refused(special_tokens: Any, wrong: float) -> None:
    with pytest.raises(UserError, match=r"objective.label_smoothing=.*from 0 to less than 1"):
        pairs(special_tokens, label_smoothing=wrong)
    with pytest.raises(UserError, match="has no 'eos' token"):
        pairs(dataclasses.replace(special_tokens, eos=None))


def test_the_loss_is_smoothed_and_its_first_part_is_not(special_tokens: Any) -> None:
    torch.manual_seed(0)
    model = dataclasses.replace(FAMILY.sizes["nano"], vocab_size=len(KNOWN)).build()
    way = pairs(special_tokens, label_smoothing=0.3)
    feed = PackedDataset(way, text(("the cat", "die"), ("a dog sat", "ein Hund lag")), batch_size=1)
    batch = feed[0]
    loss = way.loss(model, batch)
    logits = model.lm_logits(model(batch.inputs).hidden[0]).logits()
    labels = batch.targets.labels
    whole = F.cross_entropy(logits, labels, label_smoothing=0.3)
    torch.testing.assert_close(loss.mean(batch.counts), whole)
    torch.testing.assert_close(loss.sums["pairs"] / 6, F.cross_entropy(logits, labels))
    found, expected = (
        torch.autograd.grad(one, list(model.parameters()), retain_graph=True)
        for one in (loss.mean(batch.counts), whole)
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    plain = way.for_evaluation().loss(model, way.for_evaluation().collate([feed.sequence(0)]))
    assert plain.sums.keys() == {"pairs"}
    torch.testing.assert_close(plain.sums["pairs"], loss.sums["pairs"])
    assert np.isfinite(plain.sums["pairs"].item())
