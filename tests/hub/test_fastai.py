"""AWD-LSTM of fastai: its state dicts of three versions, and outputs equal to its network's."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.hub import load, load_model, save
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.load import logits

VOCAB, EMBEDDING, HIDDEN, LAYERS = 24, 8, 12, 3
ITOS = ["xxunk", "xxpad", "xxbos", "xxeos", *["the", "cat", "sat", "on", "a", "mat", "and", "ran"]]
ITOS += ["xxfake"] * (VOCAB - len(ITOS))


def state_dict(version: str = "2") -> dict[str, Tensor]:
    """Make the state dict of a language model as a version of fastai names it."""
    draws = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws) * 0.5

    table = some(VOCAB, EMBEDDING)
    copied = "encoder_with_dropout.embed" if version == "0.7" else "encoder_dp.emb"
    tensors = {"0.encoder.weight": table, f"0.{copied}.weight": table}
    sizes = [EMBEDDING, *[HIDDEN] * (LAYERS - 1), EMBEDDING]
    for i in range(LAYERS):
        at, read, size = f"0.rnns.{i}", sizes[i], sizes[i + 1]
        raw = some(4 * size, size)
        tensors[f"{at}.{'module.' if version == '0.7' else ''}weight_hh_l0_raw"] = raw
        tensors[f"{at}.module.weight_ih_l0"] = some(4 * size, read)
        tensors[f"{at}.module.bias_ih_l0"] = some(4 * size)
        tensors[f"{at}.module.bias_hh_l0"] = some(4 * size)
        if version == "2":  # a copy with dropout, which is stale
            tensors[f"{at}.module.weight_hh_l0"] = raw * (some(4 * size, size) > 0)
    tensors["1.decoder.weight"] = table
    if version != "0.7":
        tensors["1.decoder.bias"] = some(VOCAB)
    return tensors


def fastai_logits(w: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    """Compute the forward pass as Merity et al. describe it, without dropout."""
    x = w["0.encoder.weight"][ids]  # (length, embedding size)
    for i in range(LAYERS):
        at = f"0.rnns.{i}"
        recurrent = w.get(f"{at}.weight_hh_l0_raw", w.get(f"{at}.module.weight_hh_l0_raw"))
        assert recurrent is not None
        h = c = torch.zeros(recurrent.shape[1])
        outputs = []
        for token in x:
            gates = w[f"{at}.module.weight_ih_l0"] @ token + w[f"{at}.module.bias_ih_l0"]
            gates = gates + recurrent @ h + w[f"{at}.module.bias_hh_l0"]
            read, forget, cell, write = gates.chunk(4)
            c = forget.sigmoid() * c + read.sigmoid() * cell.tanh()
            h = write.sigmoid() * c.tanh()
            outputs.append(h)
        x = torch.stack(outputs)
    scores = x @ w["1.decoder.weight"].T
    return scores + w.get("1.decoder.bias", torch.zeros(VOCAB))


IDS = torch.tensor([2, 4, 5, 6, 7, 4, 9, 3, 11])


@pytest.mark.parametrize("version", ["0.7", "1", "2"])
@pytest.mark.parametrize("learner", [False, True], ids=["state dict", "learner"])
def test_a_language_model_of_fastai_gives_its_logits(
    version: str, learner: bool, tmp_path: Path
) -> None:
    theirs = state_dict(version)
    values: Any = {"model": theirs, "opt": {"state": []}} if learner else theirs
    torch.save(values, tmp_path / "lm.pth")
    (tmp_path / "itos.pkl").write_bytes(pickle.dumps(ITOS))
    model, tokenizer = load(tmp_path)
    expected = fastai_logits(theirs, IDS)
    torch.testing.assert_close(logits(model, IDS.tolist()), expected, rtol=1e-5, atol=1e-5)
    assert tokenizer.encode("the cat sat") == [4, 5, 6]
    save(tmp_path / "ours", model, tokenizer)
    again = load_model(tmp_path / "ours")
    assert torch.equal(logits(again, IDS.tolist()), logits(model, IDS.tolist()))


def test_an_encoder_alone_has_tied_logits_without_a_bias(tmp_path: Path) -> None:
    theirs = {n.removeprefix("0."): t for n, t in state_dict("2").items() if n.startswith("0.")}
    torch.save(theirs, tmp_path / "encoder.pth")
    model = load_model(tmp_path / "encoder.pth")
    expected = fastai_logits({**state_dict("2"), "1.decoder.bias": torch.zeros(VOCAB)}, IDS)
    torch.testing.assert_close(logits(model, IDS.tolist()), expected, rtol=1e-5, atol=1e-5)


def test_the_live_network_of_fastai_is_equal(tmp_path: Path) -> None:
    models = pytest.importorskip("fastai.text.models.awdlstm")
    core = pytest.importorskip("fastai.text.models.core")
    torch.manual_seed(0)
    config = {**models.awd_lstm_lm_config, "emb_sz": EMBEDDING, "n_hid": HIDDEN, "n_layers": 3}
    theirs: nn.Module = core.get_language_model(models.AWD_LSTM, VOCAB, config)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    theirs(torch.zeros(1, 2, dtype=torch.long))  # training mode: the copy of the weights is dropped
    torch.save(theirs.state_dict(), tmp_path / "lm.pth")
    theirs.eval()
    theirs.reset()  # type: ignore[operator]
    with torch.no_grad():
        expected = theirs(IDS[None])[0][0]
        first = theirs(IDS[None])[0][0]  # continues from its state
    ours = load_model(tmp_path / "lm.pth")
    torch.testing.assert_close(logits(ours, IDS.tolist()), expected, rtol=1e-5, atol=1e-5)
    twice = logits(ours, IDS.tolist() * 2)[len(IDS) :]
    torch.testing.assert_close(twice, first, rtol=1e-5, atol=1e-5)


def mistakes() -> dict[str, tuple[dict[str, Tensor], str]]:
    good = state_dict("2")
    without = {n: t for n, t in good.items() if n != "0.rnns.1.module.bias_ih_l0"}
    return {
        "untied": ({**good, "1.decoder.weight": good["1.decoder.weight"] + 1}, "tie_weights=True"),
        "missing": (without, "has no 0.rnns.1.module.bias_ih_l0"),
        "both directions": (
            {**good, "0.rnns.0.module.weight_ih_l0_reverse": torch.zeros(1)},
            "reads from left to right",
        ),
    }


@pytest.mark.parametrize("name", [*mistakes()])
def test_what_is_not_supported_is_said(name: str, tmp_path: Path) -> None:
    tensors, message = mistakes()[name]
    torch.save(tensors, tmp_path / "lm.pth")
    with pytest.raises(UserError, match=message):
        load_model(tmp_path / "lm.pth")


class Evil:
    """A pickle that would call a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


def test_a_vocabulary_that_could_run_code_is_refused(tmp_path: Path, capsys: Any) -> None:
    for value in (Evil(), ["xxunk", Evil()]):
        (tmp_path / "itos.pkl").write_bytes(pickle.dumps(value))
        with pytest.raises(UserError, match=r"not a plain list of tokens \(it asks for builtins"):
            Tokenizer.load(tmp_path)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "message"),
    [({"the": 1}, "must hold a list of tokens"), (["the", "cat"], "has no xxunk")],
)
def test_another_vocabulary_is_refused(value: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "itos.pkl").write_bytes(pickle.dumps(value))
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path)
