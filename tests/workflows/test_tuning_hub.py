"""Fine-tuned folders go both ways: transformers answers as we do, and we as it does."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kinfolk.tasks.dataset import task_dataset
from kinfolk.tasks.rows import LabelledText
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.predict import load_predictor
from support.learnable import kept, objects, opinions, pair, squad, table, tag, tune
from support.task_rows import tokenizer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
pytestmark = pytest.mark.parity
LAST = "train.eval_every=9999"


def pipeline(task: Any, run: Path) -> Any:
    return transformers.pipeline(task, model=str(find_model_folder(run)), device="cpu")


def opened(kind: Any, folder: Path) -> tuple[Any, Any]:
    model = kind.from_pretrained(str(folder)).eval()
    return model, transformers.AutoTokenizer.from_pretrained(str(folder))


@pytest.mark.parametrize(
    "name",
    [
        *("bert", "xlnet", "gpt2"),
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("roberta", "gpt")),
    ],
)
def test_a_classifier_answers_in_a_pipeline(tmp_path: Path, name: str) -> None:
    found = opinions(tmp_path, 64, 16)
    run = tune(f"{name}/nano", found, tmp_path / "run", LAST, "train.lr=1e-3", epochs=2)
    rows = kept(found)
    there = pipeline("text-classification", run)
    assert there.model.config.id2label == {0: "bad", 1: "good"}
    for row, answer in zip(rows, load_predictor(run, device="cpu").predict(rows), strict=True):
        (said,) = there(row.texts[0], truncation=True)
        assert said["label"] == answer.value
        assert said["score"] == pytest.approx(answer.probability, abs=1e-5)


def test_a_classifier_of_pairs_cuts_as_transformers_does(tmp_path: Path) -> None:
    found = task_dataset(table(tmp_path / "train", pair, 48), table(tmp_path / "dev", pair, 16, 1))
    run = tune("bert/nano", found, tmp_path / "run", LAST, epochs=1, length=16)
    model, words = opened(transformers.AutoModelForSequenceClassification, find_model_folder(run))
    assert model.config.id2label == {0: "no", 1: "yes"}
    sizes = [(1, 30), (30, 1), (9, 9), (9, 8), (12, 13), (2, 3)]
    rows = [LabelledText(("film " * a + "fine", "dull " + "song " * b), None, 1) for a, b in sizes]
    for row, answer in zip(rows, load_predictor(run, device="cpu").predict(rows), strict=True):
        given = words(*row.texts, truncation=True, max_length=16, return_tensors="pt")
        with torch.no_grad():
            shares = model(**given).logits.softmax(-1)[0]
        assert answer.probabilities == pytest.approx(shares.tolist(), abs=1e-5)


def test_a_tagger_answers_in_a_pipeline(tmp_path: Path) -> None:
    found = task_dataset(
        objects(tmp_path / "train", tag, 64), objects(tmp_path / "dev", tag, 12, 1)
    )
    run = tune("bert/nano", found, tmp_path / "run", LAST, "train.lr=2e-3", epochs=6)
    there = pipeline("token-classification", run)
    assert set(there.model.config.id2label.values()) == {"O", "B-LOC", "B-PER", "I-PER"}
    rows = kept(found)
    for row, answer in zip(rows, load_predictor(run, device="cpu").predict(rows), strict=True):
        text = " ".join(row.words)
        said = {one["start"]: one["entity"] for one in there(text)}  # those that are not O
        starts = [len(" ".join(row.words[:place])) + (place > 0) for place in range(len(row.words))]
        assert [said.get(start, "O") for start in starts] == [*answer.value]


def test_a_reader_opens_with_equal_scores(tmp_path: Path) -> None:
    found = task_dataset(squad(tmp_path / "train.json", 48), squad(tmp_path / "dev.json", 8, 1))
    run = tune("bert/nano", found, tmp_path / "run", LAST, "train.lr=2e-3", epochs=4)
    model, words = opened(transformers.AutoModelForQuestionAnswering, find_model_folder(run))
    ours = load_predictor(run, device="cpu")
    rows = kept(found)
    for row, answer in zip(rows, ours.predict(rows), strict=True):
        given = words(row.question, row.context, return_tensors="pt", return_offsets_mapping=True)
        where = given.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            said = model(**given)
        inside = [place for place, second in enumerate(given.sequence_ids()) if second == 1]
        starts, ends = said.start_logits[0], said.end_logits[0]
        none = float(starts[0] + ends[0])
        spans = {
            (a, b): float(starts[a] + ends[b]) for a in inside for b in inside if a <= b < a + 30
        }
        first, last = max(spans, key=lambda span: spans[span])
        gap = none - spans[first, last]
        assert answer.null_score_diff == pytest.approx(gap, abs=1e-4)
        text = row.context[where[first][0] : where[last][1]]
        assert answer.value == ("" if gap > 0 else text)


def test_a_classifier_of_transformers_answers_here(tmp_path: Path) -> None:
    torch.manual_seed(0)
    names = {0: "sad", 1: "glad", 2: "neither"}
    config = transformers.BertConfig(
        vocab_size=tokenizer().vocab_size, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, max_position_embeddings=48,
        initializer_range=0.2, id2label=names,
        label2id={name: number for number, name in names.items()},
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer().save(tmp_path, template="bert")
    found = load_predictor(tmp_path, device="cpu")
    assert found.task.labels == ("sad", "glad", "neither")
    model, words = opened(transformers.AutoModelForSequenceClassification, tmp_path)
    rows = [
        LabelledText(("red cat",), None, 1),
        LabelledText(("old king " * 40,), None, 2),  # longer than its context
        LabelledText(("blue bird", "a song"), None, 3),
    ]
    for row, answer in zip(rows, found.predict(rows), strict=True):
        given = words(*row.texts, truncation=True, max_length=48, return_tensors="pt")
        with torch.no_grad():
            shares = model(**given).logits.softmax(-1)[0]
        assert answer.probabilities == pytest.approx(shares.tolist(), abs=1e-5)
        assert answer.value == names[int(shares.argmax())]


def test_a_decoder_of_transformers_answers_here(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=tokenizer().vocab_size, n_embd=32, n_layer=2, n_head=2, n_positions=48,
        initializer_range=0.2, id2label={0: "sad", 1: "glad", 2: "neither"},
        pad_token_id=tokenizer().special_tokens.pad,
    )  # fmt: skip
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer().save(tmp_path)
    model, words = opened(transformers.AutoModelForSequenceClassification, tmp_path)
    rows = [LabelledText(("red cat",), None, 1), LabelledText(("old king of the river",), None, 2)]
    for row, answer in zip(rows, load_predictor(tmp_path, device="cpu").predict(rows), strict=True):
        with torch.no_grad():
            given = words(*row.texts, return_tensors="pt", add_special_tokens=False)
            shares = model(**given).logits.softmax(-1)[0]
        assert answer.probabilities == pytest.approx(shares.tolist(), abs=1e-5)
