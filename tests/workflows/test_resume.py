"""A run that was killed, torn or interrupted ends as if nothing had happened, to the bit."""

import dataclasses
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.training import step as steps
from kinfolk.training.checkpoint import CorruptCheckpointWarning
from kinfolk.training.loop import Progress
from kinfolk.training.run import Run
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import CorpusShare, Recipe
from support.killed_runs import at, death, inside
from support.runs import MEMBERS, Home, OnStep, tree

WEIGHTS = ("model.safetensors", "training.safetensors", "training.json")


def same(run: Path, other: Path, only: tuple[str, ...] | None = None) -> None:
    """Compare the last checkpoint, the log and the list of checkpoints, byte by byte."""
    last, expected = (tree(folder / "checkpoints" / "last", only) for folder in (run, other))
    assert {"model.safetensors", "training.safetensors"} <= expected.keys()
    assert last.keys() == expected.keys()
    assert [name for name in last if last[name] != expected[name]] == []
    assert (run / "log.jsonl").read_bytes() == (other / "log.jsonl").read_bytes()
    assert len((run / "log.jsonl").read_bytes().splitlines()) == 12
    names = [sorted(f.name for f in (r / "checkpoints").iterdir()) for r in (run, other)]
    assert names[0] == names[1]
    for link in ("last", "best"):
        assert (run / "checkpoints" / link).readlink() == (other / "checkpoints" / link).readlink()


def test_two_runs_of_one_recipe_are_one(home: Home, runs: dict[str, Path], tmp_path: Path) -> None:
    same(pretrain(home.recipe("gpt2"), tmp_path / "run"), runs["gpt2"])
    # And a comparison that could not fail would prove nothing.
    other = pretrain(home.recipe("gpt2", "train.seed=1"), tmp_path / "other")
    with pytest.raises(AssertionError):
        same(other, runs["gpt2"], WEIGHTS)


CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    *((member, at, (step,)) for member in MEMBERS for step in (2, 5)),
    ("gpt2", at, (4,)),
    ("gpt2", at, (12,)),
    ("bert", inside, ("save_training_state", 8)),
    ("t5", inside, ("_commit", 12)),
    *(
        ("gpt2", inside, (part, 8))
        for part in ("save_training_state", "write_checksums", "replace_link", "_rotate")
    ),
    ("gpt2", inside, ("save_training_state", 4)),
    ("gpt2", inside, ("replace_link", 12)),  # the last: no later save sets the links
]


# Each family, and each moment within a checkpoint, is in one of the others.
LONG = (("gpt2", at, (2,)), ("bert", at, (2,)), ("gpt2", at, (4,)), ("t5", at, (5,)))
LONG += (("bert", inside, ("save_training_state", 8)), ("gpt2", inside, ("replace_link", 8)))


