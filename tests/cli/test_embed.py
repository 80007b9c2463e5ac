"""The command writes one vector per text, saves transforms, and applies them again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table
from safetensors.torch import load_file

from kinfolk import UserError, VectorTransforms, embed
from support.runs import Home, Kinfolk, one_sentence


@pytest.fixture
def texts(tmp_path: Path, home: Home) -> Path:
    """Write more texts than the vectors have dimensions."""
    words = [word for word in home.text.read_text(encoding="utf-8").split() if word.isalpha()]
    lines = [" ".join(words[n : n + 4]) for n in range(0, 400, 4)]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_both_formats_have_the_same_vectors(
    kinfolk: Kinfolk, runs: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    for name in ("v.npz", "v.parquet"):
        said = kinfolk("embed", runs["bert"], texts, "-o", tmp_path / name)
        assert said.code == 0, said
        assert "texts" in said.out and "100" in said.out and "64" in said.out
    table = read_table(tmp_path / "v.parquet")
    assert table.column("text").to_pylist() == texts.read_text(encoding="utf-8").splitlines()
    vectors = np.load(tmp_path / "v.npz", allow_pickle=False)["vectors"]
    assert vectors.shape == (100, 64)
    assert np.array_equal(np.array(table.column("vector").to_pylist(), np.float32), vectors)
    again = kinfolk("embed", runs["bert"], texts, "-o", tmp_path / "v.npz")
    assert "already exists" in one_sentence(again)
    assert kinfolk("embed", runs["bert"], texts, "-o", tmp_path / "v.npz", "--force").code == 0


def test_a_folder_that_is_missing_is_made(
    kinfolk: Kinfolk, runs: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    for name in ("v.npz", "v.parquet"):
        out = tmp_path / "new" / Path(name).suffix[1:] / name
        assert kinfolk("embed", runs["bert"], texts, "-o", out).code == 0
        assert out.is_file() and [*out.parent.iterdir()] == [out]


def test_a_saved_transform_is_applied_again(
    kinfolk: Kinfolk, runs: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    first, second, few = (tmp_path / name for name in ("a.npz", "b.npz", "few.txt"))
    bert = shutil.copytree(runs["bert"], tmp_path / "bert")
    said = kinfolk("embed", bert, texts, "-o", first, "--whiten", "--json")
    values = json.loads(said.out)
    saved = bert / "transforms" / "whiten"
    assert values["transforms"] == ["whiten"] and values["transform"] == str(saved)
    assert f"fitted whiten on 100 texts of {texts}" in said.err
    few.write_text("".join(texts.read_text().splitlines(keepends=True)[:5]))
    kinfolk("embed", bert, few, "-o", second, "--transform", saved)
    vectors, again = (np.load(file)["vectors"] for file in (first, second))
    assert np.allclose(np.cov(vectors.T), np.eye(vectors.shape[1]), atol=1e-3)
    assert np.allclose(vectors[:5], again, atol=1e-2)
    refused = kinfolk("embed", bert, texts, "-o", tmp_path / "c.npz", "--whiten")
    sentence = one_sentence(refused)
    assert f"{saved} already exists: replace it with --force, apply it with" in sentence


def test_transforms_of_python_and_of_the_command_give_the_same_vectors(
    kinfolk: Kinfolk, runs: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    by_command, by_python = tmp_path / "by-command", tmp_path / "by-python"
    out, again, few = (tmp_path / name for name in ("v.npz", "again.npz", "few.txt"))
    lines = texts.read_text(encoding="utf-8").splitlines()
    few.write_text("\n".join(lines[:5]) + "\n", encoding="utf-8")
    words = ("--whiten", "--pooling", "max", "--device", "cpu", "--save-transform", by_command)
    assert kinfolk("embed", runs["bert"], texts, "-o", out, *words).code == 0
    options = {"whiten": True, "pooling": "max", "device": "cpu", "save_transform": by_python}
    found = embed(runs["bert"], lines, **options)
    assert np.array_equal(found, np.load(out)["vectors"])
    assert_saved_alike(by_command, by_python)
    apply = ("--device", "cpu", "--transform", by_python)
    assert kinfolk("embed", runs["bert"], few, "-o", again, *apply).code == 0
    applied = embed(runs["bert"], lines[:5], transform=by_command, device="cpu")
    assert np.array_equal(applied, np.load(again)["vectors"])
    loaded = VectorTransforms.load(by_python)
    plain = embed(runs["bert"], lines[:5], pooling="max", device="cpu")
    assert np.array_equal(applied, loaded(plain))
    with pytest.raises(UserError, match="by-python already exists: choose another save_transform"):
        embed(runs["bert"], lines, **options)
    embed(runs["bert"], lines, force=True, **options)
    assert_saved_alike(by_command, by_python)


def assert_saved_alike(first: Path, second: Path) -> None:
    """Compare the settings and the tensors of two saved transforms, the model's among them."""
    settings = [
        json.loads((path / "transform.json").read_text("utf-8")) for path in (first, second)
    ]
    assert settings[0] == settings[1]
    a, b = (load_file(path / "transform.safetensors") for path in (first, second))
    assert a.keys() == b.keys() >= {"model.reference"}
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_force_replaces_a_saved_transform_and_nothing_else(
    kinfolk: Kinfolk, runs: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    out, saved = tmp_path / "v.npz", tmp_path / "saved"
    words = ("embed", runs["bert"], texts, "-o", out, "--standardize", "--save-transform", saved)
    assert kinfolk(*words).code == 0
    before = json.loads((saved / "transform.json").read_text(encoding="utf-8"))
    texts.write_text("a cat\na dog\nthe bird\n", encoding="utf-8")
    assert kinfolk(*words, "--force").code == 0
    after = json.loads((saved / "transform.json").read_text(encoding="utf-8"))
    assert (before["texts"], after["texts"]) == (100, 3)
    (saved / "notes.txt").write_text("mine", encoding="utf-8")
    sentence = one_sentence(kinfolk(*words, "--force"))
    assert f"{saved} already exists: choose another folder with --save-transform" in sentence
    assert (saved / "transform.json").is_file() and (saved / "notes.txt").is_file()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--pooling", "avg"), "unknown --pooling 'avg'"),
        (("--layers", "foo"), "--layers foo must be last, all, or numbers such as 1,-1"),
        (("--layers", ""), "--layers  must be last, all"),
        (("--remove-components", "0"), "should be greater than or equal to 1"),
    ],
)
def test_values_that_no_model_has_are_refused_before_it_is_opened(
    kinfolk: Kinfolk, texts: Path, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    for name in ("config.json", "model.safetensors"):  # a folder that cannot be opened
        (tmp_path / name).write_text("{", encoding="utf-8")
    said = kinfolk("embed", tmp_path, texts, "-o", tmp_path / "v.npz", *words)
    assert said.code == 2 and sentence in said.sentence


def test_the_transform_of_another_model_is_refused(
    kinfolk: Kinfolk, runs: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    """Both models have vectors of 64 numbers and two layers."""
    saved, out = tmp_path / "saved", tmp_path / "other.npz"
    words = ("--standardize", "--save-transform", saved)
    assert kinfolk("embed", runs["bert"], texts, "-o", tmp_path / "v.npz", *words).code == 0
    refused = kinfolk("embed", runs["gpt2"], texts, "-o", out, "--transform", saved)
    assert "fitted on vectors of a bert model, and this is gpt2: use the model" in one_sentence(
        refused
    )
    assert not out.exists()


def test_columns_and_cut_texts(kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path) -> None:
    table = tmp_path / "rows.tsv"
    table.write_text("id\ttext\n1\ta cat\n2\t" + "the dog " * 20 + "\n", encoding="utf-8")
    out = tmp_path / "v.npz"
    said = kinfolk("embed", runs["gpt2"], table, "-o", out, "--column", "text", "--length", 12)
    assert "1 of 2 texts are longer than 12 tokens: their end was cut off" in said.err
    assert np.load(out)["vectors"].shape == (2, 64)
