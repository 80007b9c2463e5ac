"""What every network must do, run for each file in models/ under all that it can learn by."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk import hub
from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, KVCache, tree_map
from kinfolk.data.datasets import PackedDataset
from kinfolk.families import families
from kinfolk.families.base import Family
from kinfolk.families.electra import Electra
from kinfolk.nn.language_model import EncoderDecoder, executed_layers
from kinfolk.rng import Stream, generator
from kinfolk.training.optimizer import build_optimizer, layer_index, num_layers
from kinfolk.training.step import Learner, TrainStep
from support.contracts import (
    LENGTH,
    NAMES,
    PAIRS,
    SAMPLE,
    SPECIALS,
    VOCAB,
    across,
    build,
    closure,
    documents,
    labels_of,
    shaken,
    slow_pairs,
)
from support.loops import every_case
from support.networks import hollow
from support.pairs import contracted

FAMILY = pytest.mark.parametrize(("member", "way"), PAIRS, ids=NAMES)
MEMBERS = pytest.mark.parametrize("member", families().values(), ids=list(families()))
# Those that are trained by gradients; the others declare the reason.
LEARNERS = [m for m in families().values() if m.model.gradient_free is None]
LEARN = pytest.mark.parametrize(
    ("member", "way"),
    [(m, way) for m, way in PAIRS if m in LEARNERS],
    ids=[name for name, (m, _) in zip(NAMES, PAIRS, strict=True) if m in LEARNERS],
)
LEARN_LONG = slow_pairs((m, way) for m, way in PAIRS if m in LEARNERS)
LEARNING_MEMBERS = pytest.mark.parametrize("member", LEARNERS, ids=[m.name for m in LEARNERS])
WRITERS = [m for m in families().values() if "generate" in m.capabilities]


def objective_of(member: Family, way: str, length: int = LENGTH) -> Any:
    kind = contracted(member.objective(way))
    return kind(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=length)


def examples(objective: Any) -> list[Any]:
    chunks = objective.chunks(documents())
    return [
        objective.example(chunks[i], generator(0, Stream.EXAMPLE, 0, i)) for i in range(len(chunks))
    ]


def rows_of(objective: Any) -> list[list[Any]]:
    """Pack the small text: rows of several texts, and padding behind some."""
    feed = PackedDataset(objective, documents(), batch_size=1)
    found = examples(objective)
    rows = [[found[int(i)] for i in feed.packing[r]] for r in range(len(feed.packing))]
    assert max(map(len, rows)) > 1
    return rows


def sums(objective: Any, model: Any, batch: Batch[Any]) -> dict[str, float]:
    with torch.no_grad():
        loss = objective.loss(model, batch)
    return {name: total.item() for name, total in loss.sums.items()}


def stepper(member: Family, model: Any, objective: Any, *, rate: float | None = None) -> TrainStep:
    train = member.train("nano")
    train = replace(train, lr=rate or train.lr)
    return TrainStep(
        Learner(model.train(), objective),
        build_optimizer(model, train),
        lambda number: train.lr,
        clip=train.grad_clip,
        seed=5,
        device=torch.device("cpu"),
        bfloat16=False,
    )


def test_every_family_is_under_contract() -> None:
    assert {m.name for m, _ in PAIRS} == set(families()), "a family without an objective"


def test_the_sample_of_pairs_has_every_family_and_every_objective() -> None:
    assert {name for name, _ in SAMPLE} == set(families())
    assert {way for _, way in SAMPLE} == {way for _, way in PAIRS}
    assert len(SAMPLE) < len(PAIRS)


def test_a_family_without_gradients_says_why_and_has_none() -> None:
    others = [m for m in families().values() if m not in LEARNERS]
    assert [m.name for m in others] == ["ngram"]
    for member in others:
        assert member.model.gradient_free and member.config("nano").counting_steps is not None
        assert not any(p.requires_grad for p in build(member).parameters())


@MEMBERS
def test_every_size_builds(member: Family) -> None:
    with every_case() as case:
        for size in member.sizes:
            with case(size):
                with hollow():
                    model = member.config(size).build()
                assert model.config == member.config(size)
                assert all(p.is_meta for p in model.parameters())


@MEMBERS
def test_what_only_pretraining_needs_is_there_to_be_removed(member: Family) -> None:
    model = build(member)
    parts = {name for name, _ in model.named_children()}
    parts |= {name for name, _ in model.named_parameters(recurse=False)}
    parts |= {name for name, part in vars(model).items() if part is None}  # a tied output layer
    assert parts.issuperset(model.pretraining_only + model.pooling_only)


@LEARN_LONG
def test_the_loss_falls(member: Family, way: str) -> None:
    objective, model = objective_of(member, way), build(member)
    feed = PackedDataset(objective, documents(), batch_size=4)
    step = stepper(member, model, objective, rate=1e-2)
    losses = [step(number, [feed[number % 2]]).loss.item() for number in range(30)]
    first, last = sum(losses[:3]) / 3, sum(losses[-3:]) / 3
    assert last < 0.8 * first, losses


@LEARNING_MEMBERS
def test_gradients_reach_every_parameter(member: Family) -> None:
    """By its own way of learning; another may leave a head alone (MLM knows no pairs)."""
    model = shaken(build(member))
    reached: dict[str, set[str]] = {}
    for way in member.objectives:
        model.zero_grad()
        objective = objective_of(member, way)
        batch = objective.collate(rows_of(objective))
        objective.loss(model, batch).mean(batch.counts).backward()
        named = model.named_parameters()
        reached[way] = {n for n, p in named if p.grad is not None and p.grad.abs().max() > 1e-9}
    assert reached[next(iter(member.objectives))] == {n for n, _ in model.named_parameters()}
    inside = range(1, num_layers(model) + 1)
    body = {name for name, layer in layer_index(model).items() if layer in inside}
    for way, some in reached.items():
        alone = objective_of(member, way).encoder_alone
        left = {n for n in body if alone and n.startswith(model.decoder_modules)}
        assert body - left and body - left <= some
        assert not left & some, "the decoder is left as it is"


@LEARNING_MEMBERS
def test_the_table_that_reads_tokens_predicts_them(member: Family) -> None:
    """A token that no text holds still is a wrong answer: its embedding gets a gradient by that."""
    changes = (
        {"tie_word_embeddings": True} if member.name == "t5" else {}
    )  # version 1.1 has two tables
    objective = objective_of(member, next(iter(member.objectives)))
    model = shaken(build(member, **changes))
    batch = objective.collate(rows_of(objective))
    objective.loss(model, batch).mean(batch.counts).backward()
    seen = set(SPECIALS.ids)
    for inputs in (batch.inputs, batch.inputs.encoder_inputs):
        seen |= set() if inputs is None else set(inputs.input_ids.flatten().tolist())
    seen |= set(labels_of(batch).labels.tolist())
    absent = sorted(set(range(VOCAB)) - seen)
    assert absent
    tables = {
        n: p
        for n, p in model.named_parameters()
        if p.dim() == 2 and len(p) >= VOCAB and not n.startswith(model.input_only)
    }
    assert tables, "no table of tokens"
    for name, table in tables.items():
        assert table.grad is not None
        assert (table.grad[absent].abs().amax(1) > 1e-9).all(), name


def predicts(model: Any, inputs: Inputs) -> Tensor:
    """Sum up each token's scores over the vocabulary: (batch, length)."""
    logits: Tensor = model.lm_logits(model.forward_lm(inputs).hidden).logits()
    noise = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)).to(logits.dtype)
    return logits @ noise


