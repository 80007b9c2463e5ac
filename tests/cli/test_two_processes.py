"""Two real processes that train in one folder: one run comes of it, and it is whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kinfolk.files import checksum_fault
from support.runs import Home, Kinfolk, Said, one_sentence, tree

pytestmark = pytest.mark.slow

# Imports take seconds: both processes say when they are done with them, and start together.
WAITING = """
import sys
import kinfolk.workflows.finetuning.finetune, kinfolk.workflows.pretrain, torch._dynamo
from kinfolk.cli import main
print("ready", flush=True)
sys.stdin.readline()
main()
"""
REFUSALS = (
    "exists by now: another run was started in it; choose another folder",
    "already exists: choose another",
    "is in use: another process trains in it",
)
COMMANDS = {
    "pretrain": "pretrain gpt2/nano --corpus {corpus} --length 32 --batch 4 --steps 12 -o {out} "
    "train.save_every=4 --device cpu --seed",
    "finetune": "finetune {bert} --train {rows} --dev {rows} --steps 6 -o {out} --device cpu "
    "--seed",
}


def started_together(*commands: list[str]) -> list[Said]:
    """Run commands in processes that begin at the same time."""
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING, *command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for command in commands
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120) for process in processes]
    return [
        Said(process.returncode, out, err)
        for process, (out, err) in zip(processes, outputs, strict=True)
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_one_of_two_commands_trains_in_the_folder_and_the_other_is_refused(
    name: str, kinfolk: Kinfolk, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good thing\tyes\na bad thing\tno\n" * 8)
    here = tmp_path / "here"
    here.mkdir()

    def words(out: Path, seed: int) -> list[str]:
        names = {"corpus": home.corpus, "bert": runs["bert"], "rows": rows, "out": out}
        return [word.format(**names) for word in (*COMMANDS[name].split(), str(seed))]

    said = started_together(*(words(here / "run", seed) for seed in (0, 1)))
    assert sorted(one.code for one in said) == [0, 2], said
    winner = next(seed for seed, one in enumerate(said) if one.code == 0)
    sentence = one_sentence(said[1 - winner])
    assert any(refusal in sentence for refusal in REFUSALS), sentence
    assert str(here / "run") in sentence
    assert [path.name for path in here.iterdir()] == ["run"]

    run = here / "run"
    recipe = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["train"]["seed"] == winner
    checkpoints = [path for path in (run / "checkpoints").iterdir() if not path.is_symlink()]
    assert checkpoints and all(checksum_fault(path) is None for path in checkpoints)
    assert kinfolk(*words(tmp_path / "alone", winner)).code == 0
    assert (run / "log.jsonl").read_bytes() == (tmp_path / "alone" / "log.jsonl").read_bytes()
    assert tree(run).keys() >= {"report.html", "log.jsonl", "recipe.json"}
    weights = "checkpoints/last/model.safetensors"
    assert (run / weights).read_bytes() == (tmp_path / "alone" / weights).read_bytes()
