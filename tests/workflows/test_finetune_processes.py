"""Fine-tuning in several processes: the examples of a step are shared, and nothing else changes."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.instances import AlternatingBatches, TaskBatches
from kinfolk.text import Tokenizer
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.log import alarms, read
from kinfolk.workflows.finetuning.finetune import check_shares, finetune
from kinfolk.workflows.pretrain import resume
from support.processes import Interrupt, Tuning, torchrun, train_together
from support.runs import Home, Kinfolk, command, one_sentence

slow = pytest.mark.slow
WORDS = ("good", "bad", "fine", "old", "red", "new")
# Without dropout, which each process draws for its own examples.
FIELDS = {"device": "cpu", "steps": 8, "batch_size": 7, "eval_every": 4, "dropout": 0.0}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


@pytest.fixture
def kinfolk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kinfolk:
    return command(monkeypatch, capsys)


def sentences(count: int = 33) -> list[dict[str, str]]:
    """Return rows of different lengths."""
    return [
        {"text": " ".join(WORDS[(n * k) % 6] for k in range(1, 2 + n % 5)), "label": WORDS[n % 3]}
        for n in range(count)
    ]


def numbers(first: int, count: int) -> Any:
    """Return a set of instances that are numbers."""
    return [range(first, first + count)]


class Instances:
    """A formulation whose batches are their instances."""

    def make_batch(self, instances: Any) -> Any:
        return list(instances)


def test_shares_are_the_examples_of_the_same_batches() -> None:
    sets: Any = [range(100, 123), range(200, 211)]
    given: dict[str, Any] = {"batch": 7, "seed": 3, "weights": (0.7, 0.3)}
    whole = TaskBatches(Instances(), sets, **given)
    for count in (2, 3, 4):
        shared = TaskBatches(Instances(), sets, **given, shares=count)
        for number in (0, 1, 9):
            shares: list[Any] = [shared[number * count + rank] for rank in range(count)]
            assert [one for share in shares for one in share] == whole[number]
            assert {len(share) for share in shares} <= {7 // count, 7 // count + 1}


def test_shares_of_labelled_and_unlabelled_batches_are_of_one_task() -> None:
    def batches(shares: int) -> AlternatingBatches:
        tasks = [
            TaskBatches(Instances(), numbers(base, 20), batch=4, seed=base, shares=shares)
            for base in (100, 200)
        ]
        text = TaskBatches(Instances(), numbers(900, 50), batch=4, seed=9, shares=shares)
        return AlternatingBatches(tasks, text, weights=(0.5, 0.5), micro_batches=2, shares=shares)

    whole, shared = batches(1), batches(2)
    for number in range(24):
        both: Any = [shared[2 * number + rank] for rank in range(2)]
        assert both[0] + both[1] == whole[number]
        assert len({int(np.floor(value / 100)) for value in both[0] + both[1]}) == 1


def test_fewer_examples_than_processes_are_one_sentence() -> None:
    train = TrainConfig(batch_size=8, gradient_accumulation=4)
    check_shares(train, Processes(0, 2))
    with pytest.raises(UserError, match="micro-batches of 2 examples, fewer than the 3 processes"):
        check_shares(train, Processes(0, 3))


def assert_same_losses(run: Path, other: Path) -> None:
    lines, others = read(run), read(other)
    assert [line["step"] for line in lines] == [line["step"] for line in others]
    for line, same in zip(lines, others, strict=True):
        assert (line["counts"], line["lr"]) == (same["counts"], same["lr"])
        for name in ("loss", "eval_loss", "accuracy"):
            assert line.get(name, 0) == pytest.approx(same.get(name, 0), rel=1e-6)


@slow
@pytest.mark.parametrize(
    "more",
    [{}, {"gradient_accumulation": 2, "batch_size": 14}, {"adversarial_epsilon": 1.0}],
    ids=["", "accumulation", "FGM"],
)
def test_two_processes_fine_tune_as_one_does(
    home: Home, tmp_path: Path, more: dict[str, Any]
) -> None:
    job = Tuning(home.run("bert"), sentences(), {**FIELDS, **more})
    one = finetune(job.model, job.rows, tmp_path / "one", **job.fields)
    assert train_together(2, tmp_path / "two", job) == [0, 0]
    assert_same_losses(tmp_path / "two", one)
    assert {path.name for path in (tmp_path / "two").iterdir()} == {
        path.name for path in one.iterdir()
    }


@slow
def test_a_run_of_four_processes_is_resumed_on_two_and_on_one(home: Home, tmp_path: Path) -> None:
    job = Tuning(home.run("gpt2"), sentences(), {**FIELDS, "gradual_unfreezing": True})
    one = finetune(job.model, job.rows, tmp_path / "one", **job.fields)
    out = tmp_path / "several" / "run"
    code = 128 + signal.SIGTERM
    assert train_together(4, out, job, Interrupt(step=2, rank=3)) == [code] * 4
    assert train_together(2, out, job, Interrupt(step=5, rank=1)) == [code] * 2
    resume(out)
    assert_same_losses(out, one)


@slow
@pytest.mark.parametrize("mode", ["skip", "rollback"])
def test_all_processes_leave_out_the_batch_that_one_found(
    home: Home, tmp_path: Path, mode: str
) -> None:
    rows = [*sentences(), {"text": "river", "label": "good"}]
    token = Tokenizer.load(home.tokenizer).encode(" river")[2]
    job = Tuning(home.run("bert"), rows, {**FIELDS, "on_nan": mode}, bad_token=token)
    assert train_together(1, tmp_path / "one", job) == [0]
    assert train_together(3, tmp_path / "three", job) == [0, 0, 0]
    assert_same_losses(tmp_path / "three", tmp_path / "one")
    found = [
        [(entry["step"], entry["batch"], entry["from_step"]) for entry in alarms(run)]
        for run in (tmp_path / "one", tmp_path / "three")
    ]
    assert found[0] == found[1] != []
    texts = [
        sorted((tmp_path / name / "bad_batches").glob("*.txt"))[0].read_text().split("\n")
        for name in ("one", "three")
    ]
    assert sorted(texts[0]) == sorted(texts[1])


@slow
def test_torchrun_fine_tunes_with_seeds_and_prints_once(home: Home, tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    lines = [f"{row['text']}\t{row['label']}" for row in sentences()]
    rows.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    base = ("finetune", home.run("bert"), "--train", rows, "--steps", 4, "--device", "cpu")
    said = torchrun(2, *base, "--batch", 8, "--seeds", 2, "-o", tmp_path / "run")
    assert said.code == 0, said
    assert said.out.count("best model: ") == 1
    assert said.err.count("  step 4/4  ") == 2  # of each seed
    assert (tmp_path / "run" / "scores.json").is_file()
    assert len(read(tmp_path / "run" / "seed-1")) == 4


def test_suites_and_stages_in_several_processes_are_one_sentence(
    home: Home, kinfolk: Kinfolk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "suite" / "sst2"
    rows.mkdir(parents=True)
    (rows / "train.tsv").write_text("text\tlabel\n" + "good\tyes\nbad\tno\n" * 8)
    model = home.run("bert")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    out = ("-o", tmp_path / "run", "--device", "cpu")
    suite = kinfolk("finetune", model, "--suite", "glue", tmp_path / "suite", *out)
    assert "a suite runs in one process: start it without torchrun" in one_sentence(suite)
    stages = kinfolk(
        "finetune", model, "--train", rows / "train.tsv", "--stages", "target,task", *out
    )
    assert "stages run in one process: start them without torchrun" in stages.err
    assert stages.code == 2 and not (tmp_path / "run").exists()
