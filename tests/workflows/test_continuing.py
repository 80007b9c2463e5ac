"""A run goes on from weights that are there, ours or from elsewhere."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk import hub
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.tasks.dataset import task_dataset
from kinfolk.text import Tokenizer
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import read
from kinfolk.workflows.evaluate import evaluate, open_evaluation
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import parse_initial_weights
from kinfolk.workflows.generate import task_prefix
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from kinfolk.workflows.recipe import Recipe
from kinfolk.workflows.recipe import recipe as make_recipe
from support.runs import MEMBERS, Home

FEW = ["train.steps=3", "train.batch_size=4", "train.device=cpu", "train.save_every=2"]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_run_begins_with_the_weights_of_another(
    member: str, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    recipe = make_recipe(runs[member], home.corpus, settings=FEW)
    assert recipe.init_from.endswith("step-00000012")
    assert recipe.objective == home.recipe(member).objective, "it goes on as it learned before"
    before: Any = hub.load_model(recipe.init_from)
    after = PretrainWorkload(recipe).model.state_dict()
    for name, weight in before.state_dict().items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=0)
    fresh = pretrain(home.recipe(member), tmp_path / "fresh")
    went_on = pretrain(recipe, tmp_path / "run")
    assert read(went_on)[0]["loss"] < read(fresh)[0]["loss"] - 0.1


def test_it_resumes_with_and_without_a_checkpoint(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    recipe = make_recipe(runs["gpt2"], home.corpus, settings=FEW)
    whole = pretrain(recipe, tmp_path / "whole")
    begun = tmp_path / "begun"  # killed before its first step was saved
    begun.mkdir()
    recipe.write(begun / "recipe.json")
    resume(begun)
    stopped = tmp_path / "stopped"  # killed after its second
    shutil.copytree(whole, stopped, symlinks=True)
    shutil.rmtree(stopped / "checkpoints" / "step-00000003")
    resume(stopped)
    models: list[Any] = [
        hub.load_model(run / "checkpoints" / "step-00000003") for run in (whole, begun, stopped)
    ]
    for name, weight in models[0].state_dict().items():
        for other in models[1:]:
            torch.testing.assert_close(other.state_dict()[name], weight, rtol=0, atol=0)


def test_it_resumes_without_the_folder_that_it_began_from(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(runs["gpt2"], source, symlinks=True)
    whole = pretrain(make_recipe(source, home.corpus, settings=FEW), tmp_path / "whole")
    stopped = tmp_path / "stopped"
    shutil.copytree(whole, stopped, symlinks=True)
    shutil.rmtree(stopped / "checkpoints" / "step-00000003")
    shutil.rmtree(source)
    resume(stopped)
    files = [run / "checkpoints" / "last" / "model.safetensors" for run in (whole, stopped)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_it_goes_on_as_it_learned_before(home: Home, tmp_path: Path) -> None:
    odd = home.recipe("bert", "objective.mask_rate=0.4", "train.steps=3")
    run = pretrain(odd, tmp_path / "odd")
    assert make_recipe(run, home.corpus).objective == odd.objective
    assert make_recipe(run, home.corpus, length=16).objective == dataclasses.replace(
        odd.objective, max_length=16
    )
    other = make_recipe(run, home.corpus, objective="mlm").objective
    assert (type(other).__name__, other.mask_rate) == ("MLM", 0.15)


def test_a_model_that_was_taught_to_write_goes_on(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    """It has no head that is in the way; its folder tells of rows, not of a corpus."""
    rows = "text\tlabel\n" + "the cat saw\tyes\na dog found\tno\n" * 8
    (tmp_path / "rows.tsv").write_text(rows, encoding="utf-8")
    finetune(
        parse_initial_weights(str(runs["gpt2"])),
        [task_dataset(tmp_path / "rows.tsv", tmp_path / "rows.tsv")],
        tmp_path / "tuned",
        formulation="text",
        epochs=1,
        settings=["train.device=cpu"],
    )
    recipe = make_recipe(tmp_path / "tuned", home.corpus, settings=FEW)
    assert recipe.name.startswith("gpt2/") and recipe.objective.max_length == 32
    pretrain(recipe, tmp_path / "run")
    scores = evaluate(tmp_path / "tuned", file=home.text)
    assert scores.loss > 0, "it can be scored on text, too"
    assert open_evaluation(tmp_path / "tuned", None, home.text).auxiliary_metrics() == {}
    with pytest.raises(UserError, match="was not trained on sentence pairs"):
        task_prefix(tmp_path / "tuned", None)


@pytest.mark.filterwarnings("ignore:.*start from random values")  # of its pooler, which is true
def test_a_folder_that_transformers_wrote_goes_on(home: Home, tmp_path: Path) -> None:
    """Its vocabulary is larger than the tokenizer's, as is common, and it was not made here."""
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer.load(home.tokenizer)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=512,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = transformers.BertForMaskedLM(config)
    model.save_pretrained(tmp_path / "bert-theirs")
    tokenizer.save(tmp_path / "bert-theirs", template="bert", length=64)
    prepare(
        [home.text], tokenizer=Tokenizer.load(tmp_path / "bert-theirs"), out=tmp_path / "corpus"
    )
    recipe = make_recipe(
        tmp_path / "bert-theirs", tmp_path / "corpus", objective="mlm", settings=FEW
    )
    assert (recipe.name, recipe.model.vocab_size, recipe.objective.max_length) == (
        "bert/bert-theirs",
        512,
        64,
    )
    run = pretrain(recipe, tmp_path / "run")
    again = transformers.AutoModelForMaskedLM.from_pretrained(run / "checkpoints" / "last")
    table = "bert.embeddings.word_embeddings.weight"
    moved = (again.state_dict()[table] - model.state_dict()[table]).abs().max()
    assert 0 < moved < 0.05
    shutil.copytree(run / "checkpoints" / "last", tmp_path / "bert-base")
    steps = make_recipe(tmp_path / "bert-base", tmp_path / "corpus").train.steps
    assert steps == TrainConfig().steps, "a folder's name is no size with a paper's million steps"


