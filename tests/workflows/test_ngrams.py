"""Counts that write: the same chances as they score by, whatever lies around a text."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kinfolk
from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import IGNORE_INDEX, Inputs, KVCache
from kinfolk.data.corpus import Corpus
from kinfolk.data.datasets import evaluation_dataset
from kinfolk.errors import UserError
from kinfolk.families.ngram import NGram
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.objectives.clm import CLM
from kinfolk.workflows.baselines import (
    document_nll,
    end_ids,
    fit_documents,
    fit_ngram,
    load_or_fit,
    ngram_of_corpus,
)
from support.decoding import asked, generate
from support.runs import Home

VOCAB, BOS, EOS = 9, 7, 8


def fitted(order: int = 3, *, bos: int = BOS, documents: list[list[int]] | None = None) -> NGram:
    rng = np.random.default_rng(order)
    drawn = [rng.zipf(1.5, rng.integers(0, 12)).clip(max=6) for _ in range(60)]
    texts = drawn if documents is None else [np.array(d, np.int64) for d in documents]
    return fit_documents(texts, vocab_size=VOCAB, order=order, bos=bos, eos=EOS)


def nll(model: NGram, document: Any, bos: int = BOS, eos: int = EOS) -> np.ndarray:
    (found,) = document_nll(model, [np.asarray(document)], bos, eos)
    return found


def scores(model: NGram, inputs: Inputs) -> Tensor:
    return model.lm_logits(model(inputs).hidden).logits()


def row(ids: list[int], document: list[int], state: KVCache | None = None) -> Inputs:
    texts = torch.tensor([document])
    places = torch.arange(len(ids))[None]
    attention_mask = AttentionMask(texts, places, places)
    return Inputs(
        input_ids=torch.tensor([ids]),
        attention_mask=attention_mask,
        position_ids=places,
        cache=state,
    )


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("bos", [BOS, EOS])
def test_the_distribution_is_that_of_the_costs(order: int, bos: int) -> None:
    model = fitted(order, bos=bos)
    line = [1, 2, 1, 1, 5, 0, 6]  # 0 was never seen
    chances = scores(model, Inputs.from_ids(torch.tensor([[bos, *line]]), causal=True))[0].exp()
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-6)
    for place in range(len(line) + 1):
        every = [nll(model, [*line[:place], token], bos)[-2] for token in range(VOCAB)]
        np.testing.assert_allclose(-chances[place].log(), every, rtol=1e-12)


def test_greedy_text_is_the_one_most_said() -> None:
    model = fitted(documents=[[1, 2, 3], [1, 2, 3], [1, 2, 4], [5, 2, 6, 6]])
    prompts = [[BOS], [BOS, 1], [BOS, 5, 2], [5, 2]]
    found = generate(model, asked(prompts, max_new_tokens=9, eos_ids={EOS}), GREEDY)
    assert [text.ids for text in found] == [[1, 2, 3], [2, 3], [6, 6], [6, 6]]
    assert all(text.finished for text in found)
    costs = nll(model, [1, 2, 3])
    assert found[0].logprobs == pytest.approx((-costs[:-1]).tolist(), abs=1e-6)


def test_drawn_tokens_come_as_often_as_they_are_likely() -> None:
    model, texts = fitted(), 4000
    found = generate(model, asked([[BOS, 1]] * texts, max_new_tokens=1, eos_ids=(), seed=1))
    drawn = np.bincount([text.ids[0] for text in found], minlength=VOCAB) / texts
    expected = scores(model, Inputs.from_ids(torch.tensor([[BOS, 1]]), causal=True))[0, -1]
    expected = expected.exp().numpy()
    assert (abs(drawn - expected) < 4 * np.sqrt(expected * (1 - expected) / texts)).all()
    assert expected.max() < 0.9  # there is something to choose


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_cached_step_equals_a_full_pass(order: int) -> None:
    model = fitted(order)
    ids = torch.tensor([[BOS, 1, 2, 1, 1, 3], [2, 1, 1, 4, 1, 2]])
    whole, state = Inputs.from_ids(ids, causal=True), KVCache(6)
    full = scores(model, whole)
    for start, stop in ((0, 1), (1, 2), (2, 5), (5, 6)):
        part = Inputs(
            input_ids=ids[:, start:stop],
            attention_mask=AttentionMask.causal(torch.zeros_like(ids[:, start:stop])),
            position_ids=whole.position_ids[:, start:stop],
            cache=state,
        )
        assert torch.equal(scores(model, part), full[:, start:stop])


@pytest.mark.parametrize("state", [None, KVCache(9)])
def test_neither_padding_nor_a_neighbour_is_history(state: KVCache | None) -> None:
    model, ids = fitted(4), [1, 2, 1]
    alone = scores(model, row(ids, [0, 0, 0]))
    padded = scores(model, row([4, 4, *ids], [PADDING_ID, PADDING_ID, 0, 0, 0], state))
    assert torch.equal(padded[:, 2:], alone)
    packed = scores(model, row([3, 3, *ids], [5, 5, 6, 6, 6]))
    assert torch.equal(packed[:, 2:], alone)
    # The same tokens of the same text are history.
    assert not torch.equal(scores(model, row([3, 3, *ids], [0] * 5))[:, 2:], alone)


def test_padding_changes_no_text() -> None:
    model, prompts = fitted(4), [[BOS], [BOS, 1, 1, 2, 1], [BOS, 2, 1]]
    together = generate(model, asked(prompts, max_new_tokens=6, eos_ids={EOS}, seed=3))
    for number, prompt in enumerate(prompts):
        request = asked([prompt], max_new_tokens=6, eos_ids={EOS}, seed=3, first=number)
        assert generate(model, request) == [together[number]]


def test_beams_that_hold_everything_find_the_likeliest_text() -> None:
    model = fitted(4)
    request = asked([[BOS, 1]], max_new_tokens=2, eos_ids=())
    (found,) = generate(model, request, GenerationConfig(num_beams=VOCAB, length_penalty=0.0))
    texts = list(product(range(VOCAB), repeat=2))
    costs = [nll(model, [1, *text])[1:3].sum() for text in texts]
    assert tuple(found.ids) == texts[int(np.argmin(costs))]
    assert sum(found.logprobs) == pytest.approx(-min(costs), abs=1e-5)


def test_a_state_follows_its_rows() -> None:
    model, state = fitted(), KVCache(4)
    first, last = torch.tensor([[BOS, 1], [2, 3], [1, 1]]), torch.tensor([[1], [2], [1]])
    rows = torch.tensor([2, 0, 2])
    begun = Inputs.from_ids(first, causal=True)
    model(
        Inputs(
            input_ids=first,
            attention_mask=begun.attention_mask,
            position_ids=begun.position_ids,
            cache=state,
        )
    )
    state.reorder(rows)
    step = Inputs.from_ids(last, causal=True)
    found = scores(
        model,
        Inputs(
            input_ids=last,
            attention_mask=step.attention_mask,
            position_ids=step.position_ids,
            cache=state,
        ),
    )
    whole = scores(model, Inputs.from_ids(torch.cat([first[rows], last], 1), causal=True))
    assert torch.equal(found[:, 0], whole[:, -1])


def test_the_loss_of_labels_leaves_out_what_is_ignored() -> None:
    model = fitted()
    ids = torch.tensor([[BOS, 1, 2, 1]])
    prediction = model.lm_logits(model(Inputs.from_ids(ids, causal=True)).hidden)
    labels = torch.tensor([[1, 2, IGNORE_INDEX, EOS]])
    costs = nll(model, [1, 2, 1])
    assert prediction.nll(labels).item() == pytest.approx(costs[[0, 1, 3]].sum())


def test_packed_rows_cost_what_documents_cost(home: Home) -> None:
    """By the objective of every decoder, the loss is that of the line under the curves."""
    model, tokenizer = ngram_of_corpus(home.corpus)
    read = Corpus.open(home.corpus / "holdout")
    longest = int(np.diff(read.starts).max()) + 2
    way = CLM(
        special_tokens=tokenizer.special_tokens,
        vocab_size=tokenizer.vocab_size,
        max_length=2 * longest,
    ).for_evaluation()
    feed = evaluation_dataset(way, read, rows=4)
    batches = [feed[number] for number in range(len(feed))]
    nats = sum(float(way.loss(model, batch).sums[way.loss_name]) for batch in batches)
    texts = (read.document(i) for i in range(read.documents))
    expected = [*document_nll(model, texts, *end_ids(read))]
    assert sum(batch.counts[way.loss_name] for batch in batches) == sum(map(len, expected))
    assert nats == pytest.approx(sum(x.sum() for x in expected), rel=1e-9)


def test_a_corpus_is_counted_as_for_the_line_under_the_curves(home: Home) -> None:
    corpus = Corpus.open(home.corpus)
    model, tokenizer = ngram_of_corpus(home.corpus)
    assert tokenizer.fingerprint == corpus.tokenizer_hash
    line, text = fit_ngram([(corpus, 1.0)]), corpus.document(0)
    ends = end_ids(corpus)
    np.testing.assert_array_equal(nll(model, text, *ends), nll(line, text, *ends))
    assert ngram_of_corpus(home.corpus, 2)[0].config.order == 2


def test_a_corpus_or_a_model_can_be_opened_and_writes(home: Home, runs: dict[str, Path]) -> None:
    model, tokenizer = load_or_fit(home.corpus)
    assert isinstance(model, NGram)
    text = kinfolk.generate(model, tokenizer, "The cat", max_new_tokens=40, seed=2)
    assert "." in text and "\N{REPLACEMENT CHARACTER}" not in text
    network, other = load_or_fit(runs["gpt2"])
    assert other.fingerprint == tokenizer.fingerprint
    assert kinfolk.generate(network, other, "The cat", max_new_tokens=3)
    with pytest.raises(UserError, match="no such folder"):
        load_or_fit(home.folder / "none")
