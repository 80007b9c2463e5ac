"""Scores are what a slow and simple computation gives."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import kinfolk
from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import read_documents
from kinfolk.errors import UserError
from kinfolk.nn.meta import count_parameters
from kinfolk.tasks.formulations.text_to_text import TextToText
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import SourceTarget
from kinfolk.tasks.task import Task
from kinfolk.text import Tokenizer
from kinfolk.workflows.baselines import Baselines
from kinfolk.workflows.evaluate import evaluate
from support.runs import LENGTH, Home

SHORT = ["The cat saw a ball again.", "A dog forgot the letter.", "A"]


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Write documents that fit one piece each."""
    path = tmp_path / "short.txt"
    path.write_text("\n\n".join(SHORT), encoding="utf-8")
    return path


def ids_of(tokenizer: Tokenizer) -> list[list[int]]:
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in SHORT]
    assert all(1 <= len(document) < LENGTH - 2 for document in ids)
    return ids


def test_a_decoder_is_scored_by_the_likelihood(short: Path, runs: dict[str, Path]) -> None:
    model, tokenizer = kinfolk.load(runs["gpt2"])
    bos, eos = tokenizer.special_tokens.require("bos"), tokenizer.special_tokens.require("eos")
    nats, tokens = 0.0, 0
    for ids in ids_of(tokenizer):
        scores = kinfolk.logits(model, [bos, *ids]).double().log_softmax(-1)
        nats -= sum(scores[place, id].item() for place, id in enumerate([*ids, eos]))
        tokens += len(ids) + 1
    score = evaluate(runs["gpt2"], file=short)
    assert (score.tokens, score.bytes) == (tokens, sum(len(text.encode()) for text in SHORT))
    assert score.nats == pytest.approx(nats, rel=1e-5)
    assert score.kind == "likelihood, left to right"


def test_a_text_has_one_perplexity_as_a_text_and_as_a_task(
    tmp_path: Path, runs: dict[str, Path]
) -> None:
    """`evaluate --text` and `evaluate --test` with the task lm agree, also over several windows."""
    path = tmp_path / "long.txt"
    path.write_text("\n\n".join([*SHORT, " ".join(SHORT * 9)]), encoding="utf-8")
    model, tokenizer = kinfolk.load(runs["gpt2"])
    formulation = TextToText(
        task=Task(kind="lm"), max_length=LENGTH, pad_id=tokenizer.special_tokens.pad
    )
    rows = [SourceTarget("", one.text, n) for n, one in enumerate(read_documents([path]), 1)]
    predictions = predict_rows(formulation, model, rows, tokenizer)
    score = evaluate(runs["gpt2"], file=path, length=LENGTH)
    assert sum(p.tokens for p in predictions) == score.tokens
    found = formulation.task.evaluate(rows, predictions)
    assert found["perplexity"] == pytest.approx(score.perplexity, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(score.bits_per_byte, rel=1e-5)


def test_an_encoder_is_scored_by_masking_one_by_one(short: Path, runs: dict[str, Path]) -> None:
    model, tokenizer = kinfolk.load(runs["bert"])
    cls, sep, mask = (tokenizer.special_tokens.require(role) for role in ("cls", "sep", "mask"))
    nats, tokens = 0.0, 0
    for ids in ids_of(tokenizer):
        for place, id in enumerate(ids):
            row = [cls, *ids, sep]
            row[place + 1] = mask
            nats -= kinfolk.logits(model, row).double().log_softmax(-1)[place + 1, id].item()
            tokens += 1
    score = evaluate(runs["bert"], file=short)
    assert (score.tokens, score.bytes) == (tokens, sum(len(text.encode()) for text in SHORT))
    assert score.nats == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "span", "every"),
    [
        ((), 3, 7),  # 15 % of a text at a time: every seventh span
        (("objective.mask_rate=0.33", "objective.mean_span_length=2", "train.steps=4"), 2, 3),
    ],
)
def test_an_encoder_decoder_is_scored_by_the_spans_of_its_run(
    settings: tuple[str, ...], span: int, every: int, short: Path, home: Home
) -> None:
    run = home.run("t5", f"t5-{span}" if settings else None, *settings)
    model, tokenizer = kinfolk.load(run)
    special_tokens = tokenizer.special_tokens
    nats, tokens = 0.0, 0
    for ids in ids_of(tokenizer):
        spans = [ids[i : i + span] for i in range(0, len(ids), span)]
        for turn in range(min(every, len(spans))):
            source: list[int] = []
            target: list[int] = []
            sentinels = iter(special_tokens.sentinels)
            for number, some in enumerate(spans):
                if number % every == turn:
                    sentinel = next(sentinels)
                    source.append(sentinel)
                    target += [sentinel, *some]
                else:
                    source += some
            eos = special_tokens.require("eos")
            scores = kinfolk.logits(model, [*target, eos], [*source, eos]).double()
            scores = scores.log_softmax(-1)
            for place, id in enumerate(target):
                if id not in special_tokens.sentinels:
                    nats -= scores[place, id].item()
                    tokens += 1
    assert tokens == sum(map(len, ids_of(tokenizer)))
    score = evaluate(run, file=short)
    assert score.tokens == tokens
    assert score.nats == pytest.approx(nats, rel=1e-5)


