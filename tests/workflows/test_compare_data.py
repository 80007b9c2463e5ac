"""The parts of a comparison without training: entrants, splits of labelled files, text."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kinfolk import UserError
from kinfolk.config import to_json
from kinfolk.data.corpus import Corpus
from kinfolk.metrics.classification import Accuracy
from kinfolk.objectives.evaluation import score_documents
from kinfolk.rng import text_uniform
from kinfolk.tasks.classification import Classification
from kinfolk.tasks.rows import (
    CorefDocument,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    TaggedSentence,
)
from kinfolk.tasks.tagging import Tagging
from kinfolk.workflows.comparison.data import (
    TaskRows,
    TextSource,
    default_vocab_size,
    hold_out,
    make_corpus,
    nested_order,
    read_stored,
    read_task,
    task_files,
    task_name,
    write_splits,
)
from kinfolk.workflows.comparison.plan import (
    Entrant,
    Plan,
    PlannedEntrant,
    PlannedTask,
    RaceOptions,
    parse_labels,
    slugs,
)
from kinfolk.workflows.comparison.pool import Workers
from kinfolk.workflows.comparison.results import race_command, rarer_options
from kinfolk.workflows.comparison.scores import development_documents, development_loss
from kinfolk.workflows.comparison.tables import Table, corpus_names, prediction_units, score_words
from kinfolk.workflows.comparison.tasks import any_raw, finetune_arguments, finetune_steps
from kinfolk.workflows.finetuning.defaults import RAW_TOKENS, tokens_of_steps
from kinfolk.workflows.load import load
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import recipe
from support.runs import Home, text


def options(*tasks: Path | str, **others: object) -> RaceOptions:
    """Return options of a comparison."""
    entrants = (Entrant.parse("gpt2/nano"),)
    fields: dict[str, object] = {"corpus": (), "tasks": tuple(map(str, tasks)), **others}
    return RaceOptions(entrants=entrants, budget_kind="tokens", budget_amount=1.0, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("gpt2", Entrant("gpt2/tiny", "gpt2/tiny")),
        ("bert/mini", Entrant("bert/mini", "bert/mini")),
        ("a=bert", Entrant("a", "bert/tiny")),
        ("two words=bert/nano", Entrant("two words", "bert/nano")),
        (
            "x=bert/nano objective=mlm train.lr=1e-3 task.dropout=0.1 tokenizer=bpe:512",
            Entrant("x", "bert/nano", ("train.lr=1e-3",), "mlm", ("dropout=0.1",), "bpe:512"),
        ),
        (
            "bert/nano objective=mlm",
            Entrant("bert/nano (objective=mlm)", "bert/nano", objective="mlm"),
        ),
    ],
)
def test_entrants_are_parsed(given: str, expected: Entrant) -> None:
    assert Entrant.parse(given) == expected


def test_the_command_of_a_page_has_every_option_that_was_given() -> None:
    entrants = (Entrant.parse("one=bert/nano objective=mlm"), Entrant.parse("gpt2"))
    options = RaceOptions(
        entrants, ("my notes",), "tokens", 12_345_678.0, length=64, labels=("16", "all"),
        own_tokenizers=True, probes=False, columns="a,b",
    )  # fmt: skip
    line = " ".join(rarer_options(options))
    assert line == "--columns a,b --labels 16,all --length 64 --own-tokenizers --no-probes"
    plan = SimpleNamespace(options=options, repeats="")
    assert race_command(plan) == (  # type: ignore[arg-type]
        "kinfolk compare 'one=bert/nano objective=mlm' gpt2/tiny --corpus 'my notes' "
        f"--tokens 12345678 --seeds 3 {line} -o RACE"
    )


def test_pseudo_likelihoods_are_compared_within_their_units() -> None:
    def units(words: str, corpus: str = "a", **objective: float) -> str:
        entrant = PlannedEntrant("x", "x", "t5/nano", recipe={"objective": objective})
        return prediction_units(entrant, words, corpus)

    spans, tokens = "pseudo-likelihood, each span", "pseudo-likelihood, each token"
    assert units(spans, mean_span_length=3) != units(spans, mean_span_length=1)
    assert units(tokens, mask_rate=0.1) == units(tokens, mask_rate=0.2)
    assert units(tokens, corpus="a") != units(tokens, corpus="b")
    assert units(tokens, corpus="bpe") == "tokens of bpe"
    electra = PlannedEntrant("x", "x", "electra/nano", objective="rtd")
    assert score_words(electra, {"words": tokens}) == tokens.replace(",", " of the generator,")


def test_corpora_of_one_name_have_their_whole_path() -> None:
    entrants = [PlannedEntrant("x", "x", "t5/nano", corpus=c) for c in ("a/bpe", "b/bpe", "b/byte")]
    plan: Any = SimpleNamespace(entrants=entrants)
    assert corpus_names(plan) == {"a/bpe": "a/bpe", "b/bpe": "b/bpe", "b/byte": "byte"}


def test_scores_keep_the_numbers_of_their_seeds() -> None:
    """The training of seed 0 failed, and a baseline that no seed changes has one score."""
    rows = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    scores = {"gpt2": {2: rows, 1: rows}, "majority": {0: rows, 1: rows, 2: rows}}
    table = Table(Accuracy("accuracy"), scores, fixed=["majority"], baselines=["majority"])
    assert table.row("gpt2")["seed_numbers"] == [1, 2]
    assert table.row("majority")["seed_numbers"] == [0]


@pytest.mark.parametrize(("steps", "raw"), [((1, 1), True), ((1, 0), True), ((0, 0), False)])
def test_all_entrants_are_fine_tuned_as_raw_where_one_is(
    home: Home, steps: tuple[int, ...], raw: bool
) -> None:
    """Steps short of the limit, of two entrants; models that are counted do not matter."""
    made = home.recipe("bert")
    limit = -(-RAW_TOKENS // tokens_of_steps(made, 1))
    entrants = [
        PlannedEntrant("x", "x", "bert/nano", recipe=to_json(made), steps=limit - missing)
        for missing in steps
    ]
    counted = PlannedEntrant("n", "n", "ngram/5", recipe=to_json(made), steps=1, gradient_free=True)
    assert any_raw([*entrants, counted]) == raw
    plan = SimpleNamespace(raw_weights=raw, options=options())
    task = SimpleNamespace(value=Classification(labels=("a", "b")))
    for entrant, given in ((entrants[0], raw), (replace(entrants[0], recipe=None), None)):
        found = finetune_arguments(entrant, task, plan, steps=3, seed=0)  # type: ignore[arg-type]
        assert found["raw_weights"] == given
        assert "train.steps=3" in found["settings"]


def test_the_number_of_steps_is_that_of_the_race() -> None:
    task = PlannedTask(
        "t", "t", "classify", {}, "accuracy", 320, 32, 32, ("all",), {"a": 1, "b": 1}
    )
    assert finetune_steps(320, task, options()) == 320  # 40 epochs of 10 steps would be 400
    assert finetune_steps(320, task, options(task_epochs=2.5)) == 25
    assert finetune_steps(320, task, options(task_epochs=2.5, task_steps=7)) == 7


def test_a_text_that_is_held_out_whole_says_so(tmp_path: Path) -> None:
    lines = (f"{number} cats sat on one mat all day long." for number in range(1000))
    held = next(line for line in lines if text_uniform(line) < 0.1)
    (tmp_path / "a.txt").write_text(f"{held}\n", encoding="utf-8")
    source = TextSource.open(options(corpus=(str(tmp_path / "a.txt"),)))
    with pytest.raises(UserError, match="holds out the whole text, because its documents are few"):
        source.tokenizer("bpe", 300)


def test_names_of_folders_differ() -> None:
    names = ["bert/tiny", "bert tiny", "BERT-tiny", "<b>", "../..", "日本"]
    found = [*slugs(names)]
    assert len({*found}) == len(names)
    assert all("/" not in slug and not slug.startswith(".") for slug in found)


def test_sizes_of_training_sets_are_sorted_and_end_with_all() -> None:
    assert parse_labels(["64", "16", "all", "16"]) == ("16", "64", "all")
    assert parse_labels(["64"]) == ("64", "all")


def rows_of(counts: dict[str, int]) -> list[LabelledText]:
    """Return rows with classes of these sizes, one class after the other."""
    labels = [label for label, count in counts.items() for _ in range(count)]
    return [LabelledText((f"text {n}",), label, n) for n, label in enumerate(labels)]


def test_subsets_are_nested_stratified_and_differ_by_seed() -> None:
    rows = rows_of({"a": 60, "b": 30, "rare": 2})
    task = Classification.from_rows(rows)
    order = nested_order(task, rows, seed=0)
    assert sorted(row.number for row in order) == list(range(len(rows)))
    assert {row.label for row in order[:3]} == {"a", "b", "rare"}
    counts = Counter(row.label for row in order[:46])
    assert abs(counts["a"] - 30) <= 1 and abs(counts["b"] - 15) <= 1
    assert order == nested_order(task, rows, seed=0)
    assert order != nested_order(task, rows, seed=1)


def test_sizes_below_the_classes_or_above_the_rows_are_left_out() -> None:
    rows = rows_of({"a": 20, "b": 20, "c": 20})
    task = TaskRows("t", Classification.from_rows(rows), rows, rows, rows)
    assert task.label_sizes(("2", "16", "64", "all")) == ("16", "all")
    note = task.labels_note(("2", "16", "64", "all"))
    assert note == (
        "t: no training set of 2 labels, because there are 3 classes, and each needs a row"
    )
    assert task.labels_note(("16", "64", "all")) is None


def test_rows_without_classes_have_training_sets_of_every_size() -> None:
    rows = [TaggedSentence(("a", "b"), ("X", "Y"), n) for n in range(40)]
    task = TaskRows("t", Tagging.from_rows(rows), rows, rows, rows)
    assert task.label_sizes(("1", "16", "64", "all")) == ("1", "16", "all")
    assert task.labels_note(("1", "16", "64", "all")) is None


def test_held_out_rows_keep_equal_texts_together() -> None:
    rows = [LabelledText((f"text {n % 40}",), "a", n) for n in range(80)]
    train, test = hold_out(rows, 0.2)
    assert len(train) + len(test) == 80 and 16 <= len(test) <= 18
    assert {row.text for row in train}.isdisjoint({row.text for row in test})


def test_files_are_split_the_same_way_every_time(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    lines = [f"text number {n}\t{'yes' if n % 3 else 'no'}" for n in range(100)]
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    task = read_task(str(path), options(path))
    assert (len(task.train), len(task.dev), len(task.test)) == (72, 8, 20)
    splits = [{row.number for row in part} for part in (task.train, task.dev, task.test)]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 100
    again = read_task(str(path), options(path))
    assert again.test == task.test and again.train == task.train
    limited = read_task(str(path), options(path, test_rows=5, train_rows=10))
    assert (len(limited.train), len(limited.test)) == (10, 5)
    assert limited.notes == (
        "t.tsv: 10 of 72 train rows are used",
        "t.tsv: 5 of 20 test rows are used",
    )


def test_splits_are_files_that_contain_each_other(tmp_path: Path) -> None:
    rows = rows_of({"a": 20, "b": 20})
    task = TaskRows("t", Classification.from_rows(rows), rows[::2], rows[1::4], rows[3::4])
    write_splits(task, tmp_path, ("8", "all"), seeds=2)
    small, every = (
        {row.number for row in read_stored(tmp_path / f"train-{size}-seed1.jsonl", "classify")}
        for size in ("8", "all")
    )
    assert len(small) == 8 and small < every and len(every) == 20
    assert len(read_stored(tmp_path / "dev-8-seed0.jsonl", "classify")) == 8
    assert read_stored(tmp_path / "test.jsonl", "classify") == rows[3::4]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("classify", LabelledText(("a", "b"), "yes\u2028", 3)),
        ("regress", LabelledText(("a",), 0.5, 3)),
        ("choose", MultipleChoiceRow("c", ("x", "y"), 1, 4, "q")),
        ("tag", TaggedSentence(("A", "b"), ("O", "B-X"), 2, predicate=None)),
        ("span", QuestionRow("i", "context", "q", (("text", 3),), True, 1)),
        ("coref", CorefDocument("d", (("A", "b"),), (((0, 1), (1, 2)),), 1, ((0, 1),))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_stored_rows_are_read_as_they_were(kind: str, row: object, tmp_path: Path) -> None:
    from kinfolk.tasks.formats.stored_rows import stored_rows

    path = tmp_path / "rows.jsonl"
    path.write_bytes(stored_rows([row]))
    assert read_stored(path, kind) == [row]


def test_files_of_a_task(tmp_path: Path) -> None:
    for name in ("train.tsv.gz", "dev.tsv", "test.tsv", "notes.txt"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert task_files(str(tmp_path)) == {
        "train": tmp_path / "train.tsv.gz",
        "dev": tmp_path / "dev.tsv",
        "test": tmp_path / "test.tsv",
    }
    pair = f"{tmp_path / 'dev.tsv'},{tmp_path / 'test.tsv'}"
    assert [*task_files(pair)] == ["train", "test"]
    with pytest.raises(UserError, match="names 4 files"):
        task_files("a,b,c,d")
    with pytest.raises(UserError, match="no file train"):
        task_files(str(tmp_path / "empty") if (tmp_path / "empty").mkdir() else "")


def test_the_vocabulary_grows_with_the_text() -> None:
    assert [default_vocab_size(size) for size in (1e4, 2e6, 1e7, 1e12)] == [512, 512, 4096, 8192]


def test_tokenizers_of_all_kinds_hold_the_characters_of_a_chinese_text(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    lines = ["".join(chr(0x4E00 + (7 * n + i) % 600) for i in range(40)) for n in range(60)]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    chosen = options(corpus=(str(path),), holdout=0.1, own_tokenizers=True)
    source = TextSource.open(chosen)
    size = source.own_vocab_size()
    assert size > default_vocab_size(source.bytes)
    for kind in ("bpe", "wordpiece", "unigram"):
        corpus = make_corpus(source, chosen, f"{kind}:", tmp_path / "race", lambda message: None)
        tokenizer = corpus.tokenizer()
        assert tokenizer.vocab_size <= size
        found = tokenizer.encode(lines[0], add_special_tokens=False)
        assert tokenizer.special_tokens.unk not in found


def test_the_tokenizer_has_not_read_the_documents_that_are_scored(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    documents = text(documents=60).strip().split("\n\n")
    secret = next(f"Xylophonist {n}" for n in range(99) if text_uniform(f"Xylophonist {n}") < 0.3)
    path.write_text("\n\n".join([*documents, *[secret] * 50]), encoding="utf-8")
    source = TextSource.open(options(corpus=(str(path),), holdout=0.3))
    tokenizer = source.tokenizer("bpe", 600)
    assert len(tokenizer.encode("Xylophonist", add_special_tokens=False)) > 5
    corpus = source.prepare(tokenizer, tmp_path / "corpus", lambda message: None)
    assert (corpus.folder / "holdout" / "corpus.json").is_file()


def test_a_corpus_without_held_out_documents_is_refused(tmp_path: Path) -> None:
    from support.runs import Home

    home = Home.make(tmp_path / "home")
    (home.corpus / "holdout").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="no held-out documents, which are scored"):
        TextSource.open(options(corpus=(str(home.corpus),)))


def test_a_search_carries_the_memory_from_batch_to_batch(home: Home, tmp_path: Path) -> None:
    chosen = recipe(
        "transformer_xl/nano", home.corpus, length=16, steps=2, batch_size=2, device="cpu"
    )
    run = pretrain(chosen, tmp_path / "run")
    model, _ = load(run)
    held_out = Corpus.open(Path(chosen.corpora[0].corpus) / "holdout")
    documents = development_documents(held_out)
    expected = score_documents(model, chosen.objective, documents, 1, rows=2).loss
    assert development_loss(run, chosen) == pytest.approx(expected, rel=1e-5)


def test_plans_with_the_earlier_name_of_a_field_are_read(tmp_path: Path) -> None:
    entrants = (PlannedEntrant("5-gram", "5-gram", "ngram/5", gradient_free=True),)
    plan = Plan(options(), {}, {}, entrants, (), (), 16, 1, {}, "0", "now")
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    written = (tmp_path / "plan.json").read_text(encoding="utf-8")
    assert written.count('"gradient_free"') == 1
    (tmp_path / "plan.json").write_text(
        written.replace('"gradient_free"', '"counted"'), encoding="utf-8"
    )
    assert Plan.read(tmp_path / "plan.json") == plan


def test_processes_are_spread_over_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs and three processes: the first that ends makes room on its own device."""
    devices: list[str] = []

    class Process:
        stdout = ()

        def __init__(self, command: object, *, env: dict[str, str], **others: object) -> None:
            devices.append(env["CUDA_VISIBLE_DEVICES"])

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("subprocess.Popen", Process)
    (tmp_path / "logs").mkdir()
    workers = Workers(tmp_path, threads=1)
    for name in "abcd":
        workers.start(name)
    assert devices == ["0", "1", "0", "1"]
    del workers.running["b"], workers.running["d"]
    workers.start("e")
    assert devices[-1] == "1"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("films/train.tsv,films/dev.tsv,films/test.tsv", "films"),
        ("films/train.tsv.gz", "films"),
        ("films", "films"),
        ("films/said.tsv", "said.tsv"),
        ("trains.tsv", "trains.tsv"),
        ("train.tsv", "home"),
    ],
)
def test_a_file_that_is_only_a_split_is_called_after_its_folder(
    text: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / "films").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home")
    assert task_name(text) == name
