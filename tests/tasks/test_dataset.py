"""Rows of a dataset come from files or memory, are read once, and are checked before training."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinfolk
from kinfolk.errors import UserError
from kinfolk.tasks.dataset import TaskDataset, as_datasets, task_dataset
from kinfolk.tasks.rows import LabelledText
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe, parse_initial_weights
from kinfolk.workflows.pretrain import resume
from support.learnable import Chance, asked, classify, lines, objects, squad, table, tag
from support.learnable import write as story

OPENED: list[str] = []  # paths that were opened, in order


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str):
        OPENED.append(arguments[0])


@pytest.fixture(scope="module")
def opened() -> Iterator[list[str]]:
    sys.addaudithook(_audit)
    yield OPENED


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    chance = Chance(seed)
    return [classify(chance) for _ in range(count)]


class Frame:
    """What is asked of a pandas DataFrame."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.records = records

    def to_dict(self, orient: str, /) -> list[dict[str, Any]]:
        assert orient == "records"
        return self.records


def train(data: Any, out: Path, *settings: str, **more: Any) -> Path:
    return finetune(
        parse_initial_weights("bert/nano"),
        data,
        out,
        epochs=1,
        settings=["train.device=cpu", "train.batch_size=8", *settings],
        **more,
    )


class Interrupt(Callback):
    """Interrupt a run as Ctrl-C does, after step 4."""

    def on_step(self, progress: Progress) -> None:
        if progress.step >= 4:
            raise KeyboardInterrupt


def losses(run: Path) -> list[float]:
    text = (run / "log.jsonl").read_text("utf-8")
    return [json.loads(line)["loss"] for line in text.splitlines()]


@pytest.mark.parametrize("kind", ["table", "squad", "tagged", "pairs"])
def test_a_file_is_opened_once_for_a_run(tmp_path: Path, opened: list[str], kind: str) -> None:
    make = {
        "table": lambda name, seed: table(tmp_path / name, classify, 40, seed),
        "squad": lambda name, seed: squad(tmp_path / f"{name}.json", 12, seed),
        "tagged": lambda name, seed: objects(tmp_path / name, tag, 24, seed),
        "pairs": lambda name, seed: table(tmp_path / name, story, 24, seed),
    }[kind]
    files, family = (
        (make("train", 0), make("dev", 1)),
        "t5/nano" if kind == "pairs" else "bert/nano",
    )
    opened.clear()
    dataset = task_dataset(*files)
    assert list(dataset.messages())
    for seed in range(2):
        finetune(
            parse_initial_weights(family),
            dataset,
            tmp_path / f"run{seed}",
            epochs=0.1,
            settings=["train.device=cpu", f"train.seed={seed}"],
        )
    assert [opened.count(str(file)) for file in files] == [1, 1]


def test_rows_in_memory_and_in_a_file_give_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(48)))
    runs = {
        "file": train(path, tmp_path / "file"),
        "list": train(rows(48), tmp_path / "list"),
        "frame": train(Frame(rows(48)), tmp_path / "frame"),
    }
    assert losses(runs["file"]) == losses(runs["list"]) == losses(runs["frame"])
    (dataset,) = FineTuneRecipe.read(runs["list"] / "recipe.json").datasets
    assert Path(dataset.train) == runs["list"] / "train.jsonl"
    assert dataset.rows == task_dataset(path).rows


def test_a_run_on_rows_in_memory_is_resumed(tmp_path: Path) -> None:
    whole = train(
        task_dataset(rows(48), Frame(rows(8, 1))), tmp_path / "whole", "train.save_every=2"
    )
    with pytest.raises(KeyboardInterrupt):
        train(
            task_dataset(rows(48), Frame(rows(8, 1))),
            tmp_path / "part",
            "train.save_every=2",
            callbacks=[Interrupt()],
        )
    resume(tmp_path / "part")
    assert losses(tmp_path / "part") == losses(whole)


def test_several_datasets_in_memory_have_files_of_their_own(tmp_path: Path) -> None:
    stored = as_datasets([task_dataset(rows(4)), task_dataset(rows(4, 1), rows(2))], tmp_path)
    for dataset in stored:
        dataset.write_rows(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "1-train.jsonl",
        "2-dev.jsonl",
        "2-train.jsonl",
    ]
    assert [Path(dataset.train).parent for dataset in stored] == [tmp_path.resolve()] * 2


