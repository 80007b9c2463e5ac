"""What a run left behind opens in every way it may be named."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BertForPreTraining, T5ForConditionalGeneration

import kinfolk
from kinfolk.errors import UserError
from kinfolk.workflows.evaluate import scoring_objective, training_objective
from kinfolk.workflows.folders import find_model_folder, load_tokenizer
from kinfolk.workflows.load import require_ability, save
from support.runs import MEMBERS

IDS = [120, 200, 363, 380, 401, 150, 419]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_run_a_checkpoint_a_link_and_a_folder_open_as_one(
    member: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = runs[member]
    save(*kinfolk.load(run), tmp_path / "model")
    paths = [
        run,
        run / "checkpoints" / "step-00000012",
        run / "checkpoints" / "last",
        tmp_path / "model",
        str(run),
    ]
    scores = [kinfolk.logits(kinfolk.load(path)[0], IDS) for path in paths]
    assert all(torch.equal(score, scores[0]) for score in scores)
    first = kinfolk.load(run / "checkpoints" / "step-00000004")[0]
    assert not torch.equal(kinfolk.logits(first, IDS), scores[0])


@pytest.mark.parametrize("member", MEMBERS)
def test_logits_are_a_row_a_token_and_leave_the_model_as_it_was(
    member: str, runs: dict[str, Path]
) -> None:
    model, tokenizer = kinfolk.load(runs[member])
    assert not model.training
    model.train()  # dropout is on in these runs: it must be off for the scores
    scores = kinfolk.logits(model, IDS)
    assert model.training
    assert scores.shape == (len(IDS), tokenizer.vocab_size)
    assert not scores.requires_grad
    assert torch.equal(scores, kinfolk.logits(model.eval(), IDS))
    assert not model.training


@pytest.mark.parity
@pytest.mark.parametrize("member", MEMBERS)
def test_logits_are_those_of_transformers(member: str, runs: dict[str, Path]) -> None:
    folder = runs[member] / "checkpoints" / "last"
    model, _ = kinfolk.load(folder)
    ids = torch.tensor([IDS])
    with torch.no_grad():
        if member == "gpt2":
            theirs = AutoModelForCausalLM.from_pretrained(folder)(input_ids=ids).logits
        elif member == "bert":
            theirs = BertForPreTraining.from_pretrained(folder)(input_ids=ids).prediction_logits
        else:
            peer = T5ForConditionalGeneration.from_pretrained(folder)
            theirs = peer(input_ids=ids, labels=ids).logits
            source = torch.tensor([[5, 130, 4]])
            other = peer(input_ids=source, labels=ids).logits[0]
            torch.testing.assert_close(
                kinfolk.logits(model, IDS, [5, 130, 4]), other, rtol=0, atol=1e-5
            )
    torch.testing.assert_close(kinfolk.logits(model, IDS), theirs[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("ids", [[], [420], [-1], [120] * 33])
def test_ids_no_model_can_read_are_refused(ids: list[int], runs: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="sequence"):
        kinfolk.logits(kinfolk.load(runs["gpt2"])[0], ids)


def test_a_source_is_for_those_who_read_one(runs: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="source applies to encoder-decoder models"):
        kinfolk.logits(kinfolk.load(runs["gpt2"])[0], IDS, [1, 2])


def test_a_tokenizer_is_found_wherever_one_lies(runs: dict[str, Path]) -> None:
    home = runs["gpt2"].parents[1]
    folders = [home / "tokenizer", home / "corpus", runs["gpt2"], runs["bert"] / "checkpoints/last"]
    assert len({load_tokenizer(folder).fingerprint for folder in folders}) == 1
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        load_tokenizer(home / "nowhere")


def test_what_a_model_cannot_do_names_those_who_can(runs: dict[str, Path]) -> None:
    model, _ = kinfolk.load(runs["bert"])
    assert require_ability(model, "fill") is model
    with pytest.raises(
        UserError,
        match=r"bert models do not support generate \(families that do: ngram, .*, glm\)",
    ):
        require_ability(model, "generate")


def test_a_run_that_has_saved_nothing_says_how_to_go_on(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copy(runs["gpt2"] / "recipe.json", tmp_path / "recipe.json")
    with pytest.raises(UserError, match="no checkpoint yet"):
        kinfolk.load(tmp_path)


@pytest.mark.parametrize("length", [0, -1, 1, 7, 33])
@pytest.mark.parametrize("member", ["gpt2", "bert"])
def test_a_length_no_model_can_see_at_a_time_is_refused(
    member: str, length: int, runs: dict[str, Path]
) -> None:
    model, tokenizer = kinfolk.load(runs[member])
    objective = training_objective(model, tokenizer, find_model_folder(runs[member]))
    with pytest.raises(UserError, match=f"^length {length} is"):
        scoring_objective(model, objective, length)


def test_copying_leaves_out_what_only_a_resume_needs(runs: dict[str, Path], tmp_path: Path) -> None:
    save(*kinfolk.load(runs["gpt2"]), tmp_path / "deep" / "model")
    names = {file.name for file in (tmp_path / "deep" / "model").iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["model"]
