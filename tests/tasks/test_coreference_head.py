"""The coreference head: candidate spans, targets, loss, clusters, and texts that it learns."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.config import from_json, to_json
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.hub import load, save
from kinfolk.nn.coreference import (
    CoreferenceScores,
    bucket,
    compare_speakers,
    nearest_antecedents,
    prune_mentions,
)
from kinfolk.nn.task_heads import FIXED_LABELS, ModelWithHead, ModelWithHeadConfig, pooling_of
from kinfolk.tasks.formats.base import FileSpec, read_rows
from kinfolk.tasks.formulations.coreference_head import MentionRanking, split_document
from kinfolk.tasks.instances import TaskBatches, predict_rows
from kinfolk.tasks.rows import CorefDocument, WordRange
from kinfolk.tasks.task import Prediction, Task
from kinfolk.text import Tokenizer, train_tokenizer

SHE, HE = ("ann", "eve", "mary"), ("bob", "tom", "jim")
VERBS = ("smiled", "slept", "sang", "laughed")
GIVEN = pytest.mark.parametrize("given", [True, False], ids=["given", "found"])


def story(number: int, *, given: bool, sentences: int = 3) -> CorefDocument:
    """Make up a document: a woman and a man meet, and then do things under other names."""
    chance = random.Random(number)
    pair = (chance.choice(SHE), chance.choice(HE))
    turned = chance.randrange(2)
    text: list[tuple[str, ...]] = [
        (pair[turned], chance.choice(("met", "saw")), pair[1 - turned], ".")
    ]
    spans: dict[int, list[WordRange]] = {turned: [(0, 1)], 1 - turned: [(2, 3)]}
    place = 4
    for _ in range(chance.randint(1, sentences)):
        who = chance.randrange(2)
        name = chance.choice((("she", "he")[who], ("the old woman", "the old man")[who])).split()
        text.append((*name, chance.choice(VERBS), chance.choice(("again", "twice")), "."))
        spans[who].append((place, place + len(name)))
        place += len(text[-1])
    clusters = tuple(tuple(some) for some in spans.values() if len(some) > 1)
    mentions = tuple(span for some in spans.values() for span in some) if given else None
    return CorefDocument(str(number), tuple(text), clusters, number, mentions)


PICTURE = CorefDocument(
    "picture",
    (("ann", "met", "bob", "."), ("she", "smiled")),
    (((0, 1), (4, 5)),),
    1,
    ((0, 1), (2, 3), (4, 5)),
)
WORDS = "ann met bob . she smiled"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [" ".join(story(number, given=True).words) for number in range(200)]
    return train_tokenizer(texts, kind="wordpiece", vocab_size=180)


def formulation(tokenizer: Tokenizer, **more: Any) -> MentionRanking:
    facts = {
        "max_length": 64,
        "pad_id": tokenizer.special_tokens.pad,
        "max_span_length": 3,
        "spans_per_word": 0.5,
    } | more
    return MentionRanking(task=Task(kind="coref"), **facts)


def network(tokenizer: Tokenizer, member: str = "bert", **more: Any) -> ModelWithHead:
    body: Any = (
        family(member).sizes["nano"].with_fields(vocab_size=tokenizer.vocab_size, dropout=0.0)
    )
    torch.manual_seed(0)
    given: dict[str, Any] = {"labels": FIXED_LABELS["coref"], "dropout": 0.0} | more
    return (
        ModelWithHeadConfig(backbone=body, head="coref", pooling=pooling_of(body), **given)
        .build()
        .eval()
    )


def asked(formulation: MentionRanking, row: CorefDocument, tokenizer: Tokenizer) -> Any:
    return formulation.make_batch(formulation.instances(row, tokenizer))


def test_the_picture_holds(tokenizer: Tokenizer) -> None:
    batch = asked(formulation(tokenizer), PICTURE, tokenizer)
    key = batch.targets
    read = batch.inputs.input_ids.flatten()[key.read_at]
    assert read.tolist() == [tokenizer.offsets(word)[0][0] for word in WORDS.split()]
    assert key.first.tolist() == key.last.tolist() == [0, 2, 4]
    assert key.target.tolist() == [1, 0, 1]
    assert (key.max_mentions.tolist(), key.document.tolist()) == ([3], [0, 0, 0])
    assert key.speaker.tolist() == [-1, -1, -1]
    size = sum(len(tokenizer.offsets(word)[0]) for word in WORDS.split())
    assert batch.counts == {"label": 3, "mentions": 0, "tokens": size + 2}


def test_where_mentions_are_not_given_every_short_span_of_a_sentence_may_be_one(
    tokenizer: Tokenizer,
) -> None:
    row = replace(PICTURE, mentions=None, clusters=(((0, 2), (4, 6)),))
    (example,) = formulation(tokenizer, max_span_length=2, spans_per_word=0.4).instances(
        row, tokenizer
    )
    inside = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4), (4, 5), (4, 6), (5, 6)]
    assert list(example.metadata.spans) == inside
    assert example.target == [int(span in ((0, 2), (4, 6))) for span in inside]
    assert example.metadata.max_mentions == 3  # 0.4 x 6 words, rounded up


def test_spans_of_several_documents_lie_one_behind_the_other(tokenizer: Tokenizer) -> None:
    solve = formulation(tokenizer)
    rows = [PICTURE, replace(PICTURE, clusters=(), mentions=((1, 4), (4, 6)))]
    key = solve.make_batch([e for row in rows for e in solve.instances(row, tokenizer)]).targets
    assert isinstance(key.target, Tensor) and key.target.tolist() == [1, 0, 1, 0, 0]
    batch: Any = key
    assert batch.first.tolist() == [0, 2, 4, 7, 10]
    assert batch.last.tolist() == [0, 2, 4, 9, 11]
    assert (batch.document.tolist(), batch.max_mentions.tolist()) == ([0, 0, 0, 1, 1], [3, 2])


def test_who_speaks_is_known_by_the_first_word(tokenizer: Tokenizer) -> None:
    said = (("eve", "tom", "-", "tom"), ("eve", "eve"))
    (example,) = formulation(tokenizer).instances(replace(PICTURE, speakers=said), tokenizer)
    assert example.metadata.speakers == (0, -1, 0)


def test_the_best_of_each_document_are_kept_in_their_order() -> None:
    worth = torch.tensor([0.1, 0.9, 0.5, -3.0, -1.0, -2.0, 7.0])
    document = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    assert prune_mentions(worth, document, torch.tensor([2, 1, 3])).tolist() == [1, 2, 4, 6]


def test_antecedents_are_the_nearest_of_the_same_document() -> None:
    found = nearest_antecedents(torch.tensor([0, 0, 0, 1, 1]), 2)
    assert found.tolist() == [[-1, -1], [0, -1], [1, 0], [-1, -1], [3, -1]]


def test_features_are_those_of_the_paper() -> None:
    sizes = torch.tensor([1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 900])
    assert bucket(sizes).tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    one, other = torch.tensor([-1, 2, 2, 2]), torch.tensor([-1, -1, 2, 3])
    assert compare_speakers(one, other).tolist() == [0, 0, 1, 2]


def by_hand(model: ModelWithHead, words: Tensor, key: Any) -> Tensor:
    """Score one document pair by pair, as the paper writes it: (spans, spans), 0 for none."""
    head: Any = model.head
    vectors = []
    for first, last in zip(key.first, key.last, strict=True):
        inside = words[first : last + 1]
        mean = head.attend(inside).softmax(0).T @ inside
        length = head.lengths(bucket(last - first + 1))
        vectors.append(head.span(torch.cat([words[first], words[last], mean[0], length])))
    scores = torch.full((len(vectors), len(vectors)), -torch.inf)
    for i, later in enumerate(vectors):
        scores[i, i] = 0.0
        for j, earlier in enumerate(vectors[:i]):
            apart = head.distances(bucket(torch.tensor(i - j)))
            said = head.speakers(compare_speakers(key.speaker[i], key.speaker[j]))
            pair = head.pair(torch.cat([later, earlier, later * earlier, apart, said]))
            scores[i, j] = head.mention(later) + head.mention(earlier) + pair
    return scores


@torch.no_grad()
def test_scores_and_loss_are_those_written_by_hand(tokenizer: Tokenizer) -> None:
    mentions = ((0, 1), (0, 3), (2, 3), (4, 5), (4, 6))
    said = (("eve",) * 4, ("-", "tom"))
    clusters = (((0, 1), (2, 3), (4, 5)),)
    row = replace(PICTURE, mentions=mentions, speakers=said, clusters=clusters)
    solve, model = formulation(tokenizer), network(tokenizer)
    batch = asked(solve, row, tokenizer)
    words = model(batch.inputs).hidden.flatten(0, 1)[batch.targets.read_at]
    expected = by_hand(model, words, batch.targets)
    found: CoreferenceScores = solve.score_antecedents(model, batch)
    assert expected[torch.isfinite(expected)].std() > 0.1
    for i, row_of in enumerate(found.scores):
        torch.testing.assert_close(row_of[: i + 1], expected[i, : i + 1].flip(0))
        assert torch.isneginf(row_of[i + 1 :]).all()
    right = [[0], [1], [0], [0, 2], [4]]  # 1 and 4 are in no cluster, and 0 is the first of its own
    shares = expected.softmax(-1)
    loss = -sum(shares[i, some].sum().log() for i, some in enumerate(right))
    torch.testing.assert_close(solve.loss(model, batch).sums["label"], loss)


def test_a_gradient_reaches_every_weight(tokenizer: Tokenizer) -> None:
    solve, model = formulation(tokenizer), network(tokenizer)
    batch = asked(solve, story(3, given=False), tokenizer)
    solve.loss(model, batch).mean(batch.counts).backward()  # type: ignore[no-untyped-call]
    idle = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not idle
    assert all(weight.grad.any() for weight in model.head.span.parameters())  # type: ignore[union-attr]


def test_spans_that_are_not_kept_are_learned_from_unless_mentions_are_given(
    tokenizer: Tokenizer,
) -> None:
    solve, model = formulation(tokenizer, spans_per_word=0.3), network(tokenizer)
    batch = asked(solve, replace(PICTURE, mentions=None), tokenizer)
    found = solve.score_antecedents(model, batch)
    assert (
        batch.counts["label"] == len(found.mention_indices) == 2 < len(found.mention_scores) == 12
    )
    right = torch.where(batch.targets.target > 0, found.mention_scores, -found.mention_scores)
    loss = solve.loss(model, batch)
    torch.testing.assert_close(loss.sums["mentions"], -right.sigmoid().log().sum())
    assert (batch.counts["mentions"], loss.weights) == (12, {"mentions": 1.0})
    batch = asked(solve, PICTURE, tokenizer)
    assert batch.counts["mentions"] == solve.loss(model, batch).sums["mentions"] == 0


def learn(
    solve: MentionRanking,
    model: ModelWithHead,
    rows: Sequence[CorefDocument],
    tokenizer: Tokenizer,
    steps: int,
) -> list[float]:
    """Take some steps; return the loss of each."""
    examples = [example for row in rows for example in solve.instances(row, tokenizer)]
    cut = sum(example.truncated_tokens for example in examples)
    assert not cut
    feed = TaskBatches(solve, [examples], batch=16)
    optimiser = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 10) * (1 - step / steps)
        batch = feed[step]
        loss = solve.loss(model.train(), batch).mean(batch.counts)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


@GIVEN
def test_stories_are_understood_and_stay_so_on_disk(
    given: bool, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    solve, model = formulation(tokenizer), network(tokenizer)
    rows = [story(number, given=given) for number in range(240)]
    losses = learn(solve, model, rows, tokenizer, 40 if given else 80)
    assert sum(losses[-5:]) < 0.2 * sum(losses[:5])
    fresh = [story(number, given=given) for number in range(1000, 1060)]
    said = predict_rows(solve, model, fresh, tokenizer)
    assert solve.task.evaluate(fresh, said)["conll_f1"] > 0.95

    save(tmp_path, model, tokenizer)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["head"]["head"]) == ("kinfolk_bert", "coref")
    again, words = load(tmp_path)
    assert again.config == model.config
    kept = from_json(json.loads(json.dumps(to_json(solve))))
    assert kept == solve
    assert predict_rows(kept, again, fresh, words) == said


@GIVEN
@pytest.mark.parametrize("member", ["bert", "roberta", "xlnet", "gpt2"])
@torch.no_grad()
def test_who_else_is_in_a_batch_changes_nothing(
    given: bool, member: str, tokenizer: Tokenizer
) -> None:
    solve = formulation(
        tokenizer, frame=family(member).frame, causal=member == "gpt2", max_length=24
    )
    model: Any = network(tokenizer, member)
    model.head.mention[-1].bias.fill_(1.0)  # so that a network that learned nothing finds links
    rows = [story(number, given=given, sentences=9) for number in range(8)]
    examples = [example for row in rows for example in solve.instances(row, tokenizer)]
    assert len(examples) == len(rows) < sum(len(e.examples) for e in examples)
    packed = solve.loss(model, solve.make_batch(examples))
    alone = [solve.loss(model, solve.make_batch([example])) for example in examples]
    total = torch.stack([loss.sums["label"] for loss in alone]).sum()
    torch.testing.assert_close(packed.sums["label"], total, rtol=1e-4, atol=1e-4)
    together = predict_rows(solve, model, rows, tokenizer, tokens=10**6)
    turned = predict_rows(solve, model, rows[::-1], tokenizer, tokens=1)[::-1]
    assert [answer.value for answer in together] == [answer.value for answer in turned]
    assert any(answer.value for answer in together)


def test_a_long_document_is_read_in_stretches_of_whole_sentences(tokenizer: Tokenizer) -> None:
    row = story(11, given=False, sentences=30)
    (example,) = formulation(tokenizer, max_length=24).instances(row, tokenizer)
    assert len(example.examples) > 2 and not example.truncated_tokens
    assert max(len(reading.input_ids) for reading in example.examples) <= 24
    begins = [tokenizer.offsets(word)[0][0] for word in row.words]
    read = [int(id) for r in example.examples for id in r.input_ids[r.read_positions]]
    assert read == begins
    stop = tokenizer.offsets(".")[0][0]
    assert all(r.input_ids[r.read_positions[-1]] == stop for r in example.examples)


def test_a_long_sentence_is_parted_and_spans_may_lie_across() -> None:
    sentences = [["a"] * 3, [], ["b"] * 10, ["c"] * 2, ["d"]]
    chunks = [[1]] * 3 + [[1, 2]] * 10 + [[1]] * 3
    assert split_document(sentences, chunks, 8) == [(0, 3), (3, 7), (7, 11), (11, 13), (13, 16)]


@torch.no_grad()
def test_a_span_across_two_stretches_is_read_in_both(tokenizer: Tokenizer) -> None:
    words = ("she", "smiled", "again") * 8
    row = CorefDocument("long", (words,), (((0, 24), (3, 4)),), 1, ((0, 24), (3, 4)))
    solve, model = formulation(tokenizer, max_length=12), network(tokenizer)
    batch = asked(solve, row, tokenizer)
    assert batch.targets.last.tolist() == [23, 3]
    assert torch.isfinite(solve.loss(model, batch).sums["label"])


def test_letters_of_a_word_longer_than_all_room_are_counted(tokenizer: Tokenizer) -> None:
    row = CorefDocument("word", (("she", "x" * 40),), ((),), 1, ((0, 1), (1, 2)))
    (example,) = formulation(tokenizer, max_length=16).instances(row, tokenizer)
    whole = len(tokenizer.offsets(" " + "x" * 40)[0])
    assert example.truncated_tokens == max(0, whole - 14)


def test_what_refers_to_one_thing_in_turn_is_one_cluster(tokenizer: Tokenizer) -> None:
    solve = formulation(tokenizer)
    row = replace(PICTURE, mentions=tuple((n, n + 1) for n in range(6)))
    examples = solve.instances(row, tokenizer, labelled=False)
    reply = torch.tensor([[-1, 0.9], [-1, 1.0], [0, 0.6], [2, 1.0], [1, 1.0], [-1, 1.0]])
    said = solve.decode(row, examples, [reply.double().numpy()])
    assert said.value == (((0, 1), (2, 3), (3, 4)), ((1, 2), (4, 5)))
    assert said.probability == pytest.approx(0.6)


def test_a_document_without_spans_has_no_clusters(tokenizer: Tokenizer) -> None:
    solve, model = formulation(tokenizer), network(tokenizer)
    empty = [replace(PICTURE, mentions=()), replace(PICTURE, sentences=((), ()), mentions=None)]
    assert [solve.instances(row, tokenizer) for row in empty] == [[], []]
    said = predict_rows(solve, model, [empty[0], PICTURE, empty[1]], tokenizer)
    assert said[0] == said[2] == Prediction(())
    assert said[1].probability is not None


@pytest.mark.parametrize(
    "wrong", [{"max_span_length": 0}, {"spans_per_word": 0.0}, {"max_antecedents": 0}]
)
def test_settings_that_leave_nothing_to_rank_are_told(
    wrong: dict[str, Any], tokenizer: Tokenizer
) -> None:
    (name,) = wrong
    with pytest.raises(UserError, match=f"{name}={wrong[name]}: it must be (at least 1|above 0)"):
        formulation(tokenizer, **wrong)


@pytest.mark.real
def test_pronouns_of_gap_are_learned_by_heart(real: Path) -> None:
    path = real / "gap_coref" / "gap-validation.tsv"
    rows = list(islice(read_rows(path, FileSpec("coref", "gap", "")), 16))
    words = train_tokenizer([" ".join(row.words) for row in rows], kind="wordpiece", vocab_size=600)
    solve, model = formulation(words), network(words)
    losses = learn(solve, model, rows, words, 30)
    assert losses[-1] < 0.1 * losses[0]
    predictions = predict_rows(solve, model, rows, words)
    assert solve.task.evaluate(rows, predictions)["conll_f1"] > 0.95
