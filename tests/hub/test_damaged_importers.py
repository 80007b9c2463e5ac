"""Checkpoints of other programs with wrong settings and tensors end in one sentence."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.hub import load_model
from support.checkpoints import fairseq_tensors, glm_tensors, golden, group, roberta_tensors
from support.loops import every_case

Values = dict[str, Any]
BAD_SETTINGS: list[Any] = [None, -1, 0, 1.5, "x", [], {}, True, 10**12, 1e308, float("nan")]


def glm_checkpoint(folder: Path, settings: Values, tensors: Values) -> Path:
    torch.save({"module": tensors}, folder / "mp_rank_00_model_states.pt")
    return folder


def glm_folder(folder: Path, settings: Values, tensors: Values) -> Path:
    return transfo_xl_folder(folder, settings | {"model_type": "glm"}, tensors)


def fairseq(folder: Path, settings: Values, tensors: Values) -> Path:
    torch.save({"model": tensors, "cfg": {"model": settings}}, folder / "model.pt")
    return folder


def cove(folder: Path, settings: Values, tensors: Values) -> Path:
    torch.save(tensors, folder / "wmtlstm.pth")
    return folder


def transfo_xl(folder: Path, settings: Values, tensors: Values) -> Path:
    named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    torch.save(named, folder / "model.pt")
    return folder


def transfo_xl_folder(folder: Path, settings: Values, tensors: Values) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "transfo-xl"} | settings))
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def transformer_xl_weights() -> tuple[Values, dict[str, Tensor]]:
    data, tensors = golden("narrowing")
    return data, group(tensors, "weights")


FAIRSEQ: Values = {
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "activation_fn": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
}
Kind = tuple[Callable[[Path, Values, Values], Path], Values, Callable[[], Values]]
KINDS: dict[str, Kind] = {
    "GLM's checkpoint": (glm_checkpoint, {}, glm_tensors),
    "CoVe": (
        cove,
        {},
        lambda: torch.nn.LSTM(6, 4, num_layers=2, bidirectional=True).state_dict(),
    ),
    "GLM's folder": (glm_folder, {"num_attention_heads": 2}, glm_tensors),
    "fairseq's RoBERTa": (fairseq, FAIRSEQ, roberta_tensors),
    "fairseq's Transformer": (fairseq, FAIRSEQ, lambda: fairseq_tensors(joined=False)),
    "Transformer-XL": (transfo_xl, {}, lambda: transformer_xl_weights()[1]),
    "transfo-xl": (
        transfo_xl_folder,
        transformer_xl_weights()[0],
        lambda: transformer_xl_weights()[1],
    ),
}


def bad_tensors(tensors: Values) -> Iterator[tuple[str, Values]]:
    """Yield the tensors without one of them, and with one of another shape or type."""
    changes: list[Callable[[Tensor], Any]] = [
        lambda t: t[None],
        lambda t: t[..., :1],
        lambda t: t.flatten()[0],
        lambda t: t[:0],
        lambda t: t.int(),
        lambda t: "x",
        lambda t: None,
        lambda t: torch.full_like(t, torch.nan),
    ]
    turn = itertools.cycle(range(len(changes)))  # of two changes for each tensor
    for name, tensor in tensors.items():
        yield f"without {name}", {n: t for n, t in tensors.items() if n != name}
        for change in (changes[next(turn)] for _ in range(2)):
            value = change(tensor)
            shown = tuple(value.shape) if isinstance(value, Tensor) else value
            yield f"{name} is {shown}", tensors | {name: value}


def load_or_refuse(path: Path) -> None:
    """Load a model, or check that one sentence refuses it."""
    try:
        load_model(path)
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_wrong_settings_and_tensors_are_one_sentence(kind: str, tmp_path: Path) -> None:
    write, settings, weights = KINDS[kind]
    tensors = weights()
    load_model(write(tmp_path, settings, tensors))
    with every_case() as case:
        for name in settings:
            for value in BAD_SETTINGS:
                with case(f"{name}={value!r}"):
                    load_or_refuse(write(tmp_path, settings | {name: value}, tensors))
            with case(f"without {name}"):
                load_or_refuse(
                    write(tmp_path, {n: v for n, v in settings.items() if n != name}, tensors)
                )
        others = {n: t for n, t in tensors.items() if "layers.1." not in n}  # like those of layer 0
        for change, changed in bad_tensors(others):
            with case(change):
                missing = {n: t for n, t in tensors.items() if n not in others}
                load_or_refuse(write(tmp_path, settings, missing | changed))


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        ("transfo-xl", "d_model", "x", r"config\.json: d_model='x': it must be a whole number"),
        ("transfo-xl", "n_layer", -1, r"n_layer=-1: it must be at least 1"),
        ("transfo-xl", "cutoffs", [0], r"cutoffs=0: it must be at least 1"),
        ("GLM's folder", "num_attention_heads", 10**12, "num_attention_heads=1000000000000"),
        ("fairseq's RoBERTa", "dropout", 2, r"model\.pt: dropout=2: it must be"),
        ("fairseq's Transformer", "encoder_attention_heads", None, "encoder_attention_heads=None"),
    ],
)
def test_a_wrong_setting_is_named_as_its_program_does(
    kind: str, name: str, value: Any, expected: str, tmp_path: Path
) -> None:
    write, settings, weights = KINDS[kind]
    with pytest.raises(UserError, match=expected):
        load_model(write(tmp_path, settings | {name: value}, weights()))
