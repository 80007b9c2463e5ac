"""Every mistake of a user is one sentence, exit code 2, and nothing half-written."""

import errno
import gzip
import lzma
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kinfolk.training import checkpoint
from support.runs import Home, Kinfolk, Said, tree

FEW = "--length 32 --steps 12 --batch 4 --device cpu train.save_every=4"

# The words of a command, with {names} of folders; then what its sentence must say.
MISTAKES = [
    # Text.
    ("tokenizer train {tmp}/none -o {new}", "{tmp}/none does not exist"),
    ("tokenizer train {bad}/empty.txt -o {new}", "{bad}/empty.txt is empty"),
    ("tokenizer train {bad}/latin.txt -o {new}", "{bad}/latin.txt is not UTF-8 at byte 13"),
    ("tokenizer train {bad}/blank.txt -o {new}", "{bad}/blank.txt is empty"),
    ("tokenizer train {bad}/nul.txt -o {new}", "{bad}/nul.txt holds a NUL byte on line 2"),
    ("tokenizer train {bad}/cut.txt.gz -o {new}", "{bad}/cut.txt.gz is corrupt or truncated"),
    ("tokenizer train {bad}/cut.txt.xz -o {new}", "{bad}/cut.txt.xz is corrupt or truncated"),
    ("tokenizer train {bad}/cut.txt.zst -o {new}", "{bad}/cut.txt.zst is corrupt or truncated"),
    ("tokenizer train {bad}/*.none -o {new}", "{bad}/*.none matches no file"),
    ("tokenizer train {bad}/rows.jsonl -o {new}", "line 2 of {bad}/rows.jsonl is not JSON"),
    (
        "tokenizer train {bad}/rows.jsonl --field body -o {new}",
        "line 1 of {bad}/rows.jsonl has no 'body': choose one of id, text",
    ),
    (
        "tokenizer train {bad}/rows.jsonl --field id -o {new}",
        "'id' in line 1 of {bad}/rows.jsonl is a number, not text",
    ),
    (
        "tokenizer train {bad}/half.jsonl -o {new}",
        "line 1 of {bad}/half.jsonl contains a lone",
    ),
    ("tokenizer train {bad}/table.tsv -o {new}", "{bad}/table.tsv has 2 columns (id, text)"),
    (
        "tokenizer train {bad}/table.tsv --column body -o {new}",
        "first row of {bad}/table.tsv has no 'body': choose one of id, text",
    ),
    (
        "tokenizer train {bad}/table.tsv --column text -o {new}",
        "line 3 of {bad}/table.tsv has no column 2, it is too short",
    ),
    ("tokenizer train {bad}/open.csv --column 1 -o {new}", "line 2 of {bad}/open.csv is not CSV"),
    ("tokenizer train {text} --column 1 -o {new}", "--column 1: only .tsv, .csv"),
    ("tokenizer train {text} --vocab 100000 -o {new}", "the text yields only"),
    ("tokenizer train {text} --vocab 10 -o {new}", "vocab_size 10 is too small"),
    ("tokenizer train {text} --kind bep -o {new}", "unknown tokenizer kind 'bep'"),
    ("tokenizer train {text} -o {tok}", "{tok} already exists"),
    ("tokenizer train {text} -o {text}", "{text} already exists"),
    ("tokenizer train {corpus} -o {new}", "{corpus} holds no text"),
    ("prepare {tmp}/none --tokenizer {tok} -o {new}", "{tmp}/none does not exist"),
    ("prepare {bad}/empty.txt --tokenizer {tok} -o {new}", "{bad}/empty.txt is empty"),
    ("prepare {bad}/latin.txt --tokenizer {tok} -o {new}", "not UTF-8 at byte 13"),
    ("prepare {bad}/nul.txt --tokenizer {tok} -o {new}", "holds a NUL byte on line 2"),
    ("prepare {bad}/cut.txt.gz --tokenizer {tok} -o {new}", "is corrupt or truncated"),
    ("prepare {bad}/rows.jsonl --tokenizer {tok} -o {new}", "line 2 of {bad}/rows.jsonl is not JS"),
    ("prepare {bad}/*.none --tokenizer {tok} -o {new}", "{bad}/*.none matches no file"),
    ("prepare {text} --tokenizer {tmp}/none -o {new}", "holds no tokenizer.json"),
    ("prepare {text} --tokenizer {tmp} -o {new}", "neither a run"),
    ("prepare {text} --tokenizer {tok} -o {corpus}", "already a corpus"),
    ("prepare {text} --tokenizer {tok} -o {text}", "already exists"),
    ("prepare {text} --tokenizer {tok} -o {new} --holdout 2", "holdout 2: it must be a fraction"),
    ("prepare {text} --tokenizer {tok} -o {new} --workers 0", "workers 0: it must be at least 1"),
    ("prepare {text} --tokenizer {tok} -o {new} --per page", "--document must be block or file"),
    # Runs.
    (
        "pretrain gtp2 --corpus {corpus} -o {new}",
        "gtp2 is neither a folder nor a family: did you mean gpt2",
    ),
    ("pretrain gpt2/tyni --corpus {corpus} -o {new}", "gpt2 has no size 'tyni': did you mean tiny"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.stpes=5", "did you mean steps?"),
    ("pretrain gpt2 --corpus {corpus} -o {new} trian.steps=5", "did you mean train?"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.steps=five", "a whole number"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.lr=high", "train.lr=high: it must be a"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.compile=maybe", "auto, yes or no"),
    ("pretrain gpt2 --corpus {corpus} -o {new} fast", "'fast' is not a setting"),
    (
        "pretrain gpt2 --corpus {corpus} -o {new} --objective mlm",
        "has no objective 'mlm' (supported: clm",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 9999",
        "fewer than one sequence of 9999",
    ),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 0",
        "--length must be at least 8 (got 0)",
    ),
    ("pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --steps 0", "at least 1"),
    ("pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 model.num_heads=3", "not divide"),
    (
        "pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --device gpu",
        "unknown device 'gpu'",
    ),
    ("pretrain gpt2/nano --corpus {corpus} -o {new} --length 32 --device meta", "'meta'"),
    ("pretrain gpt2/nano --corpus {tmp} -o {new}", "{tmp} is not a corpus"),
    ("pretrain gpt2/nano --corpus {text} -o {new}", "{text} is not a corpus"),
    ("pretrain gpt2/nano --corpus {corpus} -o {home}", "{home} already exists"),
    ("pretrain gpt2/nano --corpus {corpus}", "missing -o RUN"),
    ("pretrain gpt2/nano -o {new}", "missing --corpus DIR"),
    ("pretrain --corpus {corpus} -o {new}", "missing MODEL"),
    ("pretrain gpt2 --corpus {corpus} -o {new} --learning-rate 1", "did you mean --lr?"),
    ("pretrain gpt2 --corpus {corpus} -o {new} --lr 0", "--lr=0: it must be above 0"),
    ("pretrain gpt2 --corpus {corpus} -o {new} train.learning_rate=1", "did you mean lr?"),
    ("pretrain --recipe {tmp}/none.json -o {new}", "no such file: {tmp}/none.json"),
    ("pretrain --recipe {gpt2}/recipe.json -o {new} gpt2", "'gpt2' is not a setting"),
    ("pretrain --recipe {gpt2}/recipe.json -o {new} --length 9", "--recipe excludes"),
    ("finetune --resume {gpt2}", "kinfolk pretrain --resume"),
    ("pretrain --resume {gpt2}", "is complete (12 steps)"),
    ("pretrain --resume {tmp}", "{tmp} is not a run"),
    ("pretrain --resume {tmp}/none", "{tmp}/none is not a run"),
    ("pretrain --resume {text}", "{text}"),
    ("pretrain --resume {gpt2} --steps 50", "cannot be combined with other options"),
    ("pretrain --resume {gpt2} gpt2", "cannot be combined with other options"),
    ("pretrain --resume {gpt2} --seed 0", "cannot be combined with other options"),
    # Scores.
    ("evaluate {gpt2}", "give either --corpus or --text"),
    ("evaluate {gpt2} --corpus {corpus} --text {text}", "give either --corpus or --text"),
    ("evaluate {gpt2} --text {tmp}/none", "no such file: {tmp}/none"),
    ("evaluate {gpt2} --text {corpus}", "{corpus} holds no text"),
    ("evaluate {gpt2} --text {bad}/empty.txt", "{bad}/empty.txt is empty"),
    ("evaluate {gpt2} --text {bad}/latin.txt", "not UTF-8 at byte 13"),
    ("evaluate {gpt2} --corpus {tmp}", "{tmp} is not a corpus"),
    ("evaluate {gpt2} --corpus {other}/corpus", "was tokenized with another tokenizer"),
    ("evaluate {gpt2} --text {text} --length 33", "more than the model's context of 32"),
    ("evaluate {bert} --text {text} --length 1", "length 1 is too short"),
    ("evaluate {t5} --text {text} --length -1", "length -1 is too short"),
    ("evaluate {gpt2} --text {text} --device gpu", "unknown device 'gpu'"),
    ("evaluate {tmp} --text {text}", "{tmp} is neither a run"),
    ("evaluate {tmp}/none --text {text}", "no such folder: {tmp}/none"),
    # Writing.
    ("generate {tmp}/none The", "no such folder: {tmp}/none"),
    (
        "generate {bert} The",
        "bert models do not support generate (families that do: transformer, gpt, gpt2, ",
    ),
    ("generate {gpt2} The --top-p 0", "--top-p=0: it must be above 0 and at most 1"),
    ("generate {gpt2} The --top-k 0", "--top-k=0: it must be at least 1"),
    ("generate {gpt2} The --temperature -1", "--temperature=-1: it must be at least 0"),
    ("generate {gpt2} The --max-tokens -5", "--max-new-tokens=-5: it must be at least 1"),
    ("generate {gpt2} The --num 0", "--num-samples=0: it must be at least 1"),
    ("generate {gpt2} The --seed -1", "--seed=-1: it must be"),
    ("generate {gpt2} The --device gpu", "unknown device 'gpu'"),
    ("generate {gpt2} " + "The" * 99, "a context of 32 has room for 31: shorten it"),
    ("fill {bert} word", r"the text contains no \[MASK\]: put it where"),
    ("fill {t5} word", "the text contains no"),
    ("fill {gpt2} [MASK]", "gpt2 models do not support fill (families that do: transformer, bert"),
    ("fill {bert} [MASK] --top 0", "candidates=0: it must be at least 1"),
    # Folders.
    ("export {gpt2} -o {home}", "{home} already exists"),
    ("export {tmp}/none -o {new}", "no such folder: {tmp}/none"),
    ("export {tmp} -o {new}", "{tmp} is neither a run"),
    ("import {tmp} -o {new}", "{tmp} is neither a run"),
    ("import {bad}/foreign -o {new}", "model_type='mamba' is not supported"),
    ("quickstart -o {home}", "{home} already exists"),
]


@pytest.fixture(scope="session")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write files that nobody can learn from."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "blank.txt").write_bytes(b" \n\n \n")
    (folder / "latin.txt").write_bytes(b"first line\nca\xe9\n")
    (folder / "nul.txt").write_bytes(b"first line\na\0b\n")
    whole = b"some text\n\n" * 1000
    (folder / "cut.txt.gz").write_bytes(gzip.compress(whole)[:-6])
    (folder / "cut.txt.xz").write_bytes(lzma.compress(whole)[:-6])
    (folder / "cut.txt.zst").write_bytes(zstandard.compress(whole)[:-6])
    (folder / "rows.jsonl").write_text('{"id": 1, "text": "one"}\n{"id": 2, "text"\n')
    (folder / "half.jsonl").write_text('{"text": "\\ud800"}\n')
    (folder / "table.tsv").write_text("id\ttext\n1\tone\n2\n")
    (folder / "open.csv").write_text('text\n"one\ntwo\n')
    (folder / "foreign").mkdir()
    (folder / "foreign" / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("other"), seed=1)


def one_sentence(said: Said) -> str:
    """Check how a mistake is told, and return its sentence."""
    assert said.code == 2, said
    assert said.out == ""
    lines = said.err.splitlines()
    if lines[-1].startswith("Try: kinfolk "):  # a wrong use of options
        assert lines[-1].endswith(" --help")
        lines.pop()
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in said.err
    return lines[-1].removeprefix("error: ")


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_sentence(
    words: str,
    expected: str,
    kinfolk: Kinfolk,
    home: Home,
    runs: dict[str, Path],
    bad: Path,
    other: Home,
    tmp_path: Path,
) -> None:
    folders: dict[str, Any] = {
        **runs,
        "bad": bad,
        "corpus": home.corpus,
        "home": home.folder,
        "new": tmp_path / "deep" / "new",
        "other": other.folder,
        "text": home.text,
        "tmp": tmp_path,
        "tok": home.tokenizer,
    }
    before = tree(home.folder)
    said = kinfolk(*(word.format(**folders) for word in words.split()))
    sentence = one_sentence(said)
    assert said.err.count("error: ") == 1 and said.err.count("\n") == 1 + ("Try: " in said.err)
    choices = [choice.replace("\\", "").format(**folders) for choice in expected.split("|")]
    assert any(choice in sentence for choice in choices), sentence
    assert list(tmp_path.iterdir()) == []
    assert tree(home.folder) == before


def test_a_path_in_brackets_is_printed_as_it_is(kinfolk: Kinfolk, tmp_path: Path) -> None:
    name = tmp_path / "[bold]notes[/bold] [/]"
    sentence = one_sentence(kinfolk("evaluate", name, "--text", name))
    assert str(name) in sentence


def test_a_value_of_the_wrong_kind_is_told_by_the_option(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    said = kinfolk(
        "pretrain", "gpt2", "--corpus", home.corpus, "-o", tmp_path / "r", "--steps", "x"
    )
    assert said.code == 2
    assert "--steps" in said.err and "Traceback" not in said.err
    assert not (tmp_path / "r").exists()


def full(limited: Callable[..., None]) -> Callable[..., None]:
    """Let a writer meet the end of the disk: no file may grow past a few bytes."""

    def write(*arguments: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            limited(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return write


def refusing(original: Callable[..., None]) -> Callable[..., None]:
    """Let a writer fail as it does on a full disk."""

    def write(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return write


@pytest.mark.parametrize("broken", [full, refusing])
def test_a_full_disk_leaves_the_checkpoint_before_it_whole(
    broken: Callable[..., Any],
    kinfolk: Kinfolk,
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, original = tmp_path / "run", checkpoint.save_training_state
    asked = ("pretrain", "gpt2/nano", "--corpus", home.corpus, *FEW.split())

    def write(folder: Path, state: dict[str, Any]) -> None:
        (broken(original) if state["step"] == 8 else original)(folder, state)

    monkeypatch.setattr(checkpoint, "save_training_state", write)
    sentence = one_sentence(kinfolk(*asked, "-o", run))
    assert "the disk is full while saving step 8" in sentence
    assert "the checkpoint of step 4 is intact" in sentence
    names = {f.name for f in (run / "checkpoints").iterdir()}
    assert names == {"step-00000004", "last", "best"}
    assert checkpoint.verify(run / "checkpoints" / "last") is None
    # With room again, the run arrives where it would have.
    monkeypatch.setattr(checkpoint, "save_training_state", original)
    assert kinfolk("pretrain", "--resume", run).code == 0
    kinfolk(*asked, "-o", tmp_path / "whole")
    last = [tree(r / "checkpoints" / "last") for r in (run, tmp_path / "whole")]
    assert last[0] == last[1]


def test_a_torn_checkpoint_is_a_warning(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(runs["gpt2"], tmp_path / "run", symlinks=True)
    (run / "checkpoints" / "step-00000012" / "model.safetensors").write_bytes(b"torn")
    said = kinfolk("pretrain", "--resume", run)
    assert said.code == 0
    assert said.err.startswith("warning: checkpoint ")
    assert "step-00000012 is corrupt" in said.err.splitlines()[0]
    last = [tree(r / "checkpoints" / "last") for r in (run, runs["gpt2"])]
    assert last[0] == last[1]


def test_a_corpus_replaced_before_a_resume_is_refused(
    kinfolk: Kinfolk, home: Home, other: Home, tmp_path: Path
) -> None:
    corpus, run = shutil.copytree(home.corpus, tmp_path / "corpus"), tmp_path / "run"
    asked = ("pretrain", "gpt2/nano", "--corpus", corpus, *FEW.split(), "-o", run)
    assert kinfolk(*asked).code == 0
    shutil.rmtree(run / "checkpoints" / "step-00000012")  # as if stopped after step 8
    shutil.rmtree(corpus)
    shutil.copytree(other.corpus, corpus)
    before = tree(run)
    assert "tokenized with another tokenizer" in one_sentence(kinfolk("pretrain", "--resume", run))
    assert tree(run) == before
