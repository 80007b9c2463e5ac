"""Probes over layers: tags, texts, edges, senses, control tasks, and files of spans."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfolk
from kinfolk.cli.probe import show_probes
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.linear_probe import MIN_THREADED, threads_for
from kinfolk.nn.mlp_probe import fit_mlp_probe
from kinfolk.reports.probe_page import render
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.finetuning.recipe import InitialWeights
from kinfolk.workflows.probing.curves import mix_columns, probe_page
from kinfolk.workflows.probing.span_probes import is_span_file, read_spans

NOUNS, VERBS = ("film", "song", "book"), ("saw", "found", "wrote")
TAGS = {**dict.fromkeys(("a", "the"), "DET"), **dict.fromkeys(NOUNS, "NOUN")}
TAGS |= dict.fromkeys(VERBS, "VERB")


@pytest.fixture(scope="module")
def bert() -> tuple[LanguageModel, Tokenizer]:
    tokenizer = train_tokenizer([" ".join(TAGS)] * 3, kind="bpe", vocab_size=400, fewer=True)
    config = InitialWeights(name="bert/nano").config(tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return config.build().eval(), tokenizer


def tagged(folder: Path, name: str, count: int, seed: int) -> Path:
    """Write sentences in columns, whose tags follow from the words."""
    chance = random.Random(seed)
    sentences = [
        "\n".join(f"{w}\t{TAGS[w]}" for w in chance.choices([*TAGS], k=5)) for _ in range(count)
    ]
    (folder / name).write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    return folder / name


def edges(folder: Path, name: str, count: int, seed: int, *, single: bool = False) -> Path:
    """Write pairs of words, whose label is whether both are of one kind; or single words."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        words = chance.choices([*NOUNS, *VERBS], k=4)
        first, second = (0, 1) if chance.random() < 0.5 else (3, 2)
        target: dict[str, Any] = {"span1": [first, first + 1]}
        if single:
            target["label"] = TAGS[words[first]]
        else:
            target["span2"] = [second, second + 1]
            target["label"] = TAGS[words[second]]
        lines.append(json.dumps({"text": " ".join(words), "targets": [target]}))
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / name


def test_tags_are_read_from_the_embeddings_and_control_tags_memorized(
    bert: tuple[LanguageModel, Tokenizer], tmp_path: Path
) -> None:
    train, dev = tagged(tmp_path, "a.txt", 40, 1), tagged(tmp_path, "b.txt", 40, 2)
    told: list[tuple[int, int]] = []
    result = kinfolk.probe(bert, train, dev, seeds=1, watch=lambda *done: told.append(done))
    # Two kinds of probes and of control tasks, and random weights: three layers and the mix.
    assert told == [(n, 20) for n in range(1, 21)]
    names = [curve.name for curve in result.scores]
    assert names == ["linear", "one hidden layer", "linear, random weights"]
    assert all(len(curve.layers) == 3 for curve in (*result.scores, *result.selectivity))
    assert result.metric == "accuracy" and result.task == "tag"
    first = result.scores[0].layers[0]
    assert first.score > 0.95 and first.low <= first.score <= first.high
    # The words of the control task are all in training: it is memorized, and nothing is selective.
    assert result.control[0].layers[0].score > 0.9
    assert abs(result.selectivity[0].layers[0].score) < 0.1
    assert len(result.mix_weights) == 3 and sum(result.mix_weights) == pytest.approx(1, abs=1e-5)
    # The mix has what each layer has: both probes, the control task, and random weights.
    assert [mix.name for mix in result.mixes] == names
    for mix in result.mixes[:2]:
        assert mix.score.score > 0.9 and mix.score.low <= mix.score.score <= mix.score.high
        assert mix.control is not None and mix.selectivity is not None
        accuracy = mix.control.score + mix.selectivity.score
        assert accuracy == pytest.approx(mix.score.score)
        assert abs(mix.selectivity.score) < 0.1  # memorized, as on each layer
    assert result.mix == result.mixes[0].score and result.mixes[2].control is None
    assert result.notes[0].startswith("no --test: 20 dev rows choose penalties")
    page = render(probe_page(result))
    assert page.count('<figure class="chart') == 4
    heads = re.findall(r'<th scope="col">([^<]*)</th>', page.split("Mix of layers")[1])
    assert heads[:4] == ["probe", "accuracy", "control task", "selectivity"]
    for wrong in ({"seeds": 0}, {"max_train": 0}, {"max_test": 0}):
        (name,) = wrong
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} must be at least 1"):
            kinfolk.probe(bert, train, dev, **wrong)  # type: ignore[arg-type]