def test_going_on_twice_from_a_folder_named_like_a_size_keeps_the_schedule(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    hub.save(tmp_path / "gpt2-xl", *hub.load(runs["gpt2"] / "checkpoints" / "last"))
    first = make_recipe(tmp_path / "gpt2-xl", home.corpus, length=32)
    short = dataclasses.replace(first, train=dataclasses.replace(first.train, steps=2, warmup=1))
    once = pretrain(short, tmp_path / "once")
    assert make_recipe(once, home.corpus).train == first.train
    assert first.train.steps == TrainConfig().steps


def test_a_name_is_a_member_and_a_path_a_folder(
    home: Home, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").symlink_to(runs["gpt2"])
    monkeypatch.chdir(tmp_path)
    assert make_recipe("gpt2/nano", home.corpus, length=32).init_from == ""
    assert make_recipe("./gpt2", home.corpus).init_from
    with pytest.raises(UserError, match="gpt4 is neither a folder nor a family"):
        make_recipe("gpt4", home.corpus)
    with pytest.raises(UserError, match="runs/gone is neither a folder nor a family"):
        make_recipe("runs/gone", home.corpus)


def test_text_in_other_tokens_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    other = Home.make(tmp_path / "other", seed=3, vocab=400)
    with pytest.raises(UserError, match=r"another tokenizer.*with the tokenizer of"):
        make_recipe(runs["gpt2"], other.corpus)


def test_other_sizes_are_refused(home: Home, runs: dict[str, Path], tmp_path: Path) -> None:
    recipe = make_recipe(runs["gpt2"], home.corpus, settings=[*FEW, "model.num_layers=3"])
    with pytest.raises(UserError, match="do not fit the network"):
        pretrain(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_was_fine_tuned_has_no_words_left(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    rows = "text\tlabel\n" + "the cat saw\tyes\na dog found\tno\n" * 8
    (tmp_path / "rows.tsv").write_text(rows, encoding="utf-8")
    file = task_dataset(tmp_path / "rows.tsv", tmp_path / "rows.tsv")
    finetune(
        parse_initial_weights(str(runs["bert"])),
        [file],
        tmp_path / "tuned",
        epochs=1,
        settings=["train.device=cpu"],
    )
    with pytest.raises(UserError, match="is fine-tuned and has no LM head"):
        make_recipe(tmp_path / "tuned", home.corpus)


def test_recipes_of_before_can_be_read(home: Home, tmp_path: Path) -> None:
    recipe = home.recipe("gpt2")
    recipe.write(tmp_path / "recipe.json")
    text = (tmp_path / "recipe.json").read_text(encoding="utf-8")
    old = "\n".join(line for line in text.splitlines() if '"init_from"' not in line)
    (tmp_path / "recipe.json").write_text(old.replace("},\n}", "}\n}"), encoding="utf-8")
    assert Recipe.read(tmp_path / "recipe.json") == dataclasses.replace(recipe, init_from="")
