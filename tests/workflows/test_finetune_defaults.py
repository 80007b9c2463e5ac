"""Defaults of fine-tuning follow the rows, the classes and how much text the weights have seen."""

import dataclasses
import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch

from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.hub import load_model
from kinfolk.nn.attention import Attention
from kinfolk.nn.language_model import Pooling
from kinfolk.nn.task_heads import ModelWithHead, ModelWithHeadConfig, pooling_of
from kinfolk.tasks.dataset import task_dataset
from kinfolk.workflows.finetuning.defaults import (
    RAW_TOKENS,
    default_steps,
    finetune_train_config,
    is_raw,
)
from kinfolk.workflows.finetuning.finetune import FineTuneWorkload, finetune
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.predict import load_predictor
from kinfolk.workflows.recipe import Recipe
from support.learnable import opinions, tune
from support.runs import Home


def folder_of(recipe: Recipe, folder: Path) -> str:
    """Return a folder with nothing but the recipe of its weights."""
    folder.mkdir()
    recipe.write(folder / "kinfolk.json")
    return str(folder)


def model_with_head(name: str) -> ModelWithHeadConfig:
    """Return the config of a small classifier."""
    backbone = family(name).config("nano").with_fields(vocab_size=16)
    pooling = pooling_of(backbone)
    return ModelWithHeadConfig(
        backbone=backbone, head="text", labels=("no", "yes"), pooling=pooling
    )


