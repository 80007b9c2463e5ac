"""A model that is passed to `embed`, `logits` or a probe is afterwards as it was before."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kinfolk
from kinfolk.errors import UserError
from kinfolk.generation.prompts import device_of
from kinfolk.nn.language_model import LanguageModel
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.task import task_class
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.finetuning.recipe import InitialWeights
from kinfolk.workflows.probing import curves, probes
from kinfolk.workflows.probing.probes import probe_layers
from kinfolk.workflows.vectors import embed

Model = tuple[LanguageModel, Tokenizer]
TEXTS = ["a film", "the song", "a book", "the film was dull"]
ROWS = [{"text": text, "label": str(n % 2)} for n, text in enumerate(TEXTS)]
LABELLED = [LabelledText((row["text"],), row["label"], n) for n, row in enumerate(ROWS)]


def layer_probes(model: Model, device: str) -> object:
    task = task_class("classify").from_rows(LABELLED, file="texts")
    return probe_layers(model, LABELLED, LABELLED, LABELLED, task, device=device)


CALLS: dict[str, Callable[[Model, str], object]] = {
    "embed": lambda model, device: kinfolk.embed(model, TEXTS, device=device),
    "isotropy": lambda model, device: kinfolk.isotropy(model, TEXTS, device=device),
    "probe": lambda model, device: kinfolk.probe(model, ROWS, ROWS, seeds=1, device=device),
    "probe_layers": layer_probes,
}


@pytest.fixture
def model() -> Model:
    """Return a network in training mode, whose last layer is in evaluation mode."""
    tokenizer = train_tokenizer(TEXTS, kind="bpe", vocab_size=400, fewer=True)
    config = InitialWeights(name="bert/nano").config(tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = config.build().train()
    [*network.layers][-1].eval()
    return network, tokenizer


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


@pytest.mark.parametrize("name", CALLS)
def test_each_module_keeps_its_mode(name: str, model: Model) -> None:
    before = modes(model[0])
    assert {*before} == {True, False}
    CALLS[name](model, "cpu")
    assert modes(model[0]) == before


def test_logits_leave_each_module_in_its_mode(model: Model) -> None:
    before = modes(model[0])
    kinfolk.logits(model[0], model[1].encode(TEXTS[0]))
    assert modes(model[0]) == before


@pytest.mark.parametrize("name", CALLS)
def test_the_model_is_back_on_its_device(
    name: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[Any] = []

    def move(self: nn.Module, device: torch.device) -> nn.Module:
        """Record where the network is moved to, which stays on the CPU."""
        if self is model[0]:
            moves.append(device)
        return self

    monkeypatch.setattr(nn.Module, "to", move)
    for module in (embed, curves, probes):
        monkeypatch.setattr(module, "select_device", torch.device)
    CALLS[name](model, "meta")
    assert moves == [torch.device("meta"), torch.device("cpu")]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_a_model_on_the_cpu_is_moved_back_from_cuda(name: str, model: Model) -> None:
    CALLS[name](model, "cuda")
    assert device_of(model[0]) == torch.device("cpu")


def test_vectors_are_those_of_evaluation_mode(model: Model) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = kinfolk.embed(model, TEXTS)
    model[0].eval()
    assert np.array_equal(found, kinfolk.embed(model, TEXTS))


def test_a_model_is_as_it_was_after_an_error(model: Model) -> None:
    before = modes(model[0])
    with pytest.raises(UserError, match="the network has layers 0 to 2"):
        kinfolk.embed(model, TEXTS, layers="9")
    assert modes(model[0]) == before
