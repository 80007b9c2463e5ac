"""A disk that is really full, and one that may not be written: a sentence, and nothing is lost.

The disks are file systems in memory, which only root may mount; the tests are skipped for others.
`test_full_disk` has the same errors without a disk.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.cli import main
from kinfolk.files import checksum_fault
from kinfolk.training import checkpoint
from kinfolk.training.run_differences import differences
from support.runs import Home, Said, tree

FEW = "--length 32 --batch 4 --steps 6 --device cpu train.save_every=2 train.warmup=0"
COMMANDS = {
    "pretrain": f"pretrain gpt2/nano --corpus {{corpus}} {FEW} -o {{out}}",
    "finetune": "finetune {bert} --train {rows} --dev {rows} --steps 6 --device cpu -o {out} "
    "train.eval_every=2",
    "prepare": "prepare {text} --tokenizer {tokenizer} -o {out} --holdout 0.2",
    "export": "export {gpt2} -o {out}",
    "tokenizer": "tokenizer train {text} --vocab-size 420 -o {out}",
}
KIB = 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root and the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def words(name: str, out: Path, home: Home, runs: dict[str, Path]) -> list[str]:
    rows = home.folder / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good thing\tyes\na bad thing\tno\n" * 8)
    places = {"corpus": home.corpus, "text": home.text, "tokenizer": home.tokenizer, "rows": rows}
    return [word.format(**places, **runs, out=out) for word in COMMANDS[name].split()]


def run_in_child(arguments: list[str], printed: Path) -> Said:
    """Run a command in another process: one that writes to a mapped file is killed by SIGBUS."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with printed.open("w", encoding="utf-8") as file:
                sys.stdout = sys.stderr = file
                sys.argv = ["kinfolk", *arguments]
                try:
                    main()
                    code = 0
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Said(code, "", printed.read_text(encoding="utf-8"))


def fill(disk: Path, left: int) -> Path:
    """Fill a disk but for some bytes; return the file that does."""
    filler = disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - left))
    return filler


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("pretrain", 8 * KIB),
        pytest.param("pretrain", 64 * KIB, marks=pytest.mark.slow),
        pytest.param("pretrain", 1200 * KIB, marks=pytest.mark.slow),
        pytest.param("pretrain", 2600 * KIB, marks=pytest.mark.slow),
        pytest.param("finetune", 64 * KIB, marks=pytest.mark.slow),
        pytest.param("finetune", 8 * KIB, marks=pytest.mark.slow),
        pytest.param("finetune", 3000 * KIB, marks=pytest.mark.slow),
        ("prepare", 8 * KIB),
        ("prepare", 40 * KIB),
        ("export", 64 * KIB),
        ("tokenizer", 8 * KIB),
    ],
)
def test_with_room_again_a_command_ends_as_it_would_have(
    name: str, left: int, disk: Path, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    out, printed = disk / "out", tmp_path / "printed"
    filler = fill(disk, left)
    said = run_in_child(words(name, out, home, runs), printed)
    assert said.code == 2, said
    assert said.sentence.startswith("error: "), said
    full = ("the disk is full", "No space left", "kB left: free some space", "free: free some")
    assert any(text in said.sentence for text in full), said
    assert "Traceback" not in said.err
    trains = name in ("pretrain", "finetune")
    if not trains:
        assert not out.exists()
    for folder in (out / "checkpoints").glob("step-*"):
        assert checksum_fault(folder) is None
    filler.unlink()
    again = words(name, out, home, runs)
    if trains and (out / "recipe.json").is_file():
        again = [name, "--resume", str(out)]
    said = run_in_child(again, printed)
    assert said.code == 0, said
    whole = tmp_path / "whole"
    assert run_in_child(words(name, whole, home, runs), printed).code == 0
    if trains:
        assert differences(out, whole) == {}
    else:
        assert tree(out) == tree(whole)
        assert [path.name for path in disk.iterdir()] == ["out"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_may_not_be_written_is_one_sentence(
    name: str, disk: Path, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    said = run_in_child(words(name, disk / "out", home, runs), tmp_path / "printed")
    assert said.code == 2, said
    assert said.sentence.startswith("error: ") and "Read-only file system" in said.sentence, said
    assert "Traceback" not in said.err


@pytest.mark.slow
def test_a_run_whose_disk_becomes_read_only_keeps_its_checkpoints(
    disk: Path, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    out = disk / "run"
    shutil.copytree(runs["gpt2"], out, symlinks=True)
    shutil.rmtree(out / "checkpoints" / "step-00000012")
    (out / "checkpoints" / "last").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    said = run_in_child(["pretrain", "--resume", str(out)], tmp_path / "printed")
    assert said.code == 2 and "Read-only file system" in said.sentence, said
    assert "Traceback" not in said.err
    newest = checkpoint.latest_valid(out)
    assert newest is not None and newest.name == "step-00000008"
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert run_in_child(["pretrain", "--resume", str(out)], tmp_path / "printed").code == 0
    assert differences(out, runs["gpt2"]) == {}