def detects(model: Any, inputs: Inputs) -> Tensor:
    """Return what a model says of each token itself: (batch, length)."""
    found: Tensor = model.discriminator_logits(model(inputs).hidden)
    return found


def voices(model: Any) -> list[Callable[[Any, Inputs], Tensor]]:
    """List all that a model can say of a token."""
    return [predicts, detects] if isinstance(model, Electra) else [predicts]


def gradients(
    model: Any, batch: Batch[Any], voice: Callable[[Any, Inputs], Tensor] = predicts
) -> dict[str, Tensor]:
    """Differentiate what is said of every token by every token: (batch, query, batch, key)."""
    shown = (
        batch.inputs.input_ids
        if batch.inputs.target_positions is None
        else batch.inputs.target_positions
    )
    # A copy of the batch for each token that something is said of: one pass back serves them all.
    inputs = tree_map(batch.inputs, lambda rows: rows.repeat(shown.numel(), 1))
    seen: list[tuple[Tensor, Tensor]] = []
    tables = {model.token_embeddings}
    if isinstance(model, EncoderDecoder):
        tables.add(model.decoder_embeddings)
    hooks = [
        table.register_forward_hook(lambda _, ids, out: seen.append((ids[0], out)))
        for table in tables
    ]
    scores = voice(model, inputs)
    for hook in hooks:
        hook.remove()
    sides = {"target": inputs} | (
        {"source": inputs.encoder_inputs} if inputs.encoder_inputs is not None else {}
    )
    inside = {name: [e for ids, e in seen if ids is side.input_ids] for name, side in sides.items()}
    assert all(len(found) == 1 for found in inside.values())
    embedded = {name: found[0] for name, found in inside.items()}
    own = scores.view(shown.numel(), shown.numel()).diagonal().sum()
    changes = torch.autograd.grad(own, list(embedded.values()))
    return {
        name: change.abs().amax(-1).view(*shown.shape, len(shown), -1)
        for name, change in zip(embedded, changes, strict=True)
    }


