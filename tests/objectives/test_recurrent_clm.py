"""Rows that go on: the picture, who sees whom through the memory, and what is remembered."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, SegmentMemory
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset, evaluation_dataset
from kinfolk.families.transformer_xl import FAMILY, TransformerXL
from kinfolk.objectives.clm import CLM
from kinfolk.objectives.evaluation import score_documents
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.training.step import Learner, TrainStep

RNG = np.random.default_rng(0)


def stream(special_tokens: Any, length: int = 8) -> RecurrentCLM:
    return RecurrentCLM(special_tokens=special_tokens, vocab_size=100, max_length=length)


def network(*, memory: int = 8, seed: int = 0, dropout: float = 0.0) -> TransformerXL:
    torch.manual_seed(seed)
    config = replace(FAMILY.sizes["nano"], vocab_size=100, mem_len=memory, dropout=dropout)
    return config.build()


def documents(sizes: tuple[int, ...] = (9, 3, 21, 1, 6)) -> InMemoryDocuments:
    draws = np.random.default_rng(0)
    return InMemoryDocuments.from_lists(
        [[draws.integers(20, 100, size).tolist()] for size in sizes]
    )


def stepper(model: TransformerXL, way: Any, parts: int, rows: int) -> TrainStep:
    return TrainStep(
        Learner(model.train(), way),
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda number: 0.1,
        clip=1.0,
        seed=0,
        device=torch.device("cpu"),
        bfloat16=False,
        memory=[model.init_memory(rows) for _ in range(parts)],
    )


def test_the_picture_holds(special_tokens: Any, ids: Any) -> None:
    text = InMemoryDocuments.from_lists([[ids("the cat sat down")]])
    feed = ContiguousDataset(stream(special_tokens, 2), text, batch_size=1)
    assert len(feed) == 3
    rows = [feed[n] for n in range(3)]
    assert [r.inputs.input_ids[0].tolist() for r in rows] == [
        ids("<s> the"),
        ids("cat sat"),
        ids("down <p>"),
    ]
    assert [r.targets.labels.tolist() for r in rows] == [
        ids("the cat"),
        ids("sat down"),
        ids("</s> ."),
    ]
    assert [r.inputs.position_ids[0].tolist() for r in rows] == [[0, 1], [2, 3], [4, 0]]
    assert [r.counts for r in rows] == [{"stream": 2}, {"stream": 2}, {"stream": 1}]


def test_sight_goes_through_the_memory_to_the_start_of_the_document(
    special_tokens: Any, ids: Any
) -> None:
    text = InMemoryDocuments.from_lists([[ids("the cat sat")], [ids("you")]])
    seed = next(
        s
        for s in range(9)
        if ContiguousDataset(stream(special_tokens), text, batch_size=1, seed=s).epoch(0).order[0]
        == 0
    )
    feed = ContiguousDataset(stream(special_tokens, 4), text, batch_size=1, seed=seed)
    # <s> the cat sat | </s> of the first is asked for at "sat"; then <s> you
    first, second = feed[0].inputs, feed[1].inputs
    memory = SegmentMemory(
        torch.zeros(1, 1, 3, 1),
        *(x[:, -3:] for x in (first.attention_mask.document_ids, first.attention_mask.key_order)),
    )
    seen = replace(second, memory=memory).full_key_mask()
    assert first.input_ids[0].tolist() == ids("<s> the cat sat")
    assert second.input_ids[0].tolist() == ids("<s> you <p> <p>")
    assert second.attention_mask.dense(seen)[0].int().tolist() == [
        [0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]
    feed = ContiguousDataset(stream(special_tokens, 3), text, batch_size=1, seed=seed)
    first, second = feed[0].inputs, feed[1].inputs
    memory = SegmentMemory(
        torch.zeros(1, 1, 3, 1), first.attention_mask.document_ids, first.attention_mask.key_order
    )
    seen = replace(second, memory=memory).full_key_mask()
    assert second.input_ids[0].tolist() == ids("sat <s> you")
    assert second.attention_mask.dense(seen)[0].int().tolist() == [
        [1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_without_a_memory_it_is_clm(special_tokens: Any) -> None:
    model = network().double()
    with torch.no_grad():
        for kind in (CLM, RecurrentCLM):
            way = kind(special_tokens=special_tokens, vocab_size=100, max_length=8)
            chunks = way.chunks(documents())
            batch = way.collate([[way.example(chunk, RNG)] for chunk in chunks])
            loss = way.loss(model, batch)
            if kind is CLM:
                expected = loss.sums["clm"]
            else:
                assert loss.memory is not None
                torch.testing.assert_close(loss.sums["stream"], expected)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_the_exam_is_one_pass_over_every_document(rows: int, special_tokens: Any) -> None:
    """With a memory that holds it all, rows of any number cost what whole documents do."""
    text, model = documents(), network(memory=24).double()
    found = score_documents(model, stream(special_tokens).for_evaluation(), text, 1, rows=rows)
    whole = score_documents(
        model, CLM(special_tokens=special_tokens, vocab_size=100, max_length=24), text, 1
    )
    assert found.tokens == whole.tokens == 40 + 5
    assert found.nats == pytest.approx(whole.nats, rel=1e-9)


def test_an_exam_asks_for_every_token_exactly_once(special_tokens: Any) -> None:
    text = documents()
    feed = evaluation_dataset(stream(special_tokens, 4).for_evaluation(), text, rows=3)
    labels = torch.cat([feed[n].targets.labels for n in range(len(feed))])
    asked = sorted(labels[labels != IGNORE_INDEX].tolist())
    assert asked == sorted([*text.token_ids.tolist(), *[special_tokens.eos] * 5])


def run(
    special_tokens: Any, steps: int, parts: int, rows: int, *, dtype: Any = torch.float64
) -> Any:
    model, way = network().to(dtype), stream(special_tokens)
    feed = ContiguousDataset(way, documents((9, 3, 40, 1, 6, 25)), batch_size=rows, parts=parts)
    step = stepper(model, way, parts, rows)
    outcomes = [
        step(n, [feed[n * parts + part] for part in range(parts)]).to_numbers()
        for n in range(steps)
    ]
    return outcomes, step.memory


def test_steps_in_parts_equal_whole_ones_and_each_has_its_memory(special_tokens: Any) -> None:
    (whole, memory), (parted, memories) = run(special_tokens, 5, 1, 4), run(special_tokens, 5, 4, 1)
    for one, other in zip(whole, parted, strict=True):
        assert one.pop("counts") == other.pop("counts")
        assert one == pytest.approx(other, rel=1e-6)  # losses are added up in float32
    for name in ("hidden", "document_ids", "key_order"):
        axis = 1 if name == "hidden" else 0
        joined = torch.cat([getattr(m, name) for m in memories], axis)
        torch.testing.assert_close(joined, getattr(memory[0], name), rtol=1e-9, atol=1e-9)


def test_a_step_remembers_what_the_one_before_read(special_tokens: Any) -> None:
    """The loss of a step is that of its rows after the rows before, and not without them."""
    model, way = network(memory=16).double(), stream(special_tokens, 8)
    feed = ContiguousDataset(way, documents((60,)), batch_size=1)
    step = stepper(model, way, 1, 1)
    step.optimizer.param_groups[0]["lr"] = 0.0
    step.lr = lambda number: 0.0
    found = [step(n, [feed[n]]).to_numbers()["loss"] for n in range(3)]
    memory: SegmentMemory | None = None
    with torch.no_grad():
        for number, expected in enumerate(found):
            loss = way.loss(model, feed[number].with_memory(memory))
            assert float(loss.sums["stream"]) / 8 == pytest.approx(expected, rel=1e-6)
            alone = float(way.loss(model, feed[number]).sums["stream"]) / 8
            assert (alone == pytest.approx(expected, rel=1e-6)) == (number == 0)
            memory = loss.memory


def test_no_gradient_comes_from_another_document_nor_from_the_future(special_tokens: Any) -> None:
    """Through two batches of a stream: what each prediction may learn of, and nothing else."""
    way, model = stream(special_tokens, 8), network(memory=12)
    feed = ContiguousDataset(way, documents((5, 14, 3, 9)), batch_size=2)
    read: list[Tensor] = []
    hook = model.token_embeddings.register_forward_hook(lambda _, ids, out: read.append(out))
    memory, batches = model.init_memory(2), [feed[n] for n in range(2)]
    for batch in batches:
        if memory.document_ids.max() >= 0:  # the memory as something to differentiate by
            hidden = memory.hidden.clone().requires_grad_()
            memory = replace(memory, hidden=hidden)
        output = model(batch.with_memory(memory).inputs)
        last, memory = memory, output.memory
    hook.remove()
    scores = model.lm_logits(output.hidden).logits().square().sum(-1)
    seen = last.key_mask(batches[1].inputs.attention_mask)
    table = batches[1].inputs.attention_mask.dense(seen)
    touched = 0
    for row, slot in (batches[1].inputs.attention_mask.document_ids >= 0).nonzero().tolist():
        past, own = torch.autograd.grad(
            scores[row, slot], [last.hidden, read[-1]], retain_graph=True
        )
        found = torch.cat([past.abs().amax((0, 3))[row], own[row].abs().amax(-1)]) > 0
        assert torch.equal(found, table[row, slot])
        assert not past[:, 1 - row].any() and not own[1 - row].any()
        touched += int(found[:12].any())
    assert 0 < touched < 16


@pytest.mark.slow
def test_a_repetitive_text_costs_less_with_a_memory(special_tokens: Any) -> None:
    """Each text says a phrase of sixteen tokens again and again, in rows of half of it."""
    draws = np.random.default_rng(1)

    def texts(count: int) -> InMemoryDocuments:
        phrases = [draws.integers(20, 60, 16).tolist() for _ in range(count)]
        return InMemoryDocuments.from_lists([[phrase * 6] for phrase in phrases])

    model, way = network(memory=24), stream(special_tokens, 8)
    feed, rows = ContiguousDataset(way, texts(400), batch_size=16), 16
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = TrainStep(
        Learner(model.train(), way),
        optimiser,
        lambda number: 3e-3 * min(1, (number + 1) / 30),
        clip=1.0,
        seed=0,
        device=torch.device("cpu"),
        bfloat16=False,
        memory=[model.init_memory(rows)],
    )
    for number in range(250):
        step(number, [feed[number]])
    unseen = texts(20)
    with_memory = score_documents(model, way.for_evaluation(), unseen, 1).loss
    without = score_documents(
        model, CLM(special_tokens=special_tokens, vocab_size=100, max_length=8), unseen, 1
    ).loss
    print(f"{with_memory:.2f} nats a token with a memory, {without:.2f} without")
    assert with_memory < without - 0.5


def test_batches_follow_each_other(special_tokens: Any) -> None:
    feed = ContiguousDataset(stream(special_tokens, 4), documents((30,)), batch_size=1)
    rows: list[Batch[Any]] = [feed[n] for n in range(len(feed))]
    for one, other in pairwise(rows):
        assert other.inputs.position_ids[0, 0] == one.inputs.position_ids[0, -1] + 1
        assert other.inputs.input_ids[0, 0] == one.targets.labels[-1]


def two_steps(special_tokens: Any, device: str, *, compiled: str | None) -> list[Tensor]:
    """Run two steps, and return their losses and gradients; `compiled` is by which backend."""
    size = 16 if device == "cpu" else 256
    model, way, rows = network(memory=size - 5).to(device), stream(special_tokens, size), 2
    feed = ContiguousDataset(way, documents((size // 3, 3 * size, size, 20)), batch_size=rows)
    learner, memory, found = Learner(model.train(), way), model.init_memory(rows), []
    if compiled is not None:
        learner.compile(backend=compiled, dynamic=False)
    for number in range(2):
        batch = feed[number].to(device).with_memory(memory)
        inputs = batch.inputs.with_block_masks() if compiled == "inductor" else batch.inputs
        loss = learner(inputs, batch.targets)
        loss.mean(batch.counts).backward()
        memory = loss.memory
        found.append(loss.sums["stream"].detach())
    return [*found, memory.hidden, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_a_traced_learner_remembers_the_same(special_tokens: Any) -> None:
    plain, traced = (two_steps(special_tokens, "cpu", compiled=c) for c in (None, "aot_eager"))
    for one, other in zip(plain, traced, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # float32 is meant to be exact here
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_block_sparse_attention_remembers_what_the_dense_mask_does(special_tokens: Any) -> None:
    dense, sparse = (two_steps(special_tokens, "cuda", compiled=c) for c in (None, "inductor"))
    for one, other in zip(dense, sparse, strict=True):
        scale = one.abs().max().clamp(min=1e-3)
        assert (other - one).abs().max() / scale < 1e-2
