"""On CUDA the fast ways to run a step have the losses of the plain one, in whole runs."""

from pathlib import Path

import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.training.log import read, speed_lines
from kinfolk.workflows.pretrain import pretrain
from support.runs import Home

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own, while it compiles
]
PLAIN = ("compile=no", "cuda_graph=no", "attention=sdpa")
FAST = {
    "layers": ("compile=layers", "cuda_graph=no"),
    "layers and graph": ("compile=layers", "cuda_graph=yes"),
    "masters": ("compile=no", "cuda_graph=no", "master_weights=yes"),
    "masters and graph": ("compile=no", "cuda_graph=yes", "master_weights=yes"),
    "masters, compiled, graph": ("compile=yes", "cuda_graph=yes", "master_weights=yes"),
    "masters, layers": ("compile=layers", "cuda_graph=no", "master_weights=yes"),
}
VARLEN = {
    "varlen": ("compile=no", "cuda_graph=no", "attention=varlen"),
    "varlen and graph": ("compile=no", "cuda_graph=yes", "attention=varlen"),
    "varlen, compiled": ("compile=yes", "cuda_graph=no", "attention=varlen"),
    "varlen, layers": ("compile=layers", "cuda_graph=no", "attention=varlen"),
    "all": ("compile=yes", "cuda_graph=yes", "attention=varlen", "master_weights=yes"),
}
MEMBERS = ("gpt2", "bert", "t5", "electra", "albert", "glm", "xlnet", "transformer_xl")


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Forget the graphs of other tests: past eight of one function, torch runs it untraced."""
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


def losses(home: Home, member: str, out: Path, settings: tuple[str, ...]) -> list[float]:
    """Train a few steps without dropout, in bfloat16; return losses, those of evaluation last."""
    rates = ["model.dropout=0"] + (["model.attention_dropout=0"] if member != "t5" else [])
    chosen = ["device=cuda", "precision=bfloat16", *settings]
    recipe = home.recipe(member, *rates, *(f"train.{setting}" for setting in chosen))
    lines = read(pretrain(recipe, out))
    held_out = [line["eval_loss"] for line in lines if line.get("eval_loss") is not None]
    return [*(line["loss"] for line in lines), *held_out]


@pytest.mark.parametrize("member", MEMBERS)
def test_fast_steps_have_the_losses_of_plain_ones(member: str, home: Home, tmp_path: Path) -> None:
    plain = losses(home, member, tmp_path / "plain", PLAIN)
    for name, settings in FAST.items():
        assert losses(home, member, tmp_path / name, settings) == pytest.approx(plain, rel=3e-2)


@pytest.mark.parametrize("member", ["gpt2", "gpt3", "bert", "electra", "albert", "transformer"])
def test_varlen_attention_has_the_losses_of_the_dense_mask(
    member: str, home: Home, tmp_path: Path
) -> None:
    plain = losses(home, member, tmp_path / "plain", PLAIN)
    for name, settings in VARLEN.items():
        assert losses(home, member, tmp_path / name, settings) == pytest.approx(plain, rel=3e-2)


def test_networks_with_a_bias_refuse_varlen_attention(home: Home, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no bias"):
        losses(home, "t5", tmp_path / "run", ("attention=varlen",))


def test_compiling_is_a_phase_of_its_own(home: Home, tmp_path: Path) -> None:
    losses(home, "gpt2", tmp_path / "run", ("compile=layers",))
    first = speed_lines(tmp_path / "run")[0]
    assert first["compile_seconds"] > first["seconds"]
