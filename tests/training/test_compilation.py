"""What a run compiles, that compiled layers compute the same, and what a failing compiler does."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kinfolk.batch import Batch
from kinfolk.cli.run_progress import TerminalProgress
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.families import families
from kinfolk.nn.language_model import attention_windows
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.compilation import CompiledModules, plan_compilation
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import read, speed_lines
from kinfolk.training.loop import Callback
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import recipe
from support.runs import Home

pytestmark = [
    # torch's tracer instantiates autograd functions and reads gradients, and torch warns of it.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
]

STATIC = [m for m in families().values() if m.model.static_shapes and m.name != "ngram"]  # counted
QUICK = ("gpt2",)  # tracing takes seconds; tests/test_compiled.py has other kinds of attention
VOCAB = 300
SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5, sentinels=tuple(range(6, 106))
)
GPT2_BASE = 124_000_000


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Forget the graphs of other tests: past eight of one function, torch runs it untraced."""
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


def use_backend(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Compile with a backend that needs no C compiler."""
    original = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda module, **more: original(module, backend=backend, **more)
    )


def plan(steps: int, *, compile: Any = "auto", cuda: bool = True, **more: Any) -> Any:
    train = TrainConfig(steps=steps, warmup=0, batch_size=32, compile=compile)
    given: dict[str, Any] = {"row_length": 1024, "parameters": GPT2_BASE, "replays": False} | more
    return plan_compilation(train, cuda=cuda, **given)


@pytest.mark.parametrize(
    ("steps", "mode", "said"),
    [
        (100, "no", "nothing is compiled"),
        (1_000, "layers", "each layer is compiled"),
        (50_000, "model", "the whole model is compiled"),
    ],
)
def test_auto_compiles_more_of_a_longer_run_and_says_so(steps: int, mode: str, said: str) -> None:
    found = plan(steps)
    assert found.mode == mode
    assert said in found.reason


def test_a_replayed_step_of_a_small_network_is_compiled_later() -> None:
    small = {"parameters": 10**6, "row_length": 128}
    assert plan(20_000, **small).mode == "layers"
    assert plan(20_000, **small, replays=True).mode == "no"
    assert plan(40_000, **small, replays=True).mode == "layers"


@pytest.mark.parametrize(
    ("compile", "mode"), [("yes", "model"), ("layers", "layers"), ("no", "no")]
)
def test_what_is_asked_for_is_compiled_without_a_reason(compile: str, mode: str) -> None:
    for steps in (10, 10**6):
        assert plan(steps, compile=compile) == plan(steps, compile=compile, cuda=False)
        assert (plan(steps, compile=compile).mode, plan(steps, compile=compile).reason) == (
            *(mode, None),
        )
    assert plan(10**6, cuda=False).mode == plan(10**6, row_length=None).mode == "no"


def batch(objective: Any, seed: int = 0) -> Batch[Any]:
    """Make a batch of ragged texts."""
    numbers = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 60, (30,), generator=numbers).tolist()
    texts = [torch.randint(110, VOCAB, (n,), generator=numbers).tolist() for n in sizes]
    documents = InMemoryDocuments.from_lists([[t[: len(t) // 2], t[len(t) // 2 :]] for t in texts])
    return PackedDataset(objective, documents, batch_size=4, seed=0)[0]


def setting(name: str, **changes: Any) -> tuple[Any, Any]:
    """Return a nano network and its objective."""
    who = families()[name]
    kind = who.objective(next(iter(who.objectives)))
    objective = kind(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=128)
    torch.manual_seed(0)
    return replace(who.config("nano"), vocab_size=VOCAB, **changes).build().train(), objective


def gradients(learner: Learner, data: Batch[Any]) -> tuple[float, dict[str, torch.Tensor]]:
    mean = learner(data.inputs, data.targets).mean(data.counts)
    mean.backward()
    grads = {n: p.grad.float() for n, p in learner.named_parameters() if p.grad is not None}
    return mean.item(), grads


@pytest.mark.parametrize(
    "name",
    [pytest.param(m.name, marks=[] if m.name in QUICK else pytest.mark.slow) for m in STATIC],
)
def test_compiled_layers_have_the_same_loss_and_gradients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend(monkeypatch, "aot_eager")
    model, objective = setting(name)
    data = batch(objective)
    loss, grads = gradients(Learner(copy.deepcopy(model), objective), data)
    learner = Learner(model, objective)
    compiled = CompiledModules.of("layers", learner, dynamic=False)
    assert compiled is not None
    assert learner not in compiled.modules
    with compiled.timed():
        again, others = gradients(learner, data)
    assert compiled.seconds > 0, "nothing was compiled"
    assert again == pytest.approx(loss, rel=1e-5)
    assert grads.keys() == others.keys()
    for parameter, grad in grads.items():
        torch.testing.assert_close(others[parameter], grad, rtol=1e-3, atol=1e-5, msg=parameter)


# The last layer of BERT is not like the others: it ends at the masked tokens.
@pytest.mark.parametrize(("name", "graphs"), [("gpt2", 1), ("bert", 2), ("t5", 2)])
def test_layers_of_one_shape_are_compiled_once(
    name: str, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    use_backend(monkeypatch, backend)
    model, objective = setting(name, num_layers=5)
    learner = Learner(model, objective)
    assert CompiledModules.of("layers", learner, dynamic=False) is not None
    for _ in range(2):
        gradients(learner, batch(objective))
    assert len(compiled) == graphs


@torch.no_grad()  # FlexAttention has no backward pass on a CPU
@pytest.mark.parametrize(("name", "graphs"), [("gpt2", 1), ("gpt3", 2), ("t5", 2)])
def test_block_masks_of_other_batches_compile_nothing_again(
    name: str, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    use_backend(monkeypatch, backend)
    model, objective = setting(name, num_layers=4)
    learner = Learner(model, objective)
    plain = Learner(copy.deepcopy(model), objective)
    assert CompiledModules.of("layers", learner, dynamic=False) is not None
    for seed in range(3):
        data = batch(objective, seed)
        sparse = data.inputs.with_block_masks(attention_windows(learner))
        expected = plain(data.inputs, data.targets).mean(data.counts)
        found = learner(sparse, data.targets).mean(data.counts)
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert len(compiled) == graphs


def failing(graph: Any, inputs: Any) -> Any:
    """Fail as a compiler does."""
    raise torch._dynamo.exc.TorchDynamoException("no such instruction\nand a long trace")


def failing_backward(graph: Any, inputs: Any) -> Any:
    """Compile the forward pass, and fail in the backward pass."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=lambda g, _: make_boxed_func(g.forward), bw_compiler=failing)(
        graph, inputs
    )


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("backend", [failing, failing_backward])
@pytest.mark.parametrize("mode", ["model", "layers"])
def test_a_step_goes_on_without_a_compiler_that_fails(
    mode: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses(compiled: Callable[[Learner], CompiledModules | None]) -> tuple[list[float], Any]:
        model, objective = setting("gpt2")
        learner, said = Learner(model, objective), list[str]()
        step = TrainStep(
            learner,
            build_optimizer(model, TrainConfig()),
            lambda number: 1e-3,
            clip=1.0,
            seed=0,
            device=torch.device("cpu"),
            bfloat16=False,
            compiled=compiled(learner),
        )
        step.on_message = said.append
        data = batch(objective)
        found = [step(number, [data, data]).loss.item() for number in range(3)]
        return [*found, step.forward(data).mean(data.counts).item()], said

    expected, said = losses(lambda learner: None)
    assert not said
    use_backend(monkeypatch, backend)
    found, said = losses(partial(CompiledModules.of, mode, dynamic=False))
    assert found == expected
    assert len(said) == 1
    assert "could not be compiled" in said[0]
    assert "\n" not in said[0]


class Messages(Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def run(home: Home, out: Path, *settings: str) -> list[str]:
    """Train five steps of a small network; return what the run says."""
    callback = Messages()
    chosen = recipe(
        "gpt2/nano",
        home.corpus,
        settings=["train.steps=5", "train.warmup=1", "train.batch_size=2", *settings],
    )
    pretrain(chosen, out, callbacks=[callback])
    return callback.messages


def test_a_run_whose_compiler_fails_ends_as_one_that_does_not_compile(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(home, tmp_path / "plain", "train.compile=no")
    use_backend(monkeypatch, failing)
    said = run(home, tmp_path / "failed", "train.compile=yes")
    assert sum("could not be compiled" in message for message in said) == 1
    plain, failed = ([line["loss"] for line in read(tmp_path / n)] for n in ("plain", "failed"))
    assert failed == plain


@pytest.mark.slow
def test_compiling_is_a_phase_of_its_own_in_the_log_of_speed(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend(monkeypatch, "aot_eager")
    run(home, tmp_path / "run", "train.compile=layers")
    lines = speed_lines(tmp_path / "run")
    assert lines[0]["compile_seconds"] > 0
    assert all("compile_seconds" not in line for line in lines[2:])
    assert lines[0]["seconds"] < lines[0]["compile_seconds"] + lines[0]["seconds"]
    assert (
        json.loads((tmp_path / "run" / "recipe.json").read_text())["train"]["compile"] == "layers"
    )


def test_the_terminal_tells_how_long_compiling_took(capsys: pytest.CaptureFixture[str]) -> None:
    from kinfolk.cli.run_progress import run_progress
    from kinfolk.training.loop import Progress

    with run_progress("gpt2") as progress:
        assert isinstance(progress, TerminalProgress)
        progress.on_step(Progress(1, 10, 5.0, None, 100.0, compile_seconds=2.25))
        progress.on_step(Progress(2, 10, 5.0, None, 100.0))
    assert capsys.readouterr().err.count("compiled in 2.2 s") == 1
