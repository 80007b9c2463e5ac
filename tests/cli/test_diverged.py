"""Weights that are no numbers: a run that diverges keeps none, and no command uses others'."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.runs import Home, Kinfolk, one_sentence


def all_finite(run: Path) -> bool:
    """Say whether every checkpoint of a run has finite weights."""
    files = run.rglob("model.safetensors")
    return all(bool(t.isfinite().all()) for file in files for t in load_file(file).values())


@pytest.mark.parametrize("lr", ["1e4", "1e37"])
@pytest.mark.parametrize(
    "command",
    [
        "pretrain gpt2/nano --corpus {corpus} --length 32 --batch 4 --steps 2 "
        "train.schedule=constant train.warmup=0 train.save_every=1 train.grad_clip=0",
        "finetune {bert} --train {rows} --dev {rows} --steps 4 --seeds 1",
        "finetune {bert} --train {rows} --dev {rows} --steps 4 train.warmup=0",
    ],
    ids=["pretrain", "finetune seeds", "finetune"],
)
def test_a_rate_far_too_high_saves_no_nan(
    command: str, lr: str, kinfolk: Kinfolk, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good thing\tyes\na bad thing\tno\n" * 8)
    names = {"corpus": home.corpus, "bert": runs["bert"], "rows": rows}
    out = tmp_path / "run"
    words = [word.format(**names) for word in command.split()]
    said = kinfolk(*words, "--lr", lr, "--device", "cpu", "-o", out)
    assert said.code in (0, 2)
    if said.code == 2:
        sentence = said.sentence.removeprefix("error: ")
        assert "Traceback" not in said.err and "train.lr" in sentence, sentence
    else:
        assert lr == "1e4" and list(out.rglob("model.safetensors"))
    assert all_finite(out)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_weights_that_are_no_floating_point_numbers_are_refused(
    dtype: torch.dtype, kinfolk: Kinfolk, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(runs["gpt2"] / "checkpoints" / "last", tmp_path / "model")
    (folder / "checksums.json").unlink()
    weights = load_file(folder / "model.safetensors")
    name = "transformer.h.0.attn.c_attn.weight"
    weights[name] = weights[name].to(dtype)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for command in (["evaluate", folder, "--text", home.text], ["generate", folder, "The"]):
        sentence = one_sentence(kinfolk(*command, "--device", "cpu"))
        assert name in sentence, sentence