def test_the_interface_takes_what_the_dataset_takes() -> None:
    dataset = kinfolk.task_dataset(
        [{"text": "a fine film", "stars": 4.5}, {"text": "no", "stars": 1}]
    )
    assert isinstance(dataset, kinfolk.TaskDataset)
    assert (dataset.file_spec.task, str(dataset.file_spec.columns)) == ("regress", "text,stars")
    assert dataset.rows == [
        LabelledText(("a fine film",), 4.5, 1),
        LabelledText(("no",), 1.0, 2),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "train.jsonl is empty: pass a file with labelled rows"),
        ([{"a": 1}], "train.jsonl: no text and label columns were detected"),
        ("none.tsv", "no such file: .*none.tsv"),
    ],
)
def test_rows_without_a_text_and_a_label_are_refused(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_dataset(data)


def unlabelled(folder: Path) -> TaskDataset:
    """Return a dataset in which the second dev row lacks its answer."""
    dev = folder / "dev.json"
    squad(dev, 3, 1)
    value = json.loads(dev.read_text())
    question = asked(Chance(0))
    del question["qas"][0]["answers"], question["qas"][0]["is_impossible"]
    value["data"][0]["paragraphs"][1] = question
    dev.write_text(json.dumps(value))
    return task_dataset(squad(folder / "train.json", 12), dev)


def test_dev_rows_without_a_label_are_refused_in_python_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"row 2 of .*dev.json has no label, but dev rows select"):
        train(unlabelled(tmp_path), tmp_path / "run")
    with pytest.raises(UserError, match=r"row 2 of .*dev.json has no label, but dev rows select"):
        list(unlabelled(tmp_path).messages())
    assert not (tmp_path / "run").exists()


def test_a_dev_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    dataset = task_dataset(table(tmp_path / "train", classify, 12), tmp_path / "dev.tsv")
    with pytest.raises(UserError, match=r"dev.tsv has no rows: add labelled rows"):
        _ = dataset.splits


def test_a_dev_file_of_another_form_is_refused_with_both_forms(tmp_path: Path) -> None:
    pairs, tags = tmp_path / "pairs.tsv", tmp_path / "tags.conll"
    lines = [f"a cat {n}\tone cat {n}\t{label}" for n in range(9) for label in ("yes", "no")]
    pairs.write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n")
    tags.write_text("the DET\ncat NOUN\n\na DET\ndog NOUN\n\n" * 6)
    for train_file, dev_file in ((pairs, tags), (tags, pairs)):
        dataset = task_dataset(train_file, dev_file)
        with pytest.raises(UserError) as refused:
            _ = dataset.splits
        sentence = str(refused.value)
        assert sentence.startswith(f"{dev_file} and {train_file} have different forms (")
        assert "classify columns sentence1 and sentence2 by column label" in sentence


def test_labels_that_training_rows_lack_are_named(tmp_path: Path) -> None:
    dataset = task_dataset(rows(12), [{"sentence": "so", "label": "odd"}, *rows(2)])
    assert list(dataset.messages()) == [
        "train.jsonl: classify column sentence by column label",
        "train.jsonl: 2 classes: bad (9), good (3)",
        "train.jsonl: 2 of 3 dev rows have the text of a training row, so that dev scores are too "
        "high",
        "dev.jsonl has labels that train.jsonl lacks, counted as errors: odd (1)",
    ]


def test_rows_are_drawn_from_each_file(tmp_path: Path) -> None:
    dataset = task_dataset(rows(40), rows(30, 1), max_rows=10)
    assert [len(split) for split in dataset.splits] == [10, 10]
    assert dataset.rows == task_dataset(rows(40), max_rows=10).rows


def test_what_was_skipped_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\nso\t-\nno\t1\nyes\t0\n")
    dataset = task_dataset(path)
    for _ in range(2):
        _ = dataset.splits
    assert dataset.report.messages() == [
        "1 rows without an agreed label ('-') skipped, on lines: 2"
    ]


def test_plain_text_is_read_as_documents(tmp_path: Path) -> None:
    dataset = task_dataset(lines(tmp_path / "a", classify, 20))
    assert dataset.file_spec.task == "lm" and len(dataset.rows) == 20


def test_nothing_is_learned_from_rows_that_are_held_out(tmp_path: Path) -> None:
    plain = rows(40)
    held_out = {row.number for row in task_dataset(plain).splits[1]}
    assert len(held_out) == 4
    data = [
        {"sentence": "zebra quagga", "label": "rare"} if number in held_out else row
        for number, row in enumerate(plain, 1)
    ]
    run = train(data, tmp_path / "run")
    (formulation,) = FineTuneRecipe.read(run / "recipe.json").formulations
    assert formulation.task.labels == ("bad", "good")
    assert "zebra" not in (run / "tokenizer" / "tokenizer.json").read_text("utf-8")


def test_rows_with_the_same_text_are_not_split() -> None:
    """Each text occurs four times; a quarter of them in training would make dev rows known."""
    texts = [{"sentence": f"film number {n % 30}", "label": n % 2} for n in range(120)]
    train_rows, dev_rows = task_dataset(texts).splits
    assert len(dev_rows) == 12 and len(train_rows) == 108
    assert not {row.texts for row in train_rows} & {row.texts for row in dev_rows}


def test_rows_of_one_text_are_held_out_all_the_same() -> None:
    same = task_dataset([{"sentence": "a film", "label": n % 2} for n in range(20)])
    assert [len(split) for split in same.splits] == [18, 2]
    assert "train.jsonl: 2 of 2 dev rows have the text of a training row" in [*same.messages()][-1]