def may_see(batch: Batch[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Say who sees whom in one look, and who may learn of whom through all layers."""
    own = batch.inputs.attention_mask.dense()
    direct, ever = {"target": own}, {"target": closure(own)}
    if batch.inputs.target_positions is not None:  # a guess sees what was born before its token
        guess = batch.inputs.attention_mask.for_targets(batch.inputs.target_positions).dense(
            batch.inputs.attention_mask
        )
        direct["target"], ever["target"] = guess, (guess.float() @ closure(own).float()) > 0
    if batch.inputs.encoder_inputs is not None:
        reading = closure(batch.inputs.encoder_inputs.attention_mask.dense())
        direct["source"] = across(batch)
        chain = ever["target"].float() @ direct["source"].float() @ reading.float()
        ever["source"] = chain > 0
    return direct, ever


@LEARN_LONG
def test_no_token_sees_what_its_sight_forbids(member: Family, way: str) -> None:
    """The gradient with respect to what may not be seen is exactly zero, dropout and all."""
    objective = objective_of(member, way)
    row = max(rows_of(objective), key=len)
    batch = objective.collate([row, row[:-1]])  # several texts, and padding behind them
    model = shaken(build(member, dropout=0.2)).train()
    direct, ever = may_see(batch)
    document, asked = batch.inputs.attention_mask.document_ids, batch.inputs.target_positions
    text = (document if asked is None else document.gather(1, asked)) >= 0
    assert (document < 0).any() and any(not e[text].all() for e in ever.values())
    for name, found in [g for v in voices(model) for g in gradients(model, batch, v).items()]:
        assert found.isfinite().all()
        for query in range(2):
            assert not found[query, :, 1 - query].any(), "rows mix"
            forbidden = ~ever[name][query, text[query]]
            assert not found[query, text[query], query][forbidden].any(), name
    # And what may be seen is: too little sight is silent, the loss still falls.
    model.eval()
    for name, found in [g for v in voices(model) for g in gradients(model, batch, v).items()]:
        for query in range(2):
            granted = direct[name][query, text[query]]
            assert found[query, text[query], query][granted].all(), name


@FAMILY
def test_packing_changes_no_loss(member: Family, way: str) -> None:
    objective, model = objective_of(member, way), shaken(build(member)).double()
    rows = rows_of(objective)
    packed = sums(objective, model, objective.collate(rows))
    alone: dict[str, float] = dict.fromkeys(packed, 0.0)
    for example in (e for row in rows for e in row):
        for name, value in sums(objective, model, objective.collate([[example]])).items():
            alone[name] += value
    assert packed == pytest.approx(alone, rel=1e-6)


@FAMILY
def test_padding_changes_no_loss(member: Family, way: str) -> None:
    objective, model = objective_of(member, way), shaken(build(member)).double()
    wider = objective_of(member, way, 2 * LENGTH)
    rows = rows_of(objective)
    tight, loose = objective.collate(rows), wider.collate(rows)
    assert loose.inputs.input_ids.numel() > tight.inputs.input_ids.numel()
    assert loose.counts == tight.counts
    expected = sums(objective, model, tight)
    assert sums(wider, model, loose) == pytest.approx(expected, rel=1e-6)


SKIPPING = [(m, way) for m, way in PAIRS if m.model.skips_unread]


@pytest.mark.parametrize(("member", "way"), SKIPPING, ids=[f"{m.name}-{w}" for m, w in SKIPPING])
def test_skipping_what_is_not_read_changes_neither_loss_nor_gradients(
    member: Family, way: str
) -> None:
    objective, model = objective_of(member, way), shaken(build(member)).double()
    batch = objective.collate(rows_of(objective))
    last, widths = executed_layers(model)[-1], list[int]()
    last.register_forward_hook(lambda layer, given, out: widths.append(out.shape[:-1].numel()))

    def gradients(skips: bool) -> tuple[float, dict[str, Tensor]]:
        model.skips_unread = skips
        model.zero_grad(set_to_none=True)
        loss = objective.loss(model, batch).mean(batch.counts)
        loss.backward()
        return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    (loss, some), (expected, all_of_them) = gradients(True), gradients(False)
    assert loss == pytest.approx(expected, rel=1e-9)
    assert some.keys() == all_of_them.keys()
    for name, gradient in all_of_them.items():
        torch.testing.assert_close(some[name], gradient, rtol=1e-7, atol=1e-12, msg=name)
    # Of ELECTRA the discriminator runs last, and reads all; an objective may predict everywhere.
    fewer = objective.label_buckets is not None and member.name != "electra"
    assert (min(widths) < batch.inputs.input_ids.numel()) == fewer


@FAMILY
def test_the_order_of_rows_and_of_texts_in_them_changes_no_loss(member: Family, way: str) -> None:
    objective, model = objective_of(member, way), shaken(build(member)).double()
    rows = rows_of(objective)
    expected = sums(objective, model, objective.collate(rows))
    turned = objective.collate([row[::-1] for row in reversed(rows)])
    assert sums(objective, model, turned) == pytest.approx(expected, rel=1e-6)


@LEARN_LONG
def test_two_runs_with_one_seed_agree_to_the_bit(member: Family, way: str) -> None:
    def run(seed: int, before: int) -> dict[str, Tensor]:
        objective, model = objective_of(member, way), build(member, dropout=0.1, seed=seed)
        feed, step = (
            PackedDataset(objective, documents(), batch_size=2),
            stepper(member, model, objective),
        )
        torch.rand(before)  # what else was drawn plays no part
        for number in range(3):
            step(number, [feed[number]])
        return dict(model.state_dict())

    first, second, other = run(0, 0), run(0, 7), run(1, 0)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@LEARN_LONG
def test_micro_batches_equal_the_whole_batch(member: Family, way: str) -> None:
    def run(rows: int, parts: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        objective, model = objective_of(member, way), build(member).double()
        feed = PackedDataset(objective, documents(), batch_size=rows)
        step = stepper(member, model, objective)
        for number in range(2):
            outcome = step(number, [feed[number * parts + part] for part in range(parts)])
        return outcome.to_numbers(), dict(model.state_dict())

    (whole, expected), (parted, found) = run(8, 1), run(2, 4)
    assert parted.pop("counts") == whole.pop("counts")
    if "losses" in whole:
        assert parted.pop("losses") == pytest.approx(whole.pop("losses"), rel=1e-6)
    assert parted == pytest.approx(whole, rel=1e-6)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-9)


@MEMBERS
def test_saving_and_loading_is_exact(member: Family, tmp_path: Path) -> None:
    model = shaken(build(member))
    hub.save(tmp_path, model, None)
    again = hub.load_model(tmp_path)
    assert again.config == model.config
    saved, read = model.state_dict(), again.state_dict()  # type: ignore[attr-defined]
    assert saved.keys() == read.keys()
    assert all(torch.equal(saved[name], read[name]) for name in saved)
    objective = objective_of(member, next(iter(member.objectives)))
    batch = objective.collate(rows_of(objective))
    assert sums(objective, again, batch) == sums(objective, model.eval(), batch)


@pytest.mark.parametrize("member", WRITERS, ids=[m.name for m in WRITERS])
def test_a_cached_step_equals_a_full_pass(member: Family) -> None:
    """Two texts, the shorter with padding to its left, in steps of several tokens and of one."""
    model = shaken(build(member)).double().eval()
    draws = torch.Generator().manual_seed(2)
    length, skipped = 9, torch.tensor([[0], [3]])
    ids = torch.randint(VOCAB, (2, length), generator=draws)
    slots = torch.arange(length).expand(2, -1)
    places = (slots - skipped).clamp(min=0)
    document = torch.where(slots < skipped, -1, 0)
    source = None
    if member.architecture == "encoder-decoder":
        read = torch.randint(VOCAB, (2, 6), generator=draws)
        source = Inputs.from_ids(read, causal=False)

    def part(start: int, stop: int, state: KVCache | None) -> Inputs:
        cut = [t[:, start:stop] for t in (ids, document, places)]
        attention_mask = AttentionMask(cut[1], cut[2], cut[2])
        return Inputs(
            input_ids=cut[0],
            attention_mask=attention_mask,
            position_ids=cut[2],
            encoder_inputs=source,
            cache=state,
        )

    with torch.no_grad():
        whole = model(part(0, length, None)).hidden
        state, parts = KVCache(length), []
        for start, stop in [(0, 5), (5, 6), (6, 8), (8, 9)]:
            output = model(part(start, stop, state).append_to_cache())
            assert output.cache is state
            parts.append(output.hidden)
    text = document >= 0
    torch.testing.assert_close(torch.cat(parts, 1)[text], whole[text], rtol=1e-9, atol=1e-9)


@FAMILY
def test_a_batch_of_no_predictions_is_no_loss(member: Family, way: str) -> None:
    objective, model = objective_of(member, way), build(member)
    batch = objective.collate(rows_of(objective))
    labels = labels_of(batch)
    none = dataclasses.replace(labels, labels=torch.full_like(labels.labels, IGNORE_INDEX))
    targets = none if labels is batch.targets else dataclasses.replace(batch.targets, tokens=none)
    assert sums(objective, model, Batch(batch.inputs, targets, {}))[objective.loss_name] == 0.0