@pytest.mark.parametrize(
    ("member", "plan", "arguments"),
    [pytest.param(*case, marks=pytest.mark.slow if case in LONG else ()) for case in CASES],
    ids=[f"{m}-{p.__name__}-{'-'.join(map(str, a))}" for m, p, a in CASES],
)
def test_a_killed_run_ends_like_one_left_alone(
    member: str,
    plan: Callable[..., Any],
    arguments: tuple[Any, ...],
    home: Home,
    runs: dict[str, Path],
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    death(home.recipe(member), run, plan, *arguments)
    resume(run)
    same(run, runs[member])


def test_a_run_killed_again_and_again_still_arrives(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for step in (1, 4, 7, 11):
        death(home.recipe("gpt2"), run, at, step)
    resume(run)
    same(run, runs["gpt2"])


def test_the_best_of_days_before_is_remembered(home: Home, tmp_path: Path) -> None:
    # A rate this high makes the loss rise again before the end.
    wild = (
        "train.lr=3",
        "train.warmup=6",
        "train.grad_clip=0",
        "train.save_every=2",
        "train.keep_checkpoints=1",
    )
    whole = home.run("gpt2", "wild", *wild)
    assert (whole / "checkpoints" / "best").readlink() < Path("step-00000008")
    run = tmp_path / "run"
    death(home.recipe("gpt2", *wild), run, at, 9)
    resume(run)
    same(run, whole)
    # Killed when the best checkpoint was complete, and before the links named it.
    best = (whole / "checkpoints" / "best").readlink()
    run = tmp_path / "again"
    death(home.recipe("gpt2", *wild), run, inside, "replace_link", int(best.name.split("-")[1]))
    resume(run)
    same(run, whole)
    assert (run / "checkpoints" / "best").readlink() == best


@pytest.mark.parametrize("member", ["gpt2", "bert"])
def test_the_number_of_workers_changes_nothing(
    member: str, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    death(home.recipe(member, "train.workers=2"), run, at, 6)
    resume(run)
    same(run, runs[member], WEIGHTS)


def test_workers_may_change_from_one_day_to_the_next(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    death(home.recipe("t5"), run, at, 6)
    recipe = Recipe.read(run / "recipe.json")
    train = dataclasses.replace(recipe.train, workers=2)
    dataclasses.replace(recipe, train=train).write(run / "recipe.json")
    resume(run)
    same(run, runs["t5"], WEIGHTS)


# Of ELMo states are carried.
@pytest.mark.parametrize(
    "member", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("t5", "elmo"))]
)
def test_steps_in_parts_resume_exactly(member: str, home: Home, tmp_path: Path) -> None:
    whole = home.run(member, f"{member}-parts", "train.gradient_accumulation=2")
    run = tmp_path / "run"
    death(home.recipe(member, "train.gradient_accumulation=2"), run, at, 7)
    resume(run)
    same(run, whole)


@pytest.fixture(scope="session")
def dead(home: Home) -> Path:
    """Return a run killed at step 10, with checkpoints of steps 4 and 8."""
    run = home.folder / "runs" / "dead"
    death(home.recipe("gpt2"), run, at, 10)
    return run


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", cut),
        ("model.safetensors", flip),
        ("training.safetensors", flip),
        ("training.json", Path.unlink),
        ("config.json", cut),
        ("checksums.json", Path.unlink),
        ("checksums.json", cut),
    ],
)
def test_a_torn_checkpoint_is_named_and_the_one_before_it_used(
    name: str, damage: Callable[[Path], None], dead: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(dead, tmp_path / "run", symlinks=True)
    damage(run / "checkpoints" / "step-00000008" / name)
    seen: list[int] = []
    with pytest.warns(CorruptCheckpointWarning, match="step-00000008 is corrupt"):
        resume(run, callbacks=[OnStep(lambda progress: seen.append(progress.step))])
    assert seen[0] == 5  # from step 4 on
    same(run, runs["gpt2"])


def test_a_run_without_a_whole_checkpoint_starts_again(
    dead: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(dead, tmp_path / "run", symlinks=True)
    for step in (4, 8):
        flip(run / "checkpoints" / f"step-{step:08d}" / "model.safetensors")
    with pytest.warns(CorruptCheckpointWarning) as said:
        resume(run)
    assert len(said) == 2
    same(run, runs["gpt2"])


def test_an_interrupt_saves_what_was_learned(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    def watch(progress: Progress) -> None:
        if progress.step == 6:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        pretrain(home.recipe("gpt2"), run, callbacks=[OnStep(watch)])
    assert (run / "checkpoints" / "last").readlink() == Path("step-00000006")
    seen: list[int] = []
    resume(run, callbacks=[OnStep(lambda progress: seen.append(progress.step))])
    assert seen[0] == 7
    # It has one checkpoint more: `keep` let an older one go.
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    shutil.copytree(
        runs["gpt2"] / "checkpoints" / "step-00000004", run / "checkpoints" / "step-00000004"
    )
    same(run, runs["gpt2"])


@pytest.mark.parametrize(
    ("owner", "name", "call", "saved"),
    [(steps, "StepOutput", 6, 6), (Run, "evaluate", 1, 3)],
    ids=["between update and count", "while scoring"],
)
def test_an_interrupt_at_a_bad_moment_waits(
    owner: Any,
    name: str,
    call: int,
    saved: int,
    home: Home,
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, calls = getattr(owner, name), 0

    def pressed(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    run = tmp_path / "run"
    monkeypatch.setattr(owner, name, pressed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(home.recipe("gpt2"), run)
    monkeypatch.undo()
    assert (run / "checkpoints" / "last").readlink() == Path(f"step-{saved:08d}")
    resume(run)
    assert (run / "log.jsonl").read_bytes() == (runs["gpt2"] / "log.jsonl").read_bytes()
    last, expected = (tree(r / "checkpoints" / "last") for r in (run, runs["gpt2"]))
    assert last == expected


def test_a_finished_run_is_not_run_again(runs: dict[str, Path]) -> None:
    before = tree(runs["gpt2"])
    with pytest.raises(UserError, match="is complete"):
        resume(runs["gpt2"])
    assert tree(runs["gpt2"]) == before


def test_a_corpus_in_other_ids_is_not_taken_for_the_first(
    home: Home, dead: Path, tmp_path: Path
) -> None:
    # As many ids and the same special ones, learned from another text.
    other = Home.make(tmp_path / "other", seed=1)
    run = shutil.copytree(dead, tmp_path / "run", symlinks=True)
    recipe = dataclasses.replace(Recipe.read(run / "recipe.json"), corpus=str(other.corpus))
    recipe.write(run / "recipe.json")
    before = tree(run)
    with pytest.raises(UserError, match="tokenized with another tokenizer"):
        resume(run)
    assert tree(run) == before


def mixture(home: Home, second: Path, member: str, *settings: str) -> Recipe:
    """Put a run on two corpora together."""
    corpora = (CorpusShare(str(home.corpus), 0.7), CorpusShare(str(second), 0.3))
    return dataclasses.replace(home.recipe(member, *settings), corpus=corpora)


@pytest.mark.parametrize(("member", "workers", "deaths"), [("gpt2", 0, (3, 9)), ("bert", 2, (6,))])
def test_a_killed_run_on_a_mixture_ends_like_one_left_alone(
    member: str,
    workers: int,
    deaths: tuple[int, ...],
    home: Home,
    second: Path,
    runs: dict[str, Path],
    tmp_path: Path,
) -> None:
    whole = pretrain(mixture(home, second, member), tmp_path / "whole")
    run = tmp_path / "run"
    recipe = mixture(home, second, member, f"train.workers={workers}")
    for step in deaths:
        death(recipe, run, at, step)
    resume(run)
    same(run, whole, WEIGHTS)
    # And it is another run than that on the first corpus alone.
    with pytest.raises(AssertionError):
        same(run, runs[member], WEIGHTS)


@pytest.mark.parametrize("mixed", [False, True])
def test_other_text_in_the_same_ids_is_not_taken_for_the_first(
    mixed: bool, home: Home, second: Path, tmp_path: Path
) -> None:
    run, text = tmp_path / "run", tmp_path / "text"
    shutil.copytree(home.corpus, text)
    recipe = dataclasses.replace(home.recipe("gpt2"), corpus=str(text))
    if mixed:
        corpora = (CorpusShare(str(second), 0.5), CorpusShare(str(text), 0.5))
        recipe = dataclasses.replace(recipe, corpus=corpora)
    death(recipe, run, at, 6)
    shutil.rmtree(text)
    shutil.copytree(second / "holdout", text)
    before = tree(run)
    with pytest.raises(UserError, match=f"{text} changed since the run started"):
        resume(run)
    assert tree(run) == before
    # The same text in another place is the same text.
    shutil.rmtree(text)
    shutil.copytree(home.corpus, text)
    resume(run)


def test_a_corpus_that_a_recipe_no_longer_names_is_missed(
    home: Home, second: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    death(mixture(home, second, "gpt2"), run, at, 6)
    recipe = Recipe.read(run / "recipe.json")
    dataclasses.replace(recipe, corpus=str(home.corpus)).write(run / "recipe.json")
    with pytest.raises(UserError, match=f"{home.corpus} changed since the run started"):
        resume(run)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"type": 3}', '{"type": "kinfolk.x:Y"}'])
def test_a_recipe_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(content, encoding="utf-8")
    with warnings.catch_warnings(), pytest.raises(UserError):
        resume(tmp_path)
