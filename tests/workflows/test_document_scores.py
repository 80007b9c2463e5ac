"""The likelihood of each held-out document adds up to that of the text, for every family."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.corpus import Corpus
from kinfolk.data.prepare import prepare
from kinfolk.families import families
from kinfolk.metrics.comparison import BITS_PER_BYTE, document_statistics
from kinfolk.text import train_tokenizer
from kinfolk.workflows.baselines import document_scores, fit_ngram, fit_unigram, score_text
from kinfolk.workflows.evaluate import TextEvaluation, scoring_objective
from kinfolk.workflows.recipe import recipe
from support.pairs import halves
from support.runs import Home, text

UNSCORED = {"bilstm", "cvt", "cove"}  # they have no likelihood of texts
FAMILIES = [name for name in families() if name not in UNSCORED]


def fresh(family: str, corpus: Path) -> TextEvaluation:
    """Open the evaluation of a network that was not trained, whose tokens differ in likelihood."""
    objective = "spans" if family == "transformer" else None  # its own is for pairs of texts
    plan = recipe(f"{family}/nano", corpus, length=32, objective=objective)
    torch.manual_seed(0)
    model = plan.model.build()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter) if parameter.is_floating_point() else 0
    held_out = Corpus.open(corpus / "holdout")
    return TextEvaluation(
        model=model,
        objective=plan.objective,
        scoring=scoring_objective(model, plan.objective),
        documents=held_out,
        sizes=np.array([held_out.bytes]),
        tokenizer=held_out.tokenizer(),
        length=None,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_have_the_nats_and_bytes_of_their_text(home: Home, family: str) -> None:
    evaluation = fresh(family, home.corpus)
    limits: Any = {"max_tokens": 97} if "each token" in evaluation.kind else {}
    scores = evaluation.likelihood(4, **limits)
    documents = evaluation.document_scores(4, **limits)
    nats, sizes = np.sum(documents, axis=0)
    assert len(documents) == Corpus.open(home.corpus / "holdout").documents
    assert sizes == pytest.approx(scores.bytes, rel=1e-9)
    scale = (scores.sampled_from or scores.tokens) / scores.tokens
    assert (scale > 1) == bool(limits)
    assert nats == pytest.approx(scores.nats * scale, rel=1e-6)
    bits = BITS_PER_BYTE.aggregate(document_statistics(documents))
    assert bits == pytest.approx(scores.bits_per_byte, rel=1e-6)


@pytest.mark.parametrize(
    "family",
    [
        *("gpt2", "transformer_xl", "bert", "glm"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("elmo", "xlnet", "t5")),
    ],
)
def test_a_document_has_the_score_that_it_has_alone(home: Home, family: str) -> None:
    """Its rows are shared with other documents, and it is longer than a row."""
    evaluation = fresh(family, home.corpus)
    held_out = Corpus.open(home.corpus / "holdout")
    found = [nats for nats, _ in evaluation.document_scores(4)]
    longest = int(np.diff(held_out.starts).argmax())
    for number in (0, longest):
        ids = held_out.document(number).tolist()
        alone = replace(evaluation, documents=InMemoryDocuments.from_lists([[ids]]))
        assert found[number] == pytest.approx(alone.likelihood(4).nats, rel=1e-5)
    assert len(ids) > 32


def test_pairs_are_scored_by_their_targets(home: Home) -> None:
    plan = recipe("transformer/nano", home.corpus, length=32)
    evaluation = fresh("transformer", home.corpus)
    pairs = halves(evaluation.documents)
    scoring = scoring_objective(evaluation.model, plan.objective)
    evaluation = replace(evaluation, scoring=scoring, documents=pairs, sizes=np.array([1000]))
    scores, documents = evaluation.likelihood(4), evaluation.document_scores(4)
    assert len(documents) == len(pairs.starts) - 1
    assert np.sum(documents, axis=0) == pytest.approx([scores.nats, 1000], rel=1e-6)


def test_bytes_of_documents_are_those_of_their_texts(home: Home) -> None:
    written = {len(part.strip().encode()) for part in text().split("\n\n")}
    evaluation = fresh("gpt2", home.corpus)
    assert {round(size) for size in evaluation.document_bytes().tolist()} <= written


def test_a_tokenizer_that_loses_text_still_gives_all_bytes_to_documents(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text(text(40).replace("cat", "CÄT"), encoding="utf-8")
    tokenizer = train_tokenizer([text(40)], kind="wordpiece", vocab_size=200)
    prepare([source], tokenizer=tokenizer, out=tmp_path / "corpus", holdout=0.4)
    evaluation = fresh("bert", tmp_path / "corpus")
    sizes = evaluation.document_bytes()
    assert sizes.sum() == pytest.approx(evaluation.bytes)
    assert (sizes > 0).all()


def test_counting_models_score_each_document_to_its_end(home: Home) -> None:
    train, held_out = Corpus.open(home.corpus), Corpus.open(home.corpus / "holdout")
    ngram = fit_ngram([(train, 1.0)], order=3)
    counted = np.sum(document_scores(ngram, held_out), axis=0)
    scores = score_text(ngram, held_out)
    assert counted == pytest.approx([scores.nats, scores.bytes])
    # A model of single tokens is fitted on training text, and is a distribution with the end.
    unigram = fit_unigram([train])
    assert np.exp(-unigram.costs).sum() == pytest.approx(1)
    alone = np.sum(document_scores(unigram, held_out), axis=0)
    one = fit_ngram([(train, 1.0)], order=1)
    assert alone[1] == held_out.bytes
    assert alone[0] == pytest.approx(score_text(one, held_out).nats, rel=0.05)
    assert counted[0] < 0.6 * alone[0]