def test_weights_are_raw_up_to_fifty_million_tokens(home: Home, tmp_path: Path) -> None:
    assert is_raw("")
    assert not is_raw(str(tmp_path))  # a published folder has no recipe of ours
    assert is_raw(str(find_model_folder(home.run("bert"))))
    recipe = home.recipe("bert")  # 4 rows of 32 tokens a step
    for steps, raw in ((RAW_TOKENS // 128 - 1, True), (RAW_TOKENS // 128, False)):
        train = dataclasses.replace(recipe.train, steps=steps)
        trained = dataclasses.replace(recipe, train=train)
        assert is_raw(folder_of(trained, tmp_path / f"{steps}")) == raw


def test_a_short_run_is_raw_only_if_it_started_from_raw_weights(home: Home, tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    for start, raw in ((published, False), (find_model_folder(home.run("bert")), True)):
        recipe = dataclasses.replace(home.recipe("bert"), init_from=str(start))
        assert is_raw(folder_of(recipe, tmp_path / f"from-{start.name}")) == raw


def test_a_checkpoint_counts_the_steps_before_it(home: Home, tmp_path: Path) -> None:
    recipe = home.recipe("bert")
    long = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, steps=10**7))
    assert is_raw(folder_of(long, tmp_path / "step-00000500"))
    assert not is_raw(folder_of(long, tmp_path / "step-00500000"))


@pytest.mark.parametrize(
    ("epoch", "classes", "hidden_size", "raw", "steps"),
    [
        (57, 2, 128, True, 400),  # 1,800 rows: more than the 171 of three epochs
        (57, 67, 128, True, 1340),
        (5, 2, 128, True, 200),  # 160 rows, at most 40 times
        (2000, 2, 128, True, 6000),  # three epochs
        (57, 2, 128, False, 400),
        (40, 2, 768, False, 150),
        (57, 2, 768, True, 400),
    ],
)
def test_few_rows_and_many_classes_are_read_more_often(
    epoch: int, classes: int, hidden_size: int, raw: bool, steps: int
) -> None:
    found = default_steps(epoch, classes=classes, hidden_size=hidden_size, raw=raw)
    assert found == steps


@pytest.mark.parametrize(
    ("name", "raw", "lr"),
    [
        ("bert/tiny", True, 9.4e-4),  # 0.12 / 128
        ("bert/tiny", False, 2.3e-4),
        ("bert/base", False, 3.9e-5),
        ("t5/tiny", True, 2e-2),
        ("t5/tiny", False, 5e-3),
        ("transformer/nano", True, 2e-2),
        ("bilstm/tiny", True, 2e-3),
    ],
)
def test_raw_weights_have_higher_learning_rates(name: str, raw: bool, lr: float) -> None:
    member, _, size = name.partition("/")
    assert finetune_train_config(family(member).config(size), raw=raw).lr == lr


def test_what_is_set_wins_and_the_rest_follows(tmp_path: Path) -> None:
    files = opinions(tmp_path, 16, 8)
    plain = ["train.batch_size=16", "train.device=cpu"]

    def train(name: str, *settings: str, epochs: float | None = None) -> list[float]:
        run = tune("bert/nano", files, tmp_path / name, *plain, *settings, epochs=epochs)
        train = FineTuneRecipe.read(run / "recipe.json").train
        return [train.steps, train.eval_every, train.warmup, train.lr]

    assert train("default") == [40, 5, 4, 1.9e-3]  # 40 epochs of a step, 8 evaluations
    assert train("epochs", epochs=2) == [2, 1, 1, 1.9e-3]
    settings = ("train.steps=6", "train.lr=1e-4", "finetune.evals_per_epoch=1")
    assert train("steps", *settings) == [6, 1, 1, 1e-4]


def test_the_token_of_raw_encoders_starts_as_a_mean(tmp_path: Path) -> None:
    """The order of words matters by their positions alone, whose embeddings are set to 0 here."""
    config = model_with_head("bert")
    model = ModelWithHead.of(config.backbone.build(), config).eval()
    with torch.no_grad():
        model.backbone.get_submodule("position_embeddings").weight.zero_()
    ids = torch.tensor([[1, 5, 6, 7], [1, 6, 6, 7]])
    attention = [m for m in model.modules() if isinstance(m, Attention)]
    before = attention[0].qkv_proj.weight.clone()
    pooler = model.backbone.get_submodule("pooler").weight.clone()
    model.reset_pooling()
    size = len(before) // 3
    assert all((m.qkv_proj.weight[:size] == 0).all() for m in attention)
    assert (attention[0].qkv_proj.weight[size:] == before[size:]).all()
    assert not (model.backbone.get_submodule("pooler").weight == pooler).any()
    hidden = model(Inputs.from_ids(ids, causal=False)).hidden
    swapped = model(Inputs.from_ids(ids[:, [0, 3, 1, 2]], causal=False)).hidden
    assert torch.allclose(hidden[:, 0], swapped[:, 0], atol=1e-5)
    assert not torch.allclose(hidden[0, 0], hidden[1, 0], atol=1e-3)


@pytest.mark.parametrize(("name", "reset"), [("bert", True), ("gpt2", False)])
def test_pooling_is_reset_for_raw_encoders_alone(name: str, reset: bool) -> None:
    config = model_with_head(name)
    model = ModelWithHead.of(config.backbone.build(), config)
    before = {n: p.clone() for n, p in model.named_parameters()}
    model.reset_pooling()
    assert any((before[n] != p).any() for n, p in model.named_parameters()) == reset


def test_a_pretrained_folder_keeps_its_attention(home: Home, tmp_path: Path) -> None:
    """A folder without a recipe of ours counts as published."""
    folder = tmp_path / "published"
    shutil.copytree(find_model_folder(home.run("bert")), folder)
    (folder / "kinfolk.json").unlink()
    (folder / "checksums.json").unlink(missing_ok=True)
    settings = ("train.steps=1", "train.lr=1e-12")
    kept = load_model(folder).state_dict()["layers.0.self_attention.sublayer.qkv_proj.weight"]
    size = len(kept) // 3
    for start, same in ((folder, True), (find_model_folder(home.run("bert")), False)):
        run = tune(str(start), opinions(tmp_path, 16, 8), tmp_path / f"{same}", *settings)
        found = load_model(find_model_folder(run)).state_dict()
        weight = found["backbone.layers.0.self_attention.sublayer.qkv_proj.weight"]
        assert torch.allclose(weight[:size], kept[:size], atol=1e-6) == same
        assert torch.allclose(weight[size:], kept[size:], atol=1e-6)


@pytest.mark.parametrize(("raw_weights", "lr"), [(None, 1.9e-3), (True, 1.9e-3), (False, 4.7e-4)])
def test_the_defaults_of_raw_weights_can_be_chosen(
    home: Home, tmp_path: Path, raw_weights: bool | None, lr: float
) -> None:
    """The choice is in the recipe, so that a run that is resumed from the start makes it again."""
    start = find_model_folder(home.run("bert"))
    kept = load_model(start).state_dict()["layers.0.self_attention.sublayer.qkv_proj.weight"]
    files = opinions(tmp_path, 16, 8)
    run = finetune(
        start, files, tmp_path / "run", settings=["train.steps=1"], raw_weights=raw_weights
    )
    recipe = FineTuneRecipe.read(run / "recipe.json")
    assert recipe.train.lr == lr and recipe.is_raw == (raw_weights is not False)
    shutil.rmtree(run / "checkpoints")
    resumed = FineTuneWorkload.reopen(recipe, run, None, ())
    weight = resumed.model.state_dict()["backbone.layers.0.self_attention.sublayer.qkv_proj.weight"]
    assert torch.equal(weight, kept) == (raw_weights is False)


def test_the_mean_of_all_tokens_is_read_alike_in_every_batch(tmp_path: Path) -> None:
    files = opinions(tmp_path, 48, 16)
    run = tune("bert/nano", files, tmp_path / "run", "train.lr=2e-3", epochs=2, pooling="mean")
    predictor = load_predictor(run, device="cpu")
    assert predictor.model.config.pooling == Pooling(token="mean")
    rows = files.splits[1]
    together = predictor.predict(rows)
    for row, prediction in zip(rows, together, strict=True):
        (alone,) = predictor.predict([row])
        assert alone.probabilities == pytest.approx(prediction.probabilities, abs=1e-5)
    ids = torch.tensor([predictor.tokenizer.encode(rows[0].texts[0])])
    with torch.no_grad():
        mean = predictor.model(Inputs.from_ids(ids, causal=False)).hidden[0].mean(0)
        expected = predictor.model.logits(mean).softmax(-1)
    assert together[0].probabilities == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_the_mean_is_refused_where_no_head_reads_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--pooling mean does not apply to the formulation"):
        tune(f"{name}/nano", opinions(tmp_path, 16, 8), tmp_path / "run", pooling="mean")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5/nano", "transformer/nano"])
def test_text_to_text_beats_the_largest_class_by_default(
    name: str, real: Path, tmp_path: Path
) -> None:
    with gzip.open(real / "ag_news" / "dev.tsv.gz", "rt", encoding="utf-8") as file:
        lines = [next(file) for _ in range(1200)]
    path = tmp_path / "news.tsv"
    path.write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    run = tune(name, task_dataset(path), tmp_path / "run", epochs=None, length=48)
    scores = json.loads((run / "scores.json").read_text("utf-8"))
    assert scores["dev"]["accuracy"] > 0.5
    assert not any(message.startswith("warning") for message in scores["messages"])
