"""With several CPU threads, too, a batch has the same gradients to the bit, however often."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.batch import Batch
from kinfolk.data.datasets import PackedDataset
from kinfolk.families import families, family, family_of, index
from kinfolk.families.base import Family
from kinfolk.hub import bind_tokenizer
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.choose import ALL_FORMULATIONS, build_formulation, model_config
from kinfolk.tasks.formulations.cross_view import CrossViewTags, CrossViewTexts, UnlabelledBatches
from kinfolk.tasks.instances import LazyInstances
from kinfolk.tasks.rows import CorefDocument
from kinfolk.tasks.task import Task
from support.contracts import LENGTH as ROW
from support.contracts import PAIRS, SPECIALS, VOCAB, build, documents, slow_pairs
from support.pairs import contracted
from support.task_rows import LENGTH, config, rows, task, tokenizer

THREADS, PASSES = 2, 2
TEXTS = 100  # torch shares 32,768 numbers or more among threads: 512 tokens of hidden size 64
LEARNERS = [(m, way) for m, way in PAIRS if m.model.gradient_free is None]
# Everything that reads hidden states by index: each kind of head and of task network.
TUNED = [
    *(("elmo", kind, "features") for kind in ("classify", "pair", "tag", "span")),
    *(("cove", kind, "features") for kind in ("classify", "pair", "tag", "span")),
    *(("cvt", kind, "cross_view") for kind in ("classify", "tag")),
    *(("bert", kind, "head") for kind in ("classify", "choose", "tag", "span", "coref")),
    *(("ulmfit", kind, "concat") for kind in ("classify", "pair")),
    *(("gpt2", kind, "transformed") for kind in ("classify", "choose")),
    *(("t5", "write", "text"), ("bilstm", "tag", "head")),
]
# Where two families share the network of a task, each of its kinds is read by one of them.
TUNED_TWICE = {
    *(("elmo", "pair", "features"), ("elmo", "tag", "features")),
    *(("cove", "classify", "features"), ("cove", "span", "features")),
}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


class RepeatedIndices(TorchDispatchMode):
    """Note the sums over indices that repeat which torch leaves to threads: those of x[index]."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        if "index_put" in function.name() and (arguments[3:] or (False,))[0]:
            given = [i for i in arguments[1] if i is not None]
            if all(i.dtype != torch.bool for i in given):  # a mask has every index once
                pairs = torch.stack([i.flatten() for i in torch.broadcast_tensors(*given)])
                if pairs.unique(dim=1).shape[1] < pairs.shape[1]:
                    self.found.append(f"{tuple(arguments[0].shape)} by {tuple(given[0].shape)}")
        return function(*arguments, **(keywords or {}))


def gradients(model: Any, loss: Callable[[Any, Batch[Any]], Any], batch: Any) -> list[Tensor]:
    """Return the gradients of a batch, with the same dropout each time."""
    model.train().zero_grad()
    torch.manual_seed(1)
    loss(model, batch).mean(batch.counts).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def check_equal_bits(model: Any, loss: Callable[[Any, Batch[Any]], Any], batch: Any) -> None:
    """Check that passes over a batch agree, and that they cannot differ at another size."""
    with RepeatedIndices() as repeated:
        first = gradients(model, loss, batch)
    assert repeated.found == []
    assert any(g.abs().max() > 0 for g in first)
    for _ in range(PASSES - 1):
        again = gradients(model, loss, batch)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_sums_over_repeated_indices_are_noticed() -> None:
    """The mistake that the other tests look for, planted."""
    chance = torch.Generator().manual_seed(0)
    table = torch.randn(50, 64, generator=chance).requires_grad_()
    ids = torch.randint(50, (4096,), generator=chance)
    scale = torch.randn(4096, 64, generator=chance)
    with RepeatedIndices() as repeated:
        (table[ids] * scale).sum().backward()
        assert repeated.found == ["(50, 64) by (4096,)"]
        (F.embedding(ids, table) * scale).sum().backward()
        (table[torch.arange(50)] * scale[:50]).sum().backward()
        table[torch.arange(50) > 9].sum().backward()
    assert len(repeated.found) == 1


