"""A step that is replayed as a graph learns what the same step learns when it is run."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from kinfolk.batch import with_texts
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.families import families
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own, while it compiles
    pytest.mark.filterwarnings("ignore:TensorFloat32"),  # float32 is meant to be exact here
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax"),  # what the compiler does without
]

# Where shapes depend on the texts (recurrent networks) no step is replayed.
STATIC = [m for m in families().values() if m.model.static_shapes and m.name != "ngram"]  # counted
PAIRS = [(m.name, way) for m in STATIC for way in m.objectives]
COMPILED = [("gpt2", "clm"), ("bert", "nsp"), ("t5", "spans")]  # each takes a while
VOCAB, ROWS, STEPS = 300, 4, 4
SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5, sentinels=tuple(range(6, 106))
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget the graphs of other tests: past eight of one function, torch runs it untraced."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def documents() -> InMemoryDocuments:
    numbers = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 150, (120,), generator=numbers).tolist()
    texts = [torch.randint(110, VOCAB, (n,), generator=numbers).tolist() for n in sizes]
    return InMemoryDocuments.from_lists([[t[: len(t) // 2], t[len(t) // 2 :]] for t in texts])


def setting(member: str, way: str, dropout: float = 0.0) -> tuple[Any, Any, Any]:
    """Return a nano network, its objective, and batches."""
    who = families()[member]
    objective = who.objective(way)(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=256)
    config = replace(who.config("nano"), vocab_size=VOCAB)
    if hasattr(config, "dropout"):
        config = replace(config, dropout=dropout)
    torch.manual_seed(0)
    goes_on = objective.recurrent
    feed = ContiguousDataset if goes_on else PackedDataset
    return (
        config.build().cuda().train(),
        objective,
        feed(objective, documents(), batch_size=ROWS, seed=0),
    )


def learned(
    model: Any,
    objective: Any,
    feed: Any,
    *,
    captured: bool,
    parts: int = 1,
    compiled: bool = False,
    bfloat16: bool = False,
) -> tuple[list[dict[str, Any]], Any, TrainStep]:
    """Take some steps; return what they gave, the network and the step."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.LSTM):
            layer.flatten_parameters()  # a copy has its weights apart
    learner = Learner(model, objective)
    if compiled:
        learner.compile(dynamic=False)
    train = TrainConfig(lr=1e-3, weight_decay=0.1, betas=(0.9, 0.99))
    mover = build_optimizer(model, train)
    memory = [model.init_memory(ROWS) for _ in range(parts)] if objective.recurrent else None
    step = TrainStep(
        learner,
        mover,
        lambda number: 1e-3,
        clip=1.0,
        seed=7,
        device=torch.device("cuda"),
        bfloat16=bfloat16,
        sparse_kernel="flex" if compiled else None,
        cuda_graph=captured,
        memory=memory,
    )
    outcomes = [
        step(number, [feed[number * parts + part].pin_memory() for part in range(parts)])
        for number in range(STEPS)
    ]
    return [outcome.to_numbers() for outcome in outcomes], model, step


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("member", "way", "compiled"),
    [*((*pair, False) for pair in PAIRS), *((*pair, True) for pair in COMPILED)],
)
def test_a_replayed_step_is_the_same_step(
    member: str, way: str, compiled: bool, parts: int
) -> None:
    given = setting(member, way)
    plain, one, _ = learned(*given, captured=False, parts=parts, compiled=compiled)
    replayed, other, step = learned(*given, captured=True, parts=parts, compiled=compiled)
    assert step.graphed is not None and step.graphed.graphs
    assert [line["counts"] for line in replayed] == [line["counts"] for line in plain]
    for a, b in zip(plain, replayed, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-3)
        for name, part in a.get("losses", {}).items():
            assert b["losses"][name] == pytest.approx(part, rel=1e-4)
    start = dict(given[0].named_parameters())
    moved = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        way_one, way_other = parameter - start[name], moved[name] - start[name]
        if not way_one.any():
            assert not way_other.any(), f"{name} must stand still"
            continue
        apart = (way_other - way_one).norm() / way_one.norm()
        assert apart < 0.05, f"{name}: {apart:.3f}"