def test_numbers_are_told_with_their_probes_and_have_one_column(
    bert: tuple[LanguageModel, Tokenizer],
) -> None:
    rows = [{"text": f"{a} {b}", "label": n / 2} for a in TAGS for n, b in enumerate(NOUNS)]
    told: list[tuple[int, int]] = []
    result = kinfolk.probe(
        bert, rows, rows, task="regression", seeds=2, watch=lambda *done: told.append(done)
    )
    assert told[-1] == (20, 20) and len(told) == 20
    assert [heading for heading, _ in mix_columns(result)] == [result.metric]


@pytest.mark.parametrize(("numbers", "threads"), [(MIN_THREADED - 1, 1), (MIN_THREADED, 3)])
def test_few_numbers_are_computed_by_one_thread(numbers: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with threads_for(numbers):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_control_task_of_unseen_words_is_selective(
    bert: tuple[LanguageModel, Tokenizer], tmp_path: Path
) -> None:
    """Words of test rows are not in training: their kind can be told, their random tag cannot."""
    words = {"train": (*NOUNS, *VERBS), "dev": [a + b for a in NOUNS for b in VERBS]}
    # The first word of a text is what the control task has a random label for.
    rows = {
        split: [{"text": f"{b} {a}", "label": a} for a in ("the", "a") for b in found * 4]
        for split, found in words.items()
    }
    result = kinfolk.probe(bert, rows["train"], rows["dev"], seeds=5)
    assert result.task == "classify"
    for n, layer in enumerate(result.selectivity[0].layers):
        assert result.scores[0].layers[n].score > 0.95
        assert 0.2 < layer.low <= layer.score < 0.8
        assert result.control[0].layers[n].score == pytest.approx(0.5, abs=0.3)


@pytest.mark.parametrize("single", [pytest.param(False, marks=pytest.mark.slow), True])
def test_pairs_of_words_and_single_words(
    single: bool, bert: tuple[LanguageModel, Tokenizer], tmp_path: Path
) -> None:
    files = [edges(tmp_path, f"{n}.jsonl", 80, n, single=single) for n in range(3)]
    assert is_span_file(files[0])
    result = kinfolk.probe(bert, *files, seeds=1)
    assert (result.task, result.labels, result.test_rows) == ("spans", 2, 80)
    # The span alone tells the label; the words around it differ. Of a word the first token is
    # read, which two words of different kinds may share at the start of a text.
    assert result.scores[0].layers[0].score > (0.8 if single else 0.95)
    assert result.notes == ()


@pytest.mark.slow
def test_rows_that_are_cut_or_left_out_are_counted(
    bert: tuple[LanguageModel, Tokenizer], tmp_path: Path
) -> None:
    long = "the film saw a song " * 40
    rows = [{"text": f"{a} {b}", "label": a} for a in ("the", "a") for b in NOUNS * 3]
    result = kinfolk.probe(bert, [*rows, {"text": long, "label": "a"}], rows, seeds=1)
    assert "1 of 37 rows are longer than 128 tokens: their end was cut off" in result.notes

    spans = edges(tmp_path, "a.jsonl", 9, 1)
    target = {"span1": [0, 1], "span2": [1, 2], "label": "NOUN"}
    line = json.dumps({"text": long, "targets": [target]})
    spans.write_text(spans.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    result = kinfolk.probe(bert, spans, edges(tmp_path, "b.jsonl", 9, 2), seeds=1)
    assert result.train_rows == 9
    assert (
        "1 of 19 rows of spans are left out: their sentences are longer than 128 tokens"
        in result.notes
    )

    sentences = tagged(tmp_path, "a.txt", 5, 1)
    many = "\n".join(f"{word}\t{TAGS[word]}" for word in long.split())
    sentences.write_text(sentences.read_text(encoding="utf-8") + "\n" + many + "\n")
    result = kinfolk.probe(bert, sentences, tagged(tmp_path, "b.txt", 5, 2), seeds=1)
    assert "1 of 11 rows are longer than 128 tokens: they were read in parts" in result.notes


def in_context(folder: Path, name: str, count: int) -> Path:
    """Write words in two sentences, whose label is whether they are the same word."""
    lines = []
    for number in range(count):
        words = NOUNS[number % 3], NOUNS[(number // 3) % 3]
        texts = f"the {words[0]} the", f"a {words[1]}"
        record = {"sentence1": texts[0], "sentence2": texts[1], "label": words[0] == words[1]}
        ends = {"start1": 4, "end1": 4 + len(words[0]), "start2": 2, "end2": 2 + len(words[1])}
        lines.append(json.dumps({**record, **ends}))
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / name


def test_rows_of_spans_of_different_forms_are_refused(
    bert: tuple[LanguageModel, Tokenizer], tmp_path: Path
) -> None:
    one = edges(tmp_path, "one.jsonl", 9, 1, single=True)
    two, context = edges(tmp_path, "two.jsonl", 9, 1), in_context(tmp_path, "context.jsonl", 9)
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(two.read_text(encoding="utf-8") + one.read_text(encoding="utf-8"))
    said = "line 1 of the dev rows has two spans in one sentence, and line 1 of the train rows one"
    with pytest.raises(UserError, match=said):
        kinfolk.probe(bert, one, two, seeds=1)
    with pytest.raises(UserError, match="line 10 of the train rows has one span, and line 1"):
        kinfolk.probe(bert, mixed, two, seeds=1)
    with pytest.raises(UserError, match="line 10 of the test rows has one span, and line 1"):
        kinfolk.probe(bert, two, two, mixed, seeds=1)
    with pytest.raises(UserError, match="and line 1 of the train rows two spans in two"):
        kinfolk.probe(bert, context, two, seeds=1)


def test_words_in_context_are_probed(bert: tuple[LanguageModel, Tokenizer], tmp_path: Path) -> None:
    """Whether both words are the same is in the products of their vectors."""
    files = [in_context(tmp_path, f"{n}.jsonl", 90) for n in range(3)]
    result = kinfolk.probe(bert, *files, seeds=1)
    assert (result.task, result.labels, result.test_rows) == ("spans", 2, 90)
    assert result.majority is not None and result.majority < 0.7
    assert result.scores[0].layers[0].score > 0.95


def test_words_in_context(tmp_path: Path) -> None:
    """The format of WiC: ranges of characters in two sentences."""
    record = {
        "word": "bank",
        "sentence1": "We sat at the bank.",
        "sentence2": "The bank failed",
        "start1": 14,
        "end1": 18,
        "start2": 4,
        "end2": 8,
        "label": False,
    }
    file = tmp_path / "wic.jsonl"
    file.write_text(json.dumps(record) + "\n", encoding="utf-8")
    (row,) = read_spans(file)
    assert [span.text for span in row.spans] == ["bank.", "bank"]
    assert row.label == "false" and not row.same_sentence and is_span_file(file)


def test_relations_of_words_and_their_heads(tmp_path: Path) -> None:
    words = [("The", 2, "det"), ("cat", 3, "nsubj:pass"), ("slept", 0, "root")]
    cells = [
        [str(n), w, w, "X", "_", "_", str(h), r, "_", "_"] for n, (w, h, r) in enumerate(words, 1)
    ]
    file = tmp_path / "a.conllu"
    file.write_text("\n".join("\t".join(row) for row in cells) + "\n\n", encoding="utf-8")
    rows = read_spans(file)
    assert [(row.texts, row.label) for row in rows] == [
        (("The", "cat"), "det"),
        (("cat", "slept"), "nsubj"),
    ]


def test_an_mlp_probe_learns_what_a_linear_one_cannot() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    probe = fit_mlp_probe([x[:400]], y[:400], [x[400:500]], y[400:500], outputs=2)
    assert float((probe([x[500:]]).argmax(1) == y[500:]).float().mean()) > 0.85
    again = fit_mlp_probe([x[:400]], y[:400], [x[400:500]], y[400:500], outputs=2)
    assert torch.equal(probe([x]), again([x]))


def test_an_mlp_probe_gives_the_weight_of_a_mix_to_the_layer_that_knows() -> None:
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(2, 600, 2, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    layers = [noise, x]

    def split(part: slice) -> list[torch.Tensor]:
        return [layer[part] for layer in layers]

    train, dev, test = slice(400), slice(400, 500), slice(500, 600)
    probe = fit_mlp_probe(split(train), y[train], split(dev), y[dev], outputs=2)
    assert probe.mix_weights[1] > 0.7 and sum(probe.mix_weights) == pytest.approx(1)
    assert float((probe(split(test)).argmax(1) == y[test]).float().mean()) > 0.8


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"text": "a b", "targets": [{"label": "x"}]}', "a target needs span1"),
        ('{"text": "a b", "targets": [{"span1": [1, 3], "label": "x"}]}', "outside of its 2 words"),
        ('{"text": "a b", "targets": [{"span1": 1, "label": "x"}]}', "has no spans with a label"),
        ('{"text": "a b", "targets": [{"span1": [0, 1]}]}', "has no spans with a label"),
        ('{"text": "a b", "targets": []}', "has no labelled spans"),
    ],
)
def test_bad_spans_are_one_sentence(line: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    file.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        read_spans(file)


def test_what_cannot_be_probed_is_refused(
    bert: tuple[LanguageModel, Tokenizer], tmp_path: Path
) -> None:
    file = tagged(tmp_path, "a.txt", 5, 1)
    with pytest.raises(UserError, match="no such file"):
        kinfolk.probe(bert, tmp_path / "none", file)
    with pytest.raises(UserError, match="--seeds must be at least 1"):
        kinfolk.probe(bert, file, file, seeds=0)
    with pytest.raises(UserError, match="--task coref has no probes: choose classification, reg"):
        kinfolk.probe(bert, file, file, task="coref")
    with pytest.raises(UserError, match="is neither CoNLL-U nor JSON lines of spans"):
        kinfolk.probe(bert, file, file, task="spans")


def test_probes_of_entities_show_the_accuracy_beside_the_selectivity(
    bert: tuple[LanguageModel, Tokenizer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The score is F1; selectivity and the most frequent label are in accuracy."""
    lines = tagged(tmp_path, "a.txt", 20, 1).read_text(encoding="utf-8")
    file = tmp_path / "entities.txt"
    marked = lines.replace("NOUN", "B-X").replace("VERB", "O").replace("DET", "O")
    file.write_text(marked, encoding="utf-8")
    result = kinfolk.probe(bert, file, file, seeds=1)
    assert result.metric == "f1"
    for own, control, left in zip(result.accuracy, result.control, result.selectivity, strict=True):
        for a, b, c in zip(own.layers, control.layers, left.layers, strict=True):
            assert a.score - b.score == pytest.approx(c.score)
    assert result.notes[0].startswith("--train and --dev are the same file")
    show_probes(result)
    printed = capsys.readouterr().out
    first, second = printed.index("tag: f1"), printed.index("tag: accuracy")
    assert first < second < printed.index("selectivity") < printed.index("most frequent label")