def objective_of(member: Family, way: str) -> Any:
    kind = contracted(member.objective(way))
    return kind(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=ROW)


@slow_pairs(LEARNERS)
def test_a_batch_has_the_same_gradients_each_time(member: Family, way: str) -> None:
    objective = objective_of(member, way)
    batch = PackedDataset(objective, documents(count=TEXTS), batch_size=40)[0]
    read = batch.inputs if batch.inputs.encoder_inputs is None else batch.inputs.encoder_inputs
    assert max(x.input_ids.numel() for x in (batch.inputs, read)) * 64 > 32_768
    check_equal_bits(build(member, dropout=0.1), objective.loss, batch)


def test_a_sampled_softmax_has_the_same_gradients_each_time() -> None:
    member = families()["elmo"]
    objective = objective_of(member, "bilm")
    batch = PackedDataset(objective, documents(count=TEXTS), batch_size=40)[0]
    check_equal_bits(build(member, num_samples=1000), objective.loss, batch)


def formulation_of(name: str, kind: str, way: str, **options: Any) -> tuple[Any, Any]:
    """Return a formulation of a family, and its network with every parameter trained."""
    body = config(name)
    asked = Task(kind="coref") if kind == "coref" else task(kind)
    chosen: type[Formulation] = next(
        f
        for f in ALL_FORMULATIONS
        if f.name == way and asked.output in f.outputs and (kind == "coref" or f.head != "coref")
    )
    if way == "features":
        options["train_backbone"] = True
    made = build_formulation(
        chosen, asked, family_of(body), body, tokenizer(), length=LENGTH, **options
    )
    torch.manual_seed(0)
    model: Any = model_config(made, body).build()
    bind_tokenizer(model, tokenizer())
    return made, model


def labelled_rows(kind: str) -> list[Any]:
    if kind != "coref":
        return rows(kind, TEXTS)
    chance = random.Random(0)
    names = ("cat", "dog", "bird", "king")

    def document(number: int) -> CorefDocument:
        text = tuple(tuple(chance.choices(names, k=8)) for _ in range(3))
        return CorefDocument(str(number), text, (((0, 1), (9, 10)),), number)

    return [document(number) for number in range(20)]


@pytest.mark.parametrize(
    ("name", "kind", "way"),
    [pytest.param(*case, marks=pytest.mark.slow if case in TUNED_TWICE else ()) for case in TUNED],
)
def test_labelled_rows_have_the_same_gradients_each_time(name: str, kind: str, way: str) -> None:
    formulation, model = formulation_of(name, kind, way)
    encoded = [formulation.instances(row, tokenizer()) for row in labelled_rows(kind)]
    batch = formulation.make_batch([instance for group in encoded for instance in group])
    check_equal_bits(model, formulation.loss, batch)


@pytest.mark.parametrize("kinds", [("tag",), ("classify",), ("tag", "classify")])
def test_unlabelled_text_has_the_same_gradients_each_time(kinds: tuple[str, ...]) -> None:
    body = config("cvt")
    units = {"tag": CrossViewTags, "classify": CrossViewTexts}
    made: list[Any] = [
        build_formulation(
            units[kind], task(kind), family("cvt"), body, tokenizer(), length=LENGTH, task_number=n
        )
        for n, kind in enumerate(kinds)
    ]
    torch.manual_seed(0)
    model: Any = model_config(made[0], body, others=made[1:]).build()
    bind_tokenizer(model, tokenizer())
    maker = UnlabelledBatches(tuple(made))
    instances = LazyInstances(maker.reader, rows(kinds[0], TEXTS), tokenizer())
    batch = maker.make_batch([instances[i] for i in range(TEXTS)])
    check_equal_bits(model, made[0].loss, batch)


def test_every_family_that_learns_is_under_this_contract() -> None:
    learned = {m.name for m, _ in LEARNERS} | {name for name, _, _ in TUNED}
    assert learned >= set(index()) - {"ngram"}
