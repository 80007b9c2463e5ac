"""Names on the Hugging Face hub in place of folders, and `kinfolk push`; the hub is a fake."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers

import kinfolk as package
from kinfolk.errors import UserError
from kinfolk.workflows.folders import HUB_FILES, load_tokenizer
from support.runs import Home, Kinfolk


class RepositoryNotFoundError(OSError):
    """The hub's answer where it has no model of a name."""


@pytest.fixture
def downloads(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """Put a hub in place that has one model, me/small-bert; return its downloads."""
    folder, asked = tmp_path / "cache", []
    package.save(*package.load(runs["bert"]), folder)

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        if name not in ("me/small-bert", "small-bert"):
            raise RepositoryNotFoundError if name == "nobody/nothing" else OSError("no network")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return asked


def test_every_use_takes_a_name(
    downloads: list[dict[str, Any]], runs: dict[str, Path], home: Home, kinfolk: Kinfolk
) -> None:
    model, tokenizer = package.load("me/small-bert")
    ours = package.load(runs["bert"])[0]
    assert torch.equal(package.logits(model, [120, 200]), package.logits(ours, [120, 200]))
    assert load_tokenizer("small-bert").fingerprint == tokenizer.fingerprint
    said = kinfolk("pretrain", "me/small-bert", "--corpus", home.corpus, "-o", "run", "--steps", 1)
    assert said.code == 0, said.err
    assert Path("run/checkpoints/last").exists()
    rows = [{"text": text, "label": label} for text, label in (("a", "x"), ("b", "y"))] * 8
    package.finetune("me/small-bert", rows, out="tuned", epochs=1)
    assert Path("tuned/scores.json").exists()
    assert all(download["allow_patterns"] == list(HUB_FILES) for download in downloads)
    assert not any(name.endswith((".bin", ".py")) for name in HUB_FILES)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("pretrain nobody/nothing --corpus {corpus} -o new", "neither a folder nor a family"),
        ("finetune nobody/nothing --train rows.tsv -o new", "neither a folder nor a family"),
        ("fill nobody/nothing text", "no such folder: nobody/nothing"),
    ],
)
def test_a_name_that_the_hub_lacks(
    arguments: str,
    sentence: str,
    downloads: list[dict[str, Any]],
    home: Home,
    kinfolk: Kinfolk,
) -> None:
    Path("rows.tsv").write_text("text\tlabel\na\tx\nb\ty\n" * 8)
    said = kinfolk(*arguments.format(corpus=home.corpus).split())
    assert said.code == 2
    assert sentence in said.err
    assert "the Hugging Face hub has no model of this name" in said.err


def test_without_a_network_a_name_gets_advice(
    downloads: list[dict[str, Any]], kinfolk: Kinfolk
) -> None:
    said = kinfolk("fill", "some-bert", "text")
    assert said.code == 2 and "cannot be reached: run hf download some-bert" in said.err
    said = kinfolk("fill", "runs/some-bert", "text")
    assert said.err == "error: no such folder: runs/some-bert\n"


@pytest.mark.parametrize(("name", "advised"), [("gtp2", False), ("gpt2-medium", True)])
def test_a_misspelled_family_is_suggested_without_advice_about_the_hub(
    name: str, advised: bool, home: Home, downloads: list[dict[str, Any]], kinfolk: Kinfolk
) -> None:
    commands = (
        ("inspect", "words", name, "-o", "page.html"),
        ("pretrain", name, "--corpus", home.corpus, "-o", "new"),
        ("finetune", name, "--train", home.text, "-o", "new"),
    )
    for command in commands:
        said = kinfolk(*command)
        sentence = f"error: {name} is neither a folder nor a family: did you mean gpt2?"
        assert said.code == 2 and said.err.startswith(sentence)
        assert ("hf download gpt2-medium" in said.err) == advised
        assert advised or said.err == f"{sentence}\n"


