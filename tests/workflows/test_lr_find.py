"""The range test of a model: exact for a seed, and its suggestion trains better than the ends."""

from pathlib import Path

import pytest

from kinfolk import lr_find, pretrain
from kinfolk.errors import UserError
from kinfolk.training import log
from kinfolk.workflows.lr_find import LRFindResult
from kinfolk.workflows.recipe import recipe
from support.runs import LENGTH, Home, tree

SETTINGS = ("train.batch_size=4", "train.device=cpu")


def find(home: Home, *settings: str, steps: int = 40) -> LRFindResult:
    """Run the test of a small GPT-2 on little text."""
    chosen = [*SETTINGS, *settings]
    return lr_find("gpt2/nano", home.corpus, steps=steps, length=LENGTH, settings=chosen)


@pytest.fixture(scope="module")
def found(home: Home) -> LRFindResult:
    return find(home)


def test_the_rates_are_those_of_the_range(found: LRFindResult) -> None:
    assert found.rates[0] == 1e-6 and found.rates[-1] <= 1.0
    assert len(found.rates) == len(found.losses) == len(found.smoothed) <= 40
    assert found.name == "gpt2/nano" and found.objective == "clm"


def test_it_is_a_function_of_the_seed(home: Home, found: LRFindResult) -> None:
    assert find(home) == found
    assert find(home, "train.seed=1").losses != found.losses


def final_loss(home: Home, lr: float, out: Path) -> float:
    """Train at one rate; return the mean of the last losses, infinite if it diverges."""
    settings = [*SETTINGS, "train.schedule=constant", "train.warmup=0", "train.steps=30"]
    made = recipe("gpt2/nano", home.corpus, length=LENGTH, settings=[*settings, f"train.lr={lr}"])
    try:
        pretrain(made, out)
    except UserError:
        return float("inf")
    return sum(line["loss"] for line in log.read(out)[-10:]) / 10


def test_training_with_the_suggested_rate_beats_the_ends_of_the_range(
    home: Home, found: LRFindResult, tmp_path: Path
) -> None:
    assert found.steepest is not None
    assert found.lowest < found.steepest < found.highest
    rates = {"low": found.lowest, "found": found.steepest, "high": found.highest}
    losses = {name: final_loss(home, rate, tmp_path / name) for name, rate in rates.items()}
    assert losses["found"] < losses["low"] - 0.5
    assert losses["found"] < losses["high"] - 0.5


def test_it_writes_nothing_beside_the_corpus(home: Home, found: LRFindResult) -> None:
    before = tree(home.corpus)
    find(home, steps=10)
    assert tree(home.corpus) == before


def test_what_is_not_found_is_said(home: Home) -> None:
    short = lr_find("gpt2/nano", home.corpus, steps=10, highest=1e-5, length=LENGTH)
    assert short.diverged is None and short.tenth is None
    assert short.notes[-1] == "the loss does not diverge up to 1e-05: use a higher --to"


def test_it_stops_where_the_loss_is_four_times_the_lowest(home: Home) -> None:
    wild = lr_find(
        *("gpt2/nano", home.corpus),
        highest=1e4,
        steps=60,
        length=LENGTH,
        settings=[*SETTINGS, "train.grad_clip=0"],
    )
    assert len(wild.losses) < 60
    assert wild.diverged is not None and wild.diverged <= 1e4
    assert wild.tenth == wild.diverged / 10


def test_counts_have_no_learning_rate(home: Home) -> None:
    with pytest.raises(UserError, match="ngram/nano is counted, without a learning rate"):
        lr_find("ngram/nano", home.corpus)