def test_classes_that_differ_in_writing_alone_are_named() -> None:
    labels = [1, 1.0, True, "True", "NA", "null", "a", "a"]
    dataset = task_dataset([{"text": f"so {n}", "label": x} for n, x in enumerate(labels)])
    _, counts, *similar = dataset.messages()
    assert counts == (
        "train.jsonl: 7 classes: a (2), 1 (1), 1.0 (1), true (1), True (1), NA (1), null (1)"
    )
    assert [message.partition(" are ")[0] for message in similar] == [
        "train.jsonl: 1 and 1.0",
        "train.jsonl: True and true",
        "train.jsonl: NA and null",
    ]


def test_columns_that_are_not_used_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("id\ttext\tlabel\tgenre\n1\tso it is\tgood\tx\n2\tno way\tbad\ty\n")
    assert "a.tsv: columns that are not used: id, genre" in list(task_dataset(path).messages())
    path.write_text("".join(f"{n}\tfilm number {n}\t{n % 2}\n" for n in range(30)))
    assert "a.tsv: columns that are not used: 1" in list(task_dataset(path).messages())
    rows = [{"id": n, "text": f"so {n}", "label": n % 2} for n in range(4)]
    assert "train.jsonl: columns that are not used: id" in list(task_dataset(rows).messages())


def test_unknown_keys_of_rows_are_answered_with_the_parameter() -> None:
    with pytest.raises(UserError, match=r'columns="text,label"'):
        task_dataset([{"foo": "so it is", "bar": "x"}])
    with pytest.raises(UserError, match=r'task="tag": .*columns="text,label"'):
        task_dataset([{"text": "so", "label": "x"}], task="tag")


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").symlink_to(tmp_path / "b.tsv")
    (tmp_path / "b.tsv").symlink_to(tmp_path / "a.tsv")
    with pytest.raises(UserError, match=r"a\.tsv cannot be opened .*check its links"):
        task_dataset(tmp_path / "a.tsv")


def test_half_a_character_is_refused_with_its_line(tmp_path: Path) -> None:
    rows = [{"text": "so", "label": 1}, {"text": "a \ud800", "label": 0}]
    with pytest.raises(UserError, match="row 2 contains a lone surrogate"):
        task_dataset(rows)
    path = tmp_path / "a.jsonl"
    for number, records in ((2, rows), (1, rows[1:])):
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        with pytest.raises(UserError, match=rf"line {number} of .* contains a lone surrogate"):
            _ = task_dataset(path).rows
    path.write_text(json.dumps({"text": "\U0001f600", "label": 1}) + "\n")  # a pair is a character
    assert task_dataset(path).rows[0].texts == ("\U0001f600",)


def test_line_ends_inside_quotes_change_no_text(tmp_path: Path) -> None:
    path, found = tmp_path / "a.csv", []
    for end in ("\n", "\r\n"):
        for inner in ("\n", "\r\n", "\r"):
            path.write_bytes(f'text,label{end}"one{inner}two",good{end}no,bad{end}'.encode())
            found.append([row.texts for row in task_dataset(path).rows])
            rows = [{"text": f"one{inner}two", "label": "good"}, {"text": "no", "label": "bad"}]
            found.append([row.texts for row in task_dataset(rows).rows])
    assert found == [[("one\ntwo",), ("no",)]] * 12


def test_rows_that_contradict_each_other_are_counted() -> None:
    texts = [("a fine film", "good"), ("a fine film", "bad"), ("a dull film", "bad")]
    made = [{"text": text, "label": label} for text, label in texts * 4]
    said = [*task_dataset(made).messages()]
    assert [m for m in said if "different labels" in m] == [
        "train.jsonl: 1 text has rows of different labels, of which a model learns the mean: "
        "correct or remove them"
    ]
    assert not any("one row each" in message for message in said)
    assert not any("different" in m for m in task_dataset(made[1:3] * 4).messages())


def test_classes_of_one_row_each_are_named() -> None:
    made = [{"text": f"the {n}. film", "label": f"{n},000.50"} for n in range(30)]
    said = [*task_dataset(made, columns="text,label").messages()]
    assert any("30 classes have one row each, from which nothing is learned" in m for m in said)


def test_rows_in_memory_are_named_as_rows() -> None:
    broken = [{"text": "a fine film", "label": "good"}, {"text": "a dull film", "label": None}]
    with pytest.raises(UserError, match=r"the label in row 2 of train \(label\) is null"):
        _ = task_dataset(broken * 3).splits


def test_a_table_without_labels_is_refused_with_its_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    prices = [f'"这本书很好，第{n}本","1,00{n}.5{n}"' for n in range(9)]
    path.write_text("\n".join(["评论内容,金额", *prices]))
    wrong = r"no column of labels was found beside the text \(评论内容\): 金额; .* 评论内容,金额"
    with pytest.raises(UserError, match=wrong):
        _ = task_dataset(path).splits
    with pytest.raises(UserError, match="name its column with --columns 1,label"):
        path.write_text("\n".join(["一句话说完了"] * 3 + ["这本书很好，第一本"] * 2 + ["不好"]))
        _ = task_dataset(path, columns="1,").splits
