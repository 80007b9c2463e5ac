"""The proof of an exact resume: runs that are killed for it, and differences that are found."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kinfolk import families, verify_resume
from kinfolk.errors import UserError
from kinfolk.training.run_differences import differences, digests
from kinfolk.training.step import TrainStep
from kinfolk.workflows import verify_resume as workflow
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.verify_resume import kill_step
from support.crash import server
from support.runs import Home, tree

WAYS = [
    (family.name, objective)
    for family in families.families().values()
    for objective in family.objectives
]
PRETRAINED = sorted({name for name, _ in WAYS} - {"ngram"})  # by gradients
ROWS = [
    {"text": f"the {noun} was {adjective}", "label": label}
    for label, adjective in (("good", "lovely"), ("bad", "awful"))
    for noun in ("film", "story", "music", "end", "cast", "sound")
]


def train_both(folder: Path, killed_at: int) -> None:
    """Do what the process of the command does, with its output in a file."""
    output = os.open(folder / "events.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(os.pipe()[0], 0)  # never closed, as the input from a command that runs
    workflow.main(str(folder), str(killed_at))


def train_forgetful(folder: Path, killed_at: int) -> None:
    """Do the same with a resume that does not restore the optimizer."""
    TrainStep.load_state_dict = lambda self, state: True  # type: ignore[method-assign]
    train_both(folder, killed_at)


def train_in_server(
    folder: Path,
    killed_at: int,
    steps: int,
    on_message: Callable[[str], None],
    target: Callable[[Path, int], None] = train_both,
) -> list[dict[str, object]]:
    """Train both runs from a process that has imported torch already, which is faster."""
    process = server.Process(target=target, args=(folder, killed_at))
    process.start()
    process.join()
    assert process.exitcode == 0
    events = [json.loads(line) for line in (folder / "events.txt").read_text().splitlines()]
    for event in events:
        on_message(workflow.message(event, steps))
    return events


@pytest.mark.parametrize("member", ["gpt2", "bert"])
def test_a_killed_run_of_a_folder_is_proved_and_the_folder_stays(
    member: str, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "train_in_processes", train_in_server)
    before = tree(runs[member])
    said: list[str] = []
    proof = verify_resume(runs[member], steps=5, on_message=said.append)
    assert proof.equal and not proof.differences
    assert (proof.steps, proof.save_every, proof.killed_at, proof.resumed_from) == (5, 2, 3, 2)
    assert [part.name for part in proof.parts] == ["weights", "training state", "log"]
    assert all(part.whole == part.resumed and len(part.whole) == 64 for part in proof.parts)
    assert "was killed (SIGKILL) after step 3" in said[0]
    assert len({line.split()[1] for line in said}) == 3  # processes
    assert tree(runs[member]) == before


def test_a_resume_without_the_optimizer_is_found(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = partial(train_in_server, target=train_forgetful)
    monkeypatch.setattr(workflow, "train_in_processes", wrong)
    proof = verify_resume(runs["gpt2"], steps=5)
    assert not proof.equal
    assert all(part.whole != part.resumed for part in proof.parts)
    weights, state, log = proof.differences
    assert weights.startswith("model.safetensors: transformer.h.0.")
    assert state.startswith("training.safetensors: optimizer/state/0/exp_avg differs in ")
    assert log.startswith("log.jsonl, step 4: loss is ")  # the second after the checkpoint


@pytest.mark.slow
@pytest.mark.parametrize(("name", "objective"), WAYS, ids=["-".join(way) for way in WAYS])
def test_every_family_resumes_to_the_bit_with_each_objective(name: str, objective: str) -> None:
    steps = None if name == "ngram" else 4
    # With two threads: some sums of several threads have no fixed order.
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        proof = verify_resume(f"{name}/nano", objective=objective, steps=steps)
    finally:
        torch.set_num_threads(before)
    assert proof.differences == []
    assert proof.objective == objective


@pytest.mark.slow
def test_a_run_of_finetuning_resumes_to_the_bit(tmp_path: Path) -> None:
    run = finetune("bert/nano", ROWS, tmp_path / "run", epochs=1, device="cpu")
    before = tree(run)
    proof = verify_resume(run, steps=5)
    assert proof.equal and proof.killed_at == 3
    assert tree(run) == before


@pytest.mark.slow
def test_learned_weights_of_label_sets_resume_to_the_bit(tmp_path: Path) -> None:
    words = tmp_path / "en-xx.txt"
    words.write_text("river fluss\ncat fluss\n", encoding="utf-8")
    rows = [
        {"article": f"The {noun} ran. A river rose {number} times.", "summary": f"A {noun} rose."}
        for noun in ("cat", "dog", "bird", "king", "queen")
        for number in range(8)
    ]
    options = {"label_weights": "learned", "dictionary": (str(words),)}
    run = finetune(
        *("bert/nano", rows, tmp_path / "run"),
        task="extract",
        options=options,
        device="cpu",
        steps=5,
    )
    before = load_file(run / "checkpoints" / "last" / "model.safetensors")
    assert before["label_weights.set_bias"].any()
    proof = verify_resume(run, steps=5)
    assert proof.equal and proof.killed_at == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "learned_by"),
    [("cvt", "labelled rows and unlabelled text"), ("bilstm", "labelled rows")],
)
def test_a_family_without_an_objective_is_fine_tuned_and_resumes_to_the_bit(
    name: str, learned_by: str
) -> None:
    proof = verify_resume(f"{name}/nano", steps=4, device="cpu")
    assert proof.differences == []
    assert proof.objective == learned_by


# What it finds


@pytest.fixture
def other(runs: dict[str, Path], tmp_path: Path) -> Path:
    """Return a copy of a run, in which a test changes something."""
    return Path(shutil.copytree(runs["gpt2"], tmp_path / "other", symlinks=True))


def change(file: Path, name: str | None = None) -> str:
    """Change the last bit of one value of a tensor."""
    tensors = load_file(file)
    name = name or next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    flat = tensors[name].flatten().clone()
    flat.view(torch.int32)[3] ^= 1
    save_file({**tensors, name: flat.view(tensors[name].shape)}, file)
    return name


def test_equal_runs_have_no_differences(runs: dict[str, Path], other: Path) -> None:
    assert differences(runs["gpt2"], other) == {}
    assert digests(runs["gpt2"]) == digests(other)


@pytest.mark.parametrize(
    ("file", "part"),
    [("model.safetensors", "weights"), ("training.safetensors", "training state")],
)
def test_one_bit_of_a_tensor_is_found_by_its_name(
    file: str, part: str, runs: dict[str, Path], other: Path
) -> None:
    name = change(other / "checkpoints" / "last" / file)
    found = differences(runs["gpt2"], other)
    assert list(found) == [part]
    assert found[part].startswith(f"{file}: {name} differs in 1 of ")
    unequal = [p for p, digest in digests(other).items() if digest != digests(runs["gpt2"])[p]]
    assert unequal == [part]


def test_a_difference_in_the_log_is_found_by_its_step(runs: dict[str, Path], other: Path) -> None:
    log = other / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    lines[6] = lines[6].replace('"lr": 0.', '"lr": 1.')
    log.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    found = differences(runs["gpt2"], other)
    assert list(found) == ["log"]
    assert found["log"].startswith("log.jsonl, step 7: lr is 0.00")
    lines[6] = lines[6].replace('"lr": 1.', '"lr": 0.')
    log.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    assert differences(runs["gpt2"], other)["log"] == "log.jsonl: step 12 is in one run only"


def test_a_run_of_another_seed_differs_in_everything(home: Home, runs: dict[str, Path]) -> None:
    found = differences(runs["gpt2"], home.run("gpt2", "other-seed", "train.seed=1"))
    assert found.keys() == {"weights", "training state", "log"}
    assert found["weights"].startswith("model.safetensors: transformer.")
    assert found["log"].startswith("log.jsonl, step 1: loss is ")


# Where it kills


@pytest.mark.parametrize("interval", [1, 10])
def test_the_run_is_killed_between_two_checkpoints_at_a_step_that_is_logged(interval: int) -> None:
    for steps in range(max(4, interval + 1), 200):
        save_every, killed_at = kill_step(steps, interval)
        assert save_every < killed_at < steps
        assert killed_at % save_every and not killed_at % interval


def test_counts_of_few_orders_are_killed_before_their_checkpoint() -> None:
    assert kill_step(2, 1, counting=True) == (2, 1)
    with pytest.raises(UserError, match="--steps must be at least 4"):
        kill_step(3, 1)


# What it refuses


def test_what_cannot_be_verified_is_one_sentence(
    runs: dict[str, Path], home: Home, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="leave --corpus and --objective out"):
        verify_resume(runs["gpt2"], corpus=home.corpus)
    with pytest.raises(UserError, match="is not a run"):
        verify_resume(runs["gpt2"] / "checkpoints" / "last")
    with pytest.raises(UserError, match="cvt/nano has no pretraining objective and is fine-tuned"):
        verify_resume("cvt/nano", corpus=home.corpus)
    with pytest.raises(UserError, match="does not apply to ngram/nano"):
        verify_resume("ngram/nano", corpus=home.corpus, steps=9)


# What it cannot promise


def test_operations_without_a_deterministic_algorithm_are_named_once() -> None:
    warning = "UserWarning: cumsum_cuda_kernel does not have a deterministic implementation, but"
    log = f"step.py:9: {warning}\nstep.py:9: {warning}\nother lines\n"
    assert workflow.unsure(log) == ["cumsum_cuda_kernel"]
    assert "deterministic algorithms where torch has them" in workflow.CUDA_NOTE


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", PRETRAINED)
def test_runs_on_cuda_resume_to_the_bit_with_deterministic_algorithms(name: str) -> None:
    proof = workflow.verify_resume(f"{name}/nano", device="cuda")
    assert proof.equal, proof.differences
    assert any("deterministic algorithms" in note for note in proof.notes)
