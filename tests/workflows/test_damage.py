"""What has changed since it was written is noticed: weights, corpora, labelled files, recipes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kinfolk import hub
from kinfolk.errors import UserError
from kinfolk.training.checkpoint import CorruptCheckpointWarning
from kinfolk.workflows.evaluate import evaluate
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.generate import fill, generate
from kinfolk.workflows.load import load, save
from kinfolk.workflows.predict import predict
from kinfolk.workflows.pretrain import pretrain, resume
from support.runs import Home, OnStep

MODEL_FILES = ["model.safetensors", "config.json", "tokenizer_config.json", "tokenizer.json"]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(runs["gpt2"], tmp_path / "run", symlinks=True)


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("labels") / "train.tsv"
    rows = [
        f"{'good' if i % 2 else 'bad'} thing {i}\t{'yes' if i % 2 else 'no'}" for i in range(40)
    ]
    file.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def finetuned(
    runs: dict[str, Path], labels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("finetuned") / "run"
    settings = ["train.steps=4", "train.save_every=2", "train.eval_every=2", "train.device=cpu"]
    return finetune(runs["bert"], labels, out, settings=[*settings, "train.batch_size=4"])


@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(name: str, run: Path) -> None:
    flip(run / "checkpoints" / "step-00000012" / name)
    with pytest.warns(CorruptCheckpointWarning, match=rf"step-00000012 is corrupt \({name}"):
        assert find_model_folder(run).name == "step-00000008"


@pytest.mark.parametrize("name", MODEL_FILES)
@pytest.mark.parametrize(
    "use",
    [
        load,
        lambda folder: generate(folder, "the cat", max_new_tokens=2),
        lambda folder: evaluate(folder, text="the cat saw the garden"),
        lambda folder: save(*load(folder), folder.parent / "export"),
        hub.load_model,
    ],
    ids=["load", "generate", "evaluate", "export", "hub"],
)
def test_a_damaged_folder_is_never_used(
    name: str, use: Callable[[Path], object], run: Path
) -> None:
    folder = run / "checkpoints" / "step-00000012"
    flip(folder / name)
    with pytest.raises(UserError, match=rf"is corrupt \({name}: checksum differs\)"):
        use(folder)


def test_fill_and_predict_notice_damage(
    runs: dict[str, Path], finetuned: Path, tmp_path: Path
) -> None:
    bert = shutil.copytree(runs["bert"] / "checkpoints" / "last", tmp_path / "bert")
    flip(bert / "model.safetensors")
    with pytest.raises(UserError, match="is corrupt"):
        fill(bert, "the [MASK]")
    run = shutil.copytree(finetuned, tmp_path / "run", symlinks=True)
    best = (run / "checkpoints" / "best").resolve()
    flip(best / "model.safetensors")
    with pytest.warns(CorruptCheckpointWarning, match=f"{best.name} is corrupt"):
        assert len(predict(run, ["good thing"])) == 1
    assert find_model_folder(finetuned) == (finetuned / "checkpoints" / "best").resolve()


def test_the_optimizer_state_is_not_read_by_a_model_that_is_used(run: Path) -> None:
    flip(run / "checkpoints" / "step-00000012" / "training.safetensors")
    assert find_model_folder(run).name == "step-00000012"
    load(run)


def test_a_folder_without_checksums_loads_as_it_is(run: Path) -> None:
    folder = run / "checkpoints" / "step-00000012"
    (folder / "checksums.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"note": "edited"}))
    load(folder)


def half(run: Path) -> Path:
    """Remove the last checkpoint, so that the run goes on from the one before."""
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    shutil.rmtree(newest)
    return run


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("train.seed", 7),
        ("train.batch_size", 8),
        ("model.dropout", 0.0),
        ("objective.max_length", 16),
    ],
)
def test_a_recipe_changed_where_it_must_stay_is_refused(
    path: str, value: object, run: Path
) -> None:
    file = half(run) / "recipe.json"
    recipe = json.loads(file.read_text())
    group, name = path.split(".")
    before, recipe[group][name] = recipe[group][name], value
    file.write_text(json.dumps(recipe))
    message = rf"recipe.json: {path} is {value}, but the run was started with {before}"
    with pytest.raises(UserError, match=message):
        resume(run)


def test_a_lower_rate_may_be_set_before_a_resume(run: Path) -> None:
    file = half(run) / "recipe.json"
    recipe = json.loads(file.read_text())
    recipe["train"]["lr"] = 1e-4
    file.write_text(json.dumps(recipe))
    seen: list[int] = []
    resume(run, callbacks=[OnStep(lambda progress: seen.append(progress.step))])
    assert seen == [9, 10, 11, 12]


def test_a_flipped_bit_in_a_corpus_starts_no_run(home: Home, tmp_path: Path) -> None:
    recipe = home.recipe("gpt2")
    corpus = shutil.copytree(home.corpus, tmp_path / "corpus")
    flip(corpus / "tokens.bin")
    damaged = type(recipe)(**{**vars(recipe), "corpus": str(corpus)})
    with pytest.raises(UserError, match=r"tokens\.bin is corrupt: it differs from its checksum"):
        pretrain(damaged, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_any_changed_label_is_noticed_before_a_resume(
    finetuned: Path, labels: Path, tmp_path: Path
) -> None:
    run = half(shutil.copytree(finetuned, tmp_path / "run", symlinks=True))
    (run / "scores.json").unlink()
    before = labels.read_bytes()
    try:
        labels.write_bytes(before.replace(b"thing 20\tno", b"thing 20\tyes"))
        with pytest.raises(UserError, match=r"train\.tsv changed since the run started"):
            resume(run)
    finally:
        labels.write_bytes(before)