@pytest.mark.parametrize("way", ["stream", "bptt"])
def test_whole_rows_of_an_lstm_language_model_are_replayed(way: str) -> None:
    model, objective, _ = setting("ulmfit", way)
    numbers = torch.Generator().manual_seed(0)
    texts = torch.randint(110, VOCAB, (ROWS, 5000), generator=numbers).tolist()
    feed = ContiguousDataset(
        objective, InMemoryDocuments.from_lists([[text] for text in texts]), batch_size=ROWS
    )
    batches = [with_texts(feed[number]) for number in range(STEPS)]
    plain, _, _ = learned(model, objective, batches, captured=False)
    replayed, _, step = learned(model, objective, batches, captured=True)
    assert step.graphed is not None and step.graphed.graphs
    for a, b in zip(plain, replayed, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-3)


def test_a_step_draws_the_same_whether_its_graph_is_recorded_or_there_already() -> None:
    """A resumed run records again what the run before it replayed."""
    config = replace(families()["ulmfit"].config("nano"), vocab_size=VOCAB)
    config = replace(config, dropout=0.3, weight_dropout=0.3, output_dropout=0.3)
    _, objective, _ = setting("ulmfit", "bptt")
    torch.manual_seed(0)
    model = config.build().cuda().train()
    numbers = torch.Generator().manual_seed(0)
    texts = torch.randint(110, VOCAB, (ROWS, 9000), generator=numbers).tolist()
    feed = ContiguousDataset(
        objective, InMemoryDocuments.from_lists([[text] for text in texts]), batch_size=ROWS
    )
    batches = [with_texts(feed[number]).pin_memory() for number in range(12)]

    def measured(before: range) -> list[float]:
        """Return the losses of steps 6 to 11, after other steps have recorded their graphs."""
        trained = copy.deepcopy(model)
        for layer in trained.lstm_layers:
            layer.flatten_parameters()
        step = TrainStep(
            Learner(trained, objective),
            build_optimizer(trained, TrainConfig()),
            lambda number: 0.0,  # the weights stay, and with them what a step computes
            clip=1.0,
            seed=7,
            device=torch.device("cuda"),
            bfloat16=True,
            cuda_graph=True,
            graph_lengths=objective.usual_lengths,
            memory=[trained.init_memory(ROWS)],
        )
        for number in before:
            step(number, [batches[number]])
        step.memory = [trained.init_memory(ROWS)]
        losses = [step(number, [batches[number]]).loss.item() for number in range(6, 12)]
        assert step.graphed is not None and len(step.graphed.graphs) > 1
        return losses

    assert measured(range(0)) == pytest.approx(measured(range(12)), rel=1e-4)


def test_cast_weights_are_read_by_cudnn_as_they_are(recwarn: pytest.WarningsRecorder) -> None:
    """cuDNN warns of weights that it has to copy into one block."""
    model, objective, _ = setting("ulmfit", "stream")
    texts = torch.randint(110, VOCAB, (ROWS, 2000)).tolist()
    feed = ContiguousDataset(
        objective, InMemoryDocuments.from_lists([[text] for text in texts]), batch_size=ROWS
    )
    batches = [with_texts(feed[number]) for number in range(STEPS)]
    learned(model, objective, batches, captured=False, bfloat16=True)
    assert not [w for w in recwarn if "not part of single contiguous" in str(w.message)]


@pytest.mark.parametrize("compiled", [False, True])
def test_chance_follows_the_steps_number(compiled: bool) -> None:
    """A graph that drew its numbers when it was recorded would drop the same units for ever."""
    given = setting("bert", "mlm", dropout=0.1)
    _, _, step = learned(*given, captured=True, compiled=compiled)
    step.lr, batch = lambda number: 0.0, given[2][0].pin_memory()
    losses = [step(number, [batch]).loss.item() for number in (0, 1, 0, 1)]
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-6)
    assert abs(losses[0] - losses[1]) > 1e-4
    step.seed += 1
    assert abs(step(0, [batch]).loss.item() - losses[0]) > 1e-4


def test_gradients_are_gone_after_a_step() -> None:
    _, model, _ = learned(*setting("gpt2", "clm"), captured=True)
    assert all(p.grad is None for p in model.parameters())


def test_another_shape_gets_a_graph_of_its_own() -> None:
    model, objective, feed = setting("gpt2", "clm")
    _, model, step = learned(model, objective, feed, captured=True, bfloat16=True)
    assert step.graphed is not None
    before = len(step.graphed.graphs)
    small = PackedDataset(objective, documents(), batch_size=ROWS - 1, seed=0)
    assert torch.isfinite(step(STEPS, [small[0].pin_memory()]).loss)
    assert torch.isfinite(step(STEPS + 1, [feed[0].pin_memory()]).loss)
    assert len(step.graphed.graphs) == before + 1