def test_rows_at_a_time_change_no_score(home: Home, runs: dict[str, Path]) -> None:
    many = evaluate(runs["gpt2"], corpus=home.corpus / "holdout")
    one = evaluate(runs["gpt2"], corpus=home.corpus / "holdout", rows=1)
    assert one.tokens == many.tokens
    assert one.nats == pytest.approx(many.nats, rel=1e-5)
    seen = evaluate(runs["gpt2"], corpus=home.corpus / "holdout", length=8)
    assert seen.tokens == many.tokens
    assert seen.nats != pytest.approx(many.nats, rel=1e-5)


def test_a_text_and_its_corpus_have_one_score(home: Home, runs: dict[str, Path]) -> None:
    held_out = Corpus.open(home.corpus / "holdout")
    tokenizer = held_out.tokenizer()
    texts = [tokenizer.decode(held_out.document(i)) for i in range(held_out.documents)]
    path = home.folder / "held_out.md"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    by_text = evaluate(runs["gpt2"], file=path)
    by_corpus = evaluate(runs["gpt2"], corpus=home.corpus / "holdout")
    assert (by_text.tokens, by_text.bytes) == (by_corpus.tokens, by_corpus.bytes)
    assert by_text.nats == pytest.approx(by_corpus.nats, rel=1e-6)


def test_a_corpus_of_another_tokenizer_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    other = Home.make(tmp_path, seed=1)
    with pytest.raises(UserError, match="tokenized with another tokenizer"):
        evaluate(runs["gpt2"], corpus=other.corpus)


def test_the_unigram_line_is_the_entropy_of_held_out_tokens(home: Home) -> None:
    corpus, held_out = Corpus.open(home.corpus), Corpus.open(home.corpus / "holdout")
    found = Baselines([(corpus, held_out, 1.0)])
    shares = np.unique(held_out.ids(0, held_out.tokens), return_counts=True)[1] / held_out.tokens
    assert found.unigram == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert found.trigram is not None
    # It predicts every token, and the end of every document.
    assert found.trigram.tokens == held_out.tokens + held_out.documents
    assert found.trigram.bytes == held_out.bytes
    assert found.trigram.loss < found.unigram
    assert Baselines([(corpus, None, 1.0)]).trigram is None


def test_parameters_are_counted_once_and_without_padding(runs: dict[str, Path]) -> None:
    model, _ = kinfolk.load(runs["gpt2"])
    c = model.config
    block = 12 * c.hidden_size**2 + 13 * c.hidden_size
    tables = (c.vocab_size + c.max_length) * c.hidden_size
    assert count_parameters(model) == tables + c.num_layers * block + 2 * c.hidden_size
    assert count_parameters(torch.nn.Linear(3, 2)) == 8


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
def test_a_list_of_texts_has_the_scores_of_each(name: str, runs: dict[str, Path]) -> None:
    texts = [*SHORT, " ".join(SHORT * 9)]  # the last has several windows
    opened = kinfolk.load(runs[name])
    opened[0].train()
    scores = evaluate(opened, text=texts)
    assert opened[0].training
    assert [score.bytes for score in scores] == [len(text.encode()) for text in texts]
    # Spans are drawn anew for each number of a text: those of the first are those of one text.
    for text, score in list(zip(texts, scores, strict=True))[: 1 if name == "t5" else None]:
        alone = evaluate(opened, text=text)
        assert (score.tokens, score.kind) == (alone.tokens, alone.kind)
        assert score.nats == pytest.approx(alone.nats, rel=1e-5)
        assert score.bits_per_byte == pytest.approx(alone.bits_per_byte, rel=1e-5)
        assert alone.nats == pytest.approx(evaluate(runs[name], text=text).nats, rel=1e-5)


def test_a_list_without_texts_or_with_an_empty_one_is_refused(runs: dict[str, Path]) -> None:
    opened = kinfolk.load(runs["gpt2"])
    with pytest.raises(UserError, match="text is empty: there is nothing to score"):
        evaluate(opened, text=[])
    with pytest.raises(UserError, match="text 2 is empty"):
        evaluate(opened, text=["a cat", " \n"])
    with pytest.raises(UserError, match="max_tokens applies to one text"):
        evaluate(opened, text=["a cat"], max_tokens=3)
    with pytest.raises(UserError, match="test needs the folder of a fine-tuned model"):
        evaluate(opened, test=[{"text": "a", "label": "b"}])  # type: ignore[call-overload]
