"""The biattentive classification network and the reader: the paper's equations, text by text."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kinfolk.nn.biattention import (
    BCNConfig,
    FourfoldPooling,
    Maxout,
    PaddedTexts,
    ReaderConfig,
    biattention,
)
from kinfolk.nn.task_networks import TaskNetwork, TextFeatures

SIZE, LENGTHS = 5, (3, 1, 4, 6, 2, 2)


def texts(lengths: Sequence[int] = LENGTHS, *, output: bool = False) -> TextFeatures:
    """Draw the features of texts; those of each text do not depend on the others."""
    parts = [
        torch.randn(length, 2 * SIZE, generator=torch.Generator().manual_seed(100 * i + length))
        for i, length in enumerate(lengths)
    ]
    both = torch.cat(parts).double()
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return TextFeatures(
        both[:, :SIZE], ids, torch.arange(len(lengths)), both[:, SIZE:] if output else None
    )


def select(whole: TextFeatures, chosen: Sequence[int]) -> TextFeatures:
    """Return some texts alone, numbered from 0."""
    masks = [whole.text_ids == text for text in chosen]
    pick = torch.cat([torch.nonzero(mask)[:, 0] for mask in masks])
    ids = torch.cat([torch.full((int(mask.sum()),), i) for i, mask in enumerate(masks)])
    output = None if whole.output_features is None else whole.output_features[pick]
    return TextFeatures(whole.features[pick], ids, torch.arange(len(chosen)), output)


def network(c: BCNConfig | ReaderConfig, labels: int, *, output: bool = False) -> TaskNetwork:
    torch.manual_seed(0)
    names = [str(i) for i in range(labels)]
    return c.build(SIZE, SIZE if output else 0, names, 0.1).double().eval()


def test_each_text_of_a_pair_attends_to_the_other() -> None:
    whole = texts()
    found = biattention(whole.features, PaddedTexts(whole.text_ids), pair=True)
    for first in range(0, len(LENGTHS), 2):
        x, y = (whole.features[whole.text_ids == first + side] for side in (0, 1))
        a = x @ y.T
        c_y = torch.softmax(a.T, 0).T @ y  # normalized over the words of y
        c_x = torch.softmax(a, 0).T @ x
        torch.testing.assert_close(found[whole.text_ids == first], c_y)
        torch.testing.assert_close(found[whole.text_ids == first + 1], c_x)


def test_a_single_text_attends_to_itself_as_to_its_copy() -> None:
    whole = texts()
    found = biattention(whole.features, PaddedTexts(whole.text_ids), pair=False)
    twice = select(whole, [text for text in range(len(LENGTHS)) for _ in range(2)])
    expected = biattention(twice.features, PaddedTexts(twice.text_ids), pair=True)
    torch.testing.assert_close(found, expected[twice.text_ids % 2 == 0])


def test_pooling_is_maximum_mean_minimum_and_attentive_sum() -> None:
    whole, pool = texts(), FourfoldPooling(SIZE).double()
    found = pool(whole.features, PaddedTexts(whole.text_ids))
    for i in range(len(LENGTHS)):
        x = whole.features[whole.text_ids == i]
        weights = torch.softmax(x @ pool.score.weight[0] + pool.score.bias, 0)
        expected = torch.cat([x.amax(0), x.mean(0), x.amin(0), weights @ x])
        torch.testing.assert_close(found[i], expected)


def test_maxout_takes_the_largest_of_its_outputs() -> None:
    layer, x = Maxout(4, 3, 2), torch.randn(5, 4)
    every = layer.linear(x)
    expected = torch.stack([every[:, 2 * i : 2 * i + 2].amax(1) for i in range(3)], 1)
    assert layer(x).equal(expected)


CASES = [
    (BCNConfig(hidden_size=4), 1, 3),
    (BCNConfig(hidden_size=4, pair=True, num_layers=2), 2, 3),
    (ReaderConfig(hidden_size=4), 2, 2),
]


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize(("c", "size", "labels"), CASES, ids=["text", "pair", "reader"])
def test_scores_do_not_depend_on_the_other_instances(
    c: BCNConfig | ReaderConfig, size: int, labels: int, output: bool
) -> None:
    whole, own = texts(output=output), network(c, labels, output=output)
    alone = [
        own(select(whole, range(first, first + size))) for first in range(0, len(LENGTHS), size)
    ]
    torch.testing.assert_close(own(whole), torch.cat(alone))


@pytest.mark.parametrize(("c", "size", "labels"), CASES, ids=["text", "pair", "reader"])
def test_gradients_reach_every_parameter(
    c: BCNConfig | ReaderConfig, size: int, labels: int
) -> None:
    own = network(c, labels)
    scores: Tensor = own(texts())
    (
        scores * torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    ).sum().backward()
    silent = [n for n, p in own.named_parameters() if p.grad is None or not p.grad.any()]
    # What is added to all scores of a softmax has no effect on it.
    assert [n for n in silent if not n.endswith("score.bias")] == []


def test_a_reader_scores_no_answer_and_the_words_of_contexts() -> None:
    own = network(ReaderConfig(hidden_size=4), 2)
    assert own(texts()).shape == (3 + 1 + 6 + 2, 2)


def test_the_published_classifier_has_its_sizes() -> None:
    """GloVe and CoVe, 900 numbers, through 300 units in each direction (section 6)."""
    own = BCNConfig(pair=True).build(900, 0, ["a", "b", "c"], 0.0)
    shapes = {name: [*p.shape] for name, p in own.named_parameters()}
    assert shapes["biattention.project.weight"] == [300, 900]
    assert shapes["biattention.integrators.1.layers.0.weight_ih_l0"] == [1200, 1800]
    assert shapes["layers.0.linear.weight"] == [4 * 1200, 4800]
    assert shapes["layers.2.linear.weight"] == [4 * 3, 600]
