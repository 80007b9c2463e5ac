"""CoVe from translation to a task: a run on pairs, then classifiers and a reader of its vectors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk import hub
from kinfolk.data.parallel_text import ParallelText
from kinfolk.nn.biattention import BCN, Reader
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.evaluate import evaluate
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.predict import predict
from kinfolk.workflows.pretrain import resume
from kinfolk.workflows.translation.parallel import ParallelData
from kinfolk.workflows.translation.translate import prepare_translation_run

ANIMALS, PLACES = ("cat", "dog", "bird"), ("house", "river", "garden")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draws = torch.Generator().manual_seed(0)
    words = ("the", "is", "in", "where", "?", *ANIMALS, *PLACES)
    lines = [f"{w} " + " ".join(f"{x:.4f}" for x in torch.randn(8, generator=draws)) for w in words]
    file = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def translation_run(folder: Path, vectors: Path, *settings: str) -> Path:
    """Prepare the run of a small translator with frozen word vectors."""
    folder.mkdir(exist_ok=True)
    pairs = [(f"the {a} is in the {p}", f"{p} {a}") for a in ANIMALS for p in PLACES] * 8
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    text = ParallelData(train=ParallelText(folder / "pairs.tsv"))
    fixed = ["model.embedding_size=8", "model.freeze_embeddings=true", "train.device=cpu"]
    fixed += ["train.batch_size=4", "train.warmup=1"]
    prepare_translation_run(
        "cove/nano",
        text,
        folder / "run",
        length=32,
        vectors=vectors,
        settings=[*fixed, *settings],
    )
    return folder / "run"


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory, vectors: Path) -> Path:
    """Train a small translator for a few steps."""
    folder = tmp_path_factory.mktemp("translator")
    return resume(translation_run(folder, vectors, "train.steps=4"))


def table(path: Path, header: str, rows: list[tuple[str, ...]]) -> Path:
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def options(vectors: Path, **more: Any) -> dict[str, Any]:
    return {"vectors": str(vectors), "feature_layers": "last", **more}


SMALL = ("model.task_network.hidden_size=12", "train.device=cpu", "train.warmup=2")


@pytest.mark.parametrize("pair", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_biattentive_network_learns_over_frozen_vectors(
    pair: bool, translator: Path, vectors: Path, tmp_path: Path
) -> None:
    rows: list[tuple[str, ...]] = []
    for a in ANIMALS:
        for p in PLACES:
            texts = (f"the {a}", f"in the {p}") if pair else (f"the {a} is in the {p}",)
            rows.append((*texts, "yes" if (a == "cat") == (p == "river") else "no"))
    header = "sentence1\tsentence2\tlabel" if pair else "text\tlabel"
    train = table(tmp_path / "train.tsv", header, rows * 4)
    out = finetune(
        translator,
        train,
        tmp_path / "run",
        dev=train,
        steps=60,
        settings=[*SMALL, "model.dropout=0.0"],
        options=options(vectors, task_network="bcn"),
    )
    model: Any = hub.load_model(out / "checkpoints" / "best")
    assert isinstance(model.task_network, BCN) and model.task_network.pair == pair
    assert model.config.backbone.encoder_only and not hasattr(model.backbone, "decoder")
    before: Any = hub.load_model(translator / "checkpoints" / "last")
    encoder = before.encoder.state_dict()
    assert all(t.equal(encoder[n]) for n, t in model.backbone.encoder.state_dict().items())
    result = evaluate(str(out), test=train, device="cpu")
    assert result.scores["accuracy"] > 0.9


def test_a_reader_learns_over_frozen_vectors(
    translator: Path, vectors: Path, tmp_path: Path
) -> None:
    def question(a: str, p: str, number: int) -> dict[str, Any]:
        answers = [{"text": p, "answer_start": len(f"the {a} is in the ")}]
        asked = {"id": str(number), "question": f"where is the {a} ?", "answers": answers}
        return {"context": f"the {a} is in the {p}", "qas": [asked]}

    pairs = [(a, p) for a in ANIMALS for p in PLACES] * 3
    paragraphs = [question(a, p, i) for i, (a, p) in enumerate(pairs)]
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (tmp_path / "train.json").write_text(json.dumps(data), encoding="utf-8")
    out = finetune(
        translator,
        tmp_path / "train.json",
        tmp_path / "run",
        dev=tmp_path / "train.json",
        steps=60,
        settings=[*SMALL, "model.dropout=0.0", "train.lr=5e-3"],
        options=options(vectors),
    )
    model: Any = hub.load_model(out / "checkpoints" / "best")
    assert isinstance(model.task_network, Reader)
    assert evaluate(str(out), test=tmp_path / "train.json", device="cpu").scores["exact"] > 0.8
    asked = {"question": "where is the dog ?", "context": "the dog is in the garden"}
    assert predict(out, [asked], device="cpu")[0].value == "garden"


class StopAt(Callback):
    """Interrupt a run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, progress: Progress) -> None:
        if progress.step == self.step:
            raise KeyboardInterrupt


def test_a_resumed_classifier_equals_one_that_was_not_stopped(
    translator: Path, vectors: Path, tmp_path: Path
) -> None:
    train = table(tmp_path / "train.tsv", "text\tlabel", [("the cat", "a"), ("the dog", "b")] * 8)
    settings = [*SMALL, "train.save_every=4", "train.batch_size=4"]

    def run(name: str, *callbacks: Callback) -> Path:
        return finetune(
            translator,
            train,
            tmp_path / name,
            dev=train,
            steps=12,
            settings=settings,
            options=options(vectors, task_network="bcn"),
            callbacks=callbacks,
        )

    with pytest.raises(KeyboardInterrupt):
        run("stopped", StopAt(6))
    resume(tmp_path / "stopped")
    found, expected = (
        hub.load_model(tmp_path / name / "checkpoints" / "last")
        for name in ("stopped", str(run("whole")))
    )
    weights: Any = expected.state_dict()
    assert all(t.equal(weights[n]) for n, t in found.state_dict().items())


def test_a_resumed_translator_equals_one_that_was_not_stopped(
    vectors: Path, tmp_path: Path
) -> None:
    settings = ("train.steps=10", "train.save_every=4", "model.dropout=0.2")
    stopped, whole = (
        translation_run(tmp_path / name, vectors, *settings) for name in ("stopped", "whole")
    )
    with pytest.raises(KeyboardInterrupt):
        resume(stopped, callbacks=[StopAt(6)])
    resume(stopped)
    resume(whole)
    found, expected = (
        (run / "checkpoints" / "last" / "model.safetensors").read_bytes()
        for run in (stopped, whole)
    )
    assert found == expected
    assert (stopped / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()