def test_paths_and_families_are_not_looked_up(
    downloads: list[dict[str, Any]], home: Home, kinfolk: Kinfolk
) -> None:
    Path("runs").mkdir()
    for model in ("runs/brt", "/brt/tiny"):
        assert kinfolk("evaluate", model, "--text", home.text).code == 2
    assert kinfolk("pretrain", "bert/tinyy", "--corpus", home.corpus, "-o", "new").code == 2
    assert not downloads


def test_only_safetensors_are_taken(downloads: list[dict[str, Any]]) -> None:
    package.load("small-bert")
    Path("cache/model.safetensors").rename("cache/pytorch_model.bin")
    with pytest.raises(UserError, match=r"small-bert has no safetensors on the hub.*hf download"):
        package.load("small-bert")


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a hub in place that keeps copies of what is uploaded; return the calls."""
    calls: list[Any] = []

    class FakeApi:
        def create_repo(self, name: str, **options: Any) -> str:
            calls.append(("create", name, options))
            if name.startswith("nobody/"):
                raise OSError("401 Unauthorized\nmore")
            return f"https://huggingface.co/{name}"

        def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any:
            calls.append(("upload", repo_id, commit_message))
            shutil.copytree(folder_path, tmp_path / "uploaded")
            return SimpleNamespace()

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    return calls


def test_push_uploads_a_folder_with_a_card(
    uploads: list[Any], runs: dict[str, Path], kinfolk: Kinfolk, tmp_path: Path
) -> None:
    said = kinfolk("push", runs["bert"], "me/small-bert", "--private")
    assert said.out == "uploaded to https://huggingface.co/me/small-bert\n"
    assert uploads[0] == ("create", "me/small-bert", {"private": True, "exist_ok": True})
    assert uploads[1][:2] == ("upload", "me/small-bert")
    transformers.BertForPreTraining.from_pretrained(tmp_path / "uploaded")
    names = {file.name for file in (tmp_path / "uploaded").iterdir()}
    assert names == {
        *("README.md", "config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    card = (tmp_path / "uploaded" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\ntags:\n- kinfolk\n- bert\n---\n")
    for line in (
        "# small-bert",
        'model, tokenizer = kinfolk.load("me/small-bert")',
        "| model | bert/",
        "| steps | 12 |",
        "| objective | ",
        "| corpus | ",
        "| held-out loss (nats) | ",
    ):
        assert f"\n{line}" in card


def test_the_card_of_a_fine_tuned_model_has_its_scores(
    uploads: list[Any], runs: dict[str, Path], kinfolk: Kinfolk, tmp_path: Path
) -> None:
    rows = [{"text": text, "label": label} for text, label in (("a", "x"), ("b", "y"))] * 8
    package.finetune(runs["bert"], rows, out=tmp_path / "tuned", epochs=1)
    assert kinfolk("push", tmp_path / "tuned", "me/labels").code == 0
    card = (tmp_path / "uploaded" / "README.md").read_text()
    for line in ("| labelled file | ", "| task | classify |", "| accuracy | "):
        assert f"\n{line}" in card


def test_a_folder_without_a_run_says_so(
    uploads: list[Any], runs: dict[str, Path], kinfolk: Kinfolk, tmp_path: Path
) -> None:
    package.save(*package.load(runs["gpt2"]), tmp_path / "model")
    assert kinfolk("push", tmp_path / "model", "me/gpt").code == 0
    card = (tmp_path / "uploaded" / "README.md").read_text()
    assert "are not recorded in the folder" in card and "## Scores" not in card


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("small-bert", "write OWNER/NAME"),
        ("me/../bert", "write OWNER/NAME"),
        ("nobody/bert", "could not be uploaded (401 Unauthorized): log in with hf auth login"),
    ],
)
def test_push_refuses(
    name: str, sentence: str, uploads: list[Any], runs: dict[str, Path], kinfolk: Kinfolk
) -> None:
    said = kinfolk("push", runs["gpt2"], name)
    assert (said.code, sentence in said.err) == (2, True)
