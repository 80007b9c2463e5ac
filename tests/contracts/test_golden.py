"""Fixed-seed losses equal the stored ones: no change of the code changes a number unnoticed.

`golden/runs.json` holds the losses and gradient norms of the first steps and the last held-out
loss of short runs on the CPU, by the words a user types, and `golden/batches.json` hashes of the
batches of every objective. After a change that is meant to move numbers, and only then, write them
anew and say in the commit why they moved:

    python -m pytest -m "" tests/contracts/test_golden.py --update-golden
"""

import hashlib
import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

from kinfolk.batch import tree_map
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.families import read_index
from kinfolk.tasks.task import kinds
from support.contracts import PAIRS, SAMPLE, documents, modules, objective, short
from support.runs import DOES, WHAT, WHO, Home, Kinfolk
from support.task_files import FILES

GOLDEN = Path(__file__).parent / "golden" / "runs.json"
BATCHES = GOLDEN.with_name("batches.json")
TOLERANCE = 1e-3  # relative; CPUs differ by about 1e-6 in these runs
# What the golden file calls a number, and what log.jsonl calls it.
LOGGED = {"losses": "loss", "grad_norms": "grad_norm"}
HELD_OUT = "eval_loss"

# Counts have no seed and no steps of gradients: tests/families/test_ngram.py has their figures.
# Families from outside of the package have none stored.
PRETRAINED = [
    f"{m.name} {way}"
    for m, way in PAIRS
    if m.model.gradient_free is None and m.name in read_index()
]
# Every task kind by a family made for it, and classification by each kind of formulation.
FINETUNED = [
    *("bert classify", "bert regress", "bert choose", "bert tag", "bert span", "bert coref"),
    "bert extract",
    *("t5 write", "gpt2 complete", "gpt2 lm"),
    *("gpt2 classify", "t5 classify", "glm classify", "xlnet classify", "bilstm classify"),
    *("cvt classify", "cvt tag"),
]


def numbers(run: Path) -> dict[str, Any]:
    """Return what the golden file stores of a run folder."""
    text = (run / "log.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    found: dict[str, Any] = {
        name: [float(f"{line[key]:.7g}") for line in lines[:4]] for name, key in LOGGED.items()
    }
    (last,) = [line[HELD_OUT] for line in lines[-1:]]
    return found | {"held_out_loss": float(f"{last:.7g}")}


def compare(case: str, run: Path, update: bool) -> None:
    """Compare a run with the golden file, or write it there."""
    found = numbers(run)
    stored = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {}
    if update:
        stored[case] = found
        lines = [f"  {json.dumps(key)}: {json.dumps(stored[key])}" for key in sorted(stored)]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return
    assert len(found["losses"]) == 4
    for name, values in stored[case].items():
        assert found[name] == pytest.approx(values, rel=TOLERANCE), (case, name)


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def parallel_text(folder: Path) -> list[object]:
    """Write lines and their targets, which are the same words in reverse."""
    rng, options = random.Random(0), []
    for part, count in (("", 120), ("dev-", 16)):
        lines = [" ".join(rng.choice(words) for words in (WHO, DOES, WHAT)) for _ in range(count)]
        source, target = folder / f"{part}source.txt", folder / f"{part}target.txt"
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        reverse = [" ".join(reversed(line.split())) for line in lines]
        target.write_text("\n".join(reverse) + "\n", encoding="utf-8")
        options += [f"--{part}source", source, f"--{part}target", target]
    return [*options, "--vocab", 380]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if tuple(case.split()) in SAMPLE else pytest.mark.slow)
        for case in PRETRAINED
    ],
)
def test_pretraining_gives_the_stored_losses(
    case: str, home: Home, kinfolk: Kinfolk, tmp_path: Path, update: bool
) -> None:
    member, objective = case.split()
    pairs = objective == "pairs"
    text = parallel_text(tmp_path) if pairs else ["--corpus", home.corpus]
    said = kinfolk(
        *("pretrain", f"{member}/nano", *text, "-o", tmp_path / "run", "--length", 32),
        *([] if pairs else ["--objective", objective]),
        *("--batch", 4, "--steps", 4, "--seed", 0, "--device", "cpu", "model.dropout=0.1"),
    )
    assert said.code == 0, said.err
    compare(f"pretrain {case}", tmp_path / "run", update)


@pytest.mark.parametrize("case", FINETUNED)
def test_finetuning_gives_the_stored_losses(
    case: str, kinfolk: Kinfolk, tmp_path: Path, update: bool
) -> None:
    member, task = case.split()
    files = [FILES[task](tmp_path / name, count, seed)
             for name, count, seed in (("train", 32, 0), ("dev", 12, 1))]  # fmt: skip
    said = kinfolk(
        *("finetune", f"{member}/nano", "--train", files[0], "--dev", files[1], "--task", task),
        *("-o", tmp_path / "run", "--length", 64, "--epochs", 1, "--batch", 8, "--rate", "2e-3"),
        *("--dropout", "0.1", "--seed", 0, "--device", "cpu"),
        *(["--unlabelled", files[1]] if member == "cvt" else []),
    )
    assert said.code == 0, said.err
    compare(f"finetune {case}", tmp_path / "run", update)


def batch_hash(batch: Any) -> str:
    """Return a hash of every tensor of a batch, and of its counts."""
    digest = hashlib.sha256(json.dumps(batch.counts).encode())

    def add(tensor: Tensor) -> Tensor:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
        return tensor

    tree_map(batch, add)
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("module", modules(), ids=short)
def test_batches_have_the_stored_bytes(module: ModuleType, update: bool) -> None:
    """Batches of a seed are part of the format of a run, which is resumed by later versions."""
    text = documents(count=40)
    if short(module) == "pairs":
        text = InMemoryDocuments.from_lists(
            [[[*range(50, 53 + i)], [70] * (i + 1)] for i in range(9)]
        )
    found = {}
    for name in (short(module), f"{short(module)} for evaluation"):
        way = objective(module)
        way = way if name == short(module) else way.for_evaluation()
        kind: Any = ContiguousDataset if way.recurrent else PackedDataset
        batches = kind(way, text, batch_size=3, seed=7)
        numbers = (0, 1, len(batches) - 1, len(batches), 2 * len(batches) + 1)
        found[name] = [batch_hash(batches[number]) for number in numbers]
    stored = json.loads(BATCHES.read_text("utf-8")) if BATCHES.exists() else {}
    if update:
        stored |= found
        lines = [f"  {json.dumps(key)}: {json.dumps(stored[key])}" for key in sorted(stored)]
        BATCHES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return
    assert {name: stored[name] for name in found} == found


def test_the_golden_file_holds_these_runs_and_every_task_kind() -> None:
    cases = [f"pretrain {case}" for case in PRETRAINED] + [f"finetune {c}" for c in FINETUNED]
    assert set(json.loads(GOLDEN.read_text("utf-8"))) == set(cases)
    assert {case.split()[1] for case in FINETUNED} == FILES.keys()
    assert len(FILES) == len(kinds())
