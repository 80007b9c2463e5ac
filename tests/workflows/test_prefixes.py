"""Runs that learn prefixes: the model stays as it is, the run resumes to the bit, texts follow."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import kinfolk
from kinfolk.errors import UserError
from kinfolk.files import sha256
from kinfolk.training.log import read
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.generate import load_with_prefix
from kinfolk.workflows.load import load
from kinfolk.workflows.prefix_tuning.files import SavedPrefixes, weights_hash
from kinfolk.workflows.prefix_tuning.prefixes import learn_prefixes
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import recipe
from support.learnable import BAD, GOOD, classify, table
from support.runs import Home, tree

SMALL: dict[str, Any] = {"batch_size": 8, "lr": 1e-2, "device": "cpu", "prefix_length": 3}
SHORT: dict[str, Any] = SMALL | {"steps": 6, "save_every": 2, "eval_every": 3, "warmup": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write opinions as labelled rows and as lines of text."""
    folder = tmp_path_factory.mktemp("opinions")
    table(folder / "rows", classify, 200)
    chance = random.Random(1)
    lines = [classify(chance)["sentence"] for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "documents.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def decoder(home: Path) -> Path:
    """Pretrain a small GPT-2 on the text of both opinions."""
    tokenizer = kinfolk.train_tokenizer(home / "documents.txt", kind="bpe", vocab_size=400)
    kinfolk.prepare(home / "documents.txt", tokenizer, home / "corpus", holdout=0.1)
    chosen = recipe(
        "gpt2/nano", home / "corpus", length=32, steps=150, lr=5e-3, batch_size=16, device="cpu"
    )
    return pretrain(chosen, home / "decoder")


@pytest.fixture(scope="module")
def labelled(home: Path, decoder: Path) -> Path:
    return learn_prefixes(decoder, rows(home), home / "labelled", steps=120, **SMALL)


def rows(home: Path) -> Path:
    (found,) = home.glob("rows*")
    return found


class Stop(Callback):
    """Interrupt a run as Ctrl-C does, after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, progress: Progress) -> None:
        if progress.step >= self.step:
            raise KeyboardInterrupt


def share_of(words: tuple[str, ...], texts: list[str]) -> float:
    """Return the fraction of texts with one of the words, of those with an opinion."""
    told = [text for text in texts if any(word in text for word in (*GOOD, *BAD))]
    return sum(any(word in text for word in words) for text in told) / len(told)


def test_texts_have_the_attribute_of_their_prefix(
    home: Path, decoder: Path, labelled: Path
) -> None:
    prompts = ["film", "the play", "song", "book"] * 8
    options: dict[str, Any] = {"max_new_tokens": 12, "add_bos_token": True}
    model, tokenizer = load(decoder)
    good, bad = (
        kinfolk.generate(model, tokenizer, prompts, prefix_from=labelled, attribute=name, **options)
        for name in ("good", "bad")
    )
    plain = kinfolk.generate(model, tokenizer, prompts, **options)
    assert share_of(GOOD, good) > 0.8 and share_of(BAD, bad) > 0.8
    assert 0.2 < share_of(GOOD, plain) < 0.8
    last = read(labelled)[-1]
    assert last["accuracy"] > 0.9
    assert last["losses"].keys() == last["eval_losses"].keys() == {"lm", "discriminative"}
    streamed = kinfolk.stream(
        decoder, prompts[0], prefix_from=labelled, attribute="good", **options
    )
    assert "".join(streamed) == good[0]


def test_the_model_stays_as_it_is_and_is_not_in_the_run(
    home: Path, decoder: Path, tmp_path: Path
) -> None:
    before = {path: sha256(path) for path in decoder.rglob("*") if path.is_file()}
    run = learn_prefixes(decoder, rows(home), tmp_path / "run", **SHORT)
    assert {path: sha256(path) for path in decoder.rglob("*") if path.is_file()} == before
    model, _ = load(decoder)
    saved = SavedPrefixes.read(run)
    assert saved.model_hash == weights_hash(model)
    assert saved.attributes == ("bad", "good")
    assert saved.keys.shape == saved.values.shape == (2, 2, 2, 3, 32)
    files = {path.name for path in run.rglob("*.safetensors")}
    assert files == {"prefixes.safetensors", "trained.safetensors", "training.safetensors"}
    trained = load_file(run / "checkpoints" / "last" / "trained.safetensors")
    assert {name.split(".")[0] for name in trained} == {"prefixes"}
    best = SavedPrefixes.read(run / "checkpoints" / "best")
    assert torch.equal(saved.keys, best.keys)
    assert "attributes" in (run / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("latent", "step"),
    [
        *((False, 3), (True, 5)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, 1), (False, 5))),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((True, 1), (True, 3))),
    ],
)
def test_an_interrupted_run_ends_as_if_nothing_had_happened(
    latent: bool, step: int, home: Path, decoder: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"text": home / "text.txt"} if latent else {}
    train = None if latent else rows(home)
    whole = learn_prefixes(decoder, train, tmp_path / "whole", **given, **SHORT)
    with pytest.raises(KeyboardInterrupt):
        learn_prefixes(decoder, train, tmp_path / "run", **given, callbacks=[Stop(step)], **SHORT)
    run = resume(tmp_path / "run")
    last, expected = (tree(folder / "checkpoints" / "last") for folder in (run, whole))
    assert {"prefixes.safetensors", "trained.safetensors", "training.safetensors"} <= last.keys()
    assert [name for name in last if last[name] != expected[name]] == []
    assert (run / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()
    assert sha256(run / "prefixes.safetensors") == sha256(whole / "prefixes.safetensors")
    with pytest.raises(UserError, match=r"is complete \(6 steps\)"):
        resume(run)


def test_a_resume_refuses_another_model_and_other_settings(
    home: Path, decoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        learn_prefixes(decoder, rows(home), tmp_path / "run", callbacks=[Stop(3)], **SHORT)
    file = tmp_path / "run" / "recipe.json"
    found = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(found | {"model_hash": "0"}), encoding="utf-8")
    with pytest.raises(UserError, match=r"has changed since .* was started: restore its weights"):
        resume(tmp_path / "run")
    found["prefixes"]["prefix_length"] = 9
    file.write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(UserError, match=r"prefixes\.prefix_length is 9, but the run was start"):
        resume(tmp_path / "run")


def test_text_alone_has_numbered_attributes(home: Path, decoder: Path, tmp_path: Path) -> None:
    run = learn_prefixes(
        decoder, None, tmp_path / "run", text=home / "text.txt", attributes=3, **SHORT
    )
    assert SavedPrefixes.read(run).attributes == ("1", "2", "3")
    last = read(run)[-1]
    assert last["losses"].keys() == {"lm", "kl", "contrastive"} and "accuracy" not in last
    text = kinfolk.generate(decoder, "film", prefix_from=run, attribute="3", max_new_tokens=5)
    assert isinstance(text, str)


def test_attributes_of_several_runs_follow_each_other(
    home: Path, decoder: Path, labelled: Path
) -> None:
    _, _, both = load_with_prefix(decoder, [labelled, labelled], ["good", "bad"], device="cpu")
    saved = SavedPrefixes.read(labelled)
    assert both is not None
    assert torch.equal(both.keys, torch.cat([saved.keys[1], saved.keys[0]], dim=2))
    with pytest.raises(UserError, match="got 2 runs of prefixes and 1 attributes"):
        load_with_prefix(decoder, [labelled, labelled], ["good"], device="cpu")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_every_precision_takes_the_prefix(decoder: Path, labelled: Path, precision: str) -> None:
    model, tokenizer, prefix = load_with_prefix(
        decoder, [labelled], ["good"], device="cpu", precision=precision
    )
    if precision != "int8":
        assert weights_hash(model) == SavedPrefixes.read(labelled).model_hash
    from kinfolk.generation.config import GREEDY
    from kinfolk.generation.generate import generate_many

    (texts,) = generate_many(model, tokenizer, "film", GREEDY, prefix=prefix)
    assert texts[0].ids


def test_wrong_arguments_are_one_sentence(
    home: Path, decoder: Path, labelled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match="labelled rows or from text: give one of the two"):
        learn_prefixes(decoder, None, out)
    with pytest.raises(UserError, match="the model reads at most 32 tokens; lower it"):
        learn_prefixes(decoder, rows(home), out, length=33, **SHORT)
    with pytest.raises(UserError, match=r"train\.compile=yes does not apply to prefixes"):
        learn_prefixes(decoder, rows(home), out, compile="yes", **SHORT)
    with pytest.raises(UserError, match="attributes is for text without labels"):
        learn_prefixes(decoder, rows(home), out, attributes=2)
    with pytest.raises(UserError, match="attributes=1: it must be from 2 to"):
        learn_prefixes(decoder, None, out, text=home / "text.txt", attributes=1)
    with pytest.raises(UserError, match="holds prefixes, not a model: give the model"):
        load(labelled)
    with pytest.raises(UserError, match="named by its run and its attribute: pass both"):
        kinfolk.generate(decoder, "film", attribute="good")
    assert not out.exists()


def test_prefixes_of_another_model_are_refused(
    labelled: Path, tmp_path: Path, home: Path, decoder: Path
) -> None:
    other = Home.make(tmp_path / "other").run("gpt2")
    with pytest.raises(UserError, match=r"were learned for another model, .*decoder"):
        kinfolk.generate(other, "film", prefix_from=labelled, attribute="good")
    model, tokenizer = load(decoder)
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    with pytest.raises(UserError, match="were learned for another model"):
        kinfolk.generate(model, tokenizer, "film", prefix_from=labelled, attribute="good")
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes((labelled / "prefixes.safetensors").read_bytes()[:-8])
    with pytest.raises(UserError, match=r"is damaged .*: learn the prefixes again"):
        kinfolk.generate(decoder, "film", prefix_from=damaged, attribute="good")
