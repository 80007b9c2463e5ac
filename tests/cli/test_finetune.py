"""`kinfolk finetune`: labelled files in, a scored model out; every mistake is a sentence."""

import json
import shutil
from pathlib import Path

import pytest

from kinfolk.training.provenance import Provenance
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.folders import find_model_folder
from support import tables
from support.runs import Home, Kinfolk, Said, tree

QUICK = ("--epochs", "1", "--batch", "8", "--device", "cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a labelled file of each form, good ones and bad ones."""
    folder = tmp_path_factory.mktemp("files")
    tables.table(folder / "train.tsv")
    tables.table(folder / "dev.tsv", 12, seed=1)
    tables.table(folder / "bare.tsv", 12, seed=1, labelled=False)
    tables.entities(folder / "ner.txt")
    tables.questions(folder / "squad.json")
    tables.pairs(folder / "train.en", folder / "train.de")
    tables.pairs(folder / "dev.en", folder / "dev.de", 6, seed=1)
    return folder


def ok(said: Said) -> Said:
    assert said.code == 0, said
    return said


def test_a_run_says_what_it_read_and_ends_with_its_scores(
    kinfolk: Kinfolk, runs: dict[str, Path], files: Path, tmp_path: Path
) -> None:
    said = ok(
        kinfolk(
            *("finetune", runs["bert"], "--train", files / "train.tsv"),
            *("--dev", files / "dev.tsv", "-o", tmp_path / "run", *QUICK),
        )
    )
    assert said.err.startswith("train.tsv: classify column sentence by column label\n")
    assert "step 5/5  loss " in said.err and "  accuracy " in said.err
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    header, *lines = said.out.splitlines()[:-2]
    assert header.split() == ["dev", "majority", "TF-IDF"]
    shown = {name: values for name, *values in (line.rsplit(maxsplit=3) for line in lines)}
    columns = [scores["dev"], scores["baselines"]["majority"], scores["baselines"]["tfidf"]]
    for title, name in (("accuracy", "accuracy"), ("F1", "f1")):
        expected = [column[name] for column in columns]
        assert [*map(float, shown[title])] == pytest.approx(expected, abs=1e-4)
    assert "warning: dev accuracy" in said.err  # after 5 steps
    assert scores["messages"] == said.err.splitlines()[-len(scores["messages"]) :]
    best = find_model_folder(tmp_path / "run")
    shown = tmp_path / "run" / "checkpoints" / "best"
    assert said.out.splitlines()[-2] == f"best model: {shown}"
    assert shown.resolve() == best
    following = f"next:       kinfolk evaluate {tmp_path / 'run'} --test FILE"
    assert said.out.splitlines()[-1] == following
    assert (best / "config.json").is_file()


def test_it_learns_what_one_word_decides(kinfolk: Kinfolk, files: Path, tmp_path: Path) -> None:
    options = ("--epochs", "16", "--batch", "8", "--rate", "5e-3", "--device", "cpu", "--json")
    said = kinfolk(
        *("finetune", "bert/nano", "--train", files / "train.tsv"),
        *("--dev", files / "dev.tsv", "-o", tmp_path / "run", *options),
    )
    found = json.loads(ok(said).out)
    assert found["metric"] == "accuracy" and found["run"] == str(tmp_path / "run")
    assert found["dev"]["accuracy"] == 1.0
    assert found["baselines"]["majority"]["accuracy"] < 0.7
    assert found["baselines"]["tfidf"]["accuracy"] > 0.7
    assert Path(found["model"]) == find_model_folder(tmp_path / "run")


def test_seeds_give_a_mean_a_spread_and_the_best_of_them(
    kinfolk: Kinfolk, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    asked = ("finetune", "bert/nano", "--train", files / "train.tsv", "--dev", files / "dev.tsv")
    said = ok(kinfolk(*asked, "-o", out, "--seeds", "3", *QUICK))
    summary = json.loads((out / "scores.json").read_text())
    each = [one["dev"]["accuracy"] for one in summary["seeds"]]
    assert summary["dev"] == pytest.approx(sum(each) / 3)
    assert each[int(summary["best"].removeprefix("seed-"))] == max(each)
    assert (out / "best").resolve().name == summary["best"]
    recipes = [FineTuneRecipe.read(out / f"seed-{n}" / "recipe.json") for n in range(3)]
    assert [recipe.train.seed for recipe in recipes] == [0, 1, 2]
    columns = ["seed-0", "seed-1", "seed-2", "mean", "std", "majority", "TF-IDF"]
    assert said.out.split("\n")[0].split() == columns
    shown = next(line.split() for line in said.out.splitlines() if line.startswith("accuracy"))
    baselines = [summary["baselines"][name]["accuracy"] for name in ("majority", "tfidf")]
    expected = [summary["dev"], summary["spread"], *baselines]
    assert [*map(float, shown[-4:])] == pytest.approx(expected, abs=1e-4)
    assert ok(kinfolk("predict", out, files / "bare.tsv")).out.count("\n") == 13


def test_seeds_that_were_stopped_go_on_to_the_same_end(
    kinfolk: Kinfolk, files: Path, tmp_path: Path
) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    asked = ("finetune", "bert/nano", "--train", files / "train.tsv", "--seeds", "3", *QUICK)
    ok(kinfolk(*asked, "-o", out))
    shutil.copytree(out, whole, symlinks=True)
    (out / "scores.json").unlink()
    (out / "seed-1" / "scores.json").unlink()
    shutil.rmtree(out / "seed-1" / "checkpoints")
    shutil.rmtree(out / "seed-2")
    (out / "seed-2").mkdir()
    ok(kinfolk("finetune", "--resume", out))
    names = [f"seed-{n}/checkpoints/last/model.safetensors" for n in range(3)]
    assert tree(out, names) == tree(whole, names)
    assert json.loads((out / "scores.json").read_text()) == json.loads(
        (whole / "scores.json").read_text()
    )
    first, last = (Provenance.read(out / f"seed-{n}") for n in (0, 2))
    assert first is not None and first == last  # the command that asked for three seeds


def test_scratch_forgets_the_weights(
    kinfolk: Kinfolk, runs: dict[str, Path], files: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    name = "bert.encoder.layer.0.attention.self.value.weight"
    kept = load_file(find_model_folder(runs["bert"]) / "model.safetensors")[name]
    same = []
    for number, more in enumerate(((), ("--scratch",))):
        out = tmp_path / str(number)
        asked = ("finetune", runs["bert"], "--train", files / "train.tsv", "-o", out)
        ok(kinfolk(*asked, *QUICK, "--rate", "1e-15", *more))
        found = load_file(find_model_folder(out) / "model.safetensors")
        same.append(bool((found[name] == kept).all()))
    assert same == [True, False]


def test_options_reach_the_recipe(
    kinfolk: Kinfolk, home: Home, files: Path, tmp_path: Path
) -> None:
    words = (
        "--epochs 0.5 --batch 8 --rate 2e-3 --length 20 --seed 7 --patience 2 --thaw --noise 0.1 "
        "--class-weights balanced --layer-decay 0.9 --attack 0.5 --accumulate 2 --schedule slanted "
        "--metric f1 --positive bad --way head train.grad_clip=0.5 finetune.evals_per_epoch=2 "
        "--device cpu"
    )
    asked = ("finetune", "bert/nano", "--tokenizer", home.tokenizer, "--train", files / "train.tsv")
    ok(kinfolk(*asked, "-o", tmp_path / "run", *words.split()))
    found = FineTuneRecipe.read(tmp_path / "run" / "recipe.json")
    train, finetune_config, way = found.train, found.finetune, found.formulations[0]
    assert (train.batch_size, train.lr, train.seed, train.gradient_accumulation) == (8, 2e-3, 7, 2)
    assert (train.schedule, train.grad_clip) == ("slanted", 0.5)
    assert (
        finetune_config.epochs,
        finetune_config.early_stopping_patience,
        finetune_config.gradual_unfreezing,
        finetune_config.noisy_tune,
    ) == (0.5, 2, True, 0.1)
    assert (
        finetune_config.class_weights,
        finetune_config.layer_lr_decay,
        finetune_config.adversarial_epsilon,
    ) == ("balanced", 0.9, 0.5)
    assert finetune_config.evals_per_epoch == 2
    assert (way.name, way.max_length, way.task.main_metric, way.task.positive_label) == (
        "head",
        20,
        "f1",
        "bad",
    )
    assert found.model.backbone.vocab_size == 420


def test_lines_of_two_files_are_learned_as_pairs(
    kinfolk: Kinfolk, runs: dict[str, Path], files: Path, tmp_path: Path
) -> None:
    said = kinfolk(
        *("finetune", runs["t5"], "--train", files / "train.en", "--target", files / "train.de"),
        *("--dev", files / "dev.en", "--dev-target", files / "dev.de"),
        *("-o", tmp_path / "run", *QUICK, "--json"),
    )
    assert json.loads(ok(said).out)["metric"] == "bleu"
    assert "write line n of train.de from line n of train.en" in said.err
    lines = ok(kinfolk("predict", tmp_path / "run", files / "dev.en")).out
    assert lines.count("\n") == 6
    alone = kinfolk("evaluate", tmp_path / "run", "--test", files / "dev.en")
    assert (
        alone.code == 2 and "scoring needs the lines of the second one: add --target" in alone.err
    )


def test_several_files_are_learned_together(
    kinfolk: Kinfolk, runs: dict[str, Path], files: Path, tmp_path: Path
) -> None:
    two = ("--train", files / "train.tsv", "--train", files / "ner.txt")
    said = kinfolk(
        *("finetune", runs["t5"], *two, "--prefix", "judge: ", "--prefix", "tag: "),
        *("--temperature", "2", "-o", tmp_path / "run", *QUICK),
    )
    ok(said)
    found = FineTuneRecipe.read(tmp_path / "run" / "recipe.json")
    assert [way.task.kind for way in found.formulations] == ["classify", "tag"]
    assert [way.task.prefix for way in found.formulations] == ["judge: ", "tag: "]
    assert found.finetune.mixing_temperature == 2
    tagged = kinfolk("predict", tmp_path / "run", files / "ner.txt", "--task-number", "2")
    assert len(ok(tagged).out.splitlines()[0].split()) == 3
    wrong = kinfolk("predict", tmp_path / "run", files / "ner.txt", "--task-number", "3")
    assert wrong.code == 2 and "has the tasks 1 to 2, one for each" in wrong.err


def test_a_teacher_is_learned_from(kinfolk: Kinfolk, files: Path, tmp_path: Path) -> None:
    asked = ("finetune", "bert/nano", "--train", files / "train.tsv", *QUICK)
    ok(kinfolk(*asked, "-o", tmp_path / "teacher"))
    taught = ("--teacher", tmp_path / "teacher", "--teaching", "0.7")
    ok(kinfolk(*asked, "-o", tmp_path / "pupil", *taught))
    found = FineTuneRecipe.read(tmp_path / "pupil" / "recipe.json")
    assert found.teacher == str(tmp_path / "teacher")
    assert getattr(found.formulations[0], "distillation_weight") == 0.7  # noqa: B009  # not every way has it


def test_a_class_is_a_word_in_a_pattern(
    kinfolk: Kinfolk, runs: dict[str, Path], files: Path, tmp_path: Path
) -> None:
    asked = ("--way", "cloze", "--pattern", "{text} it was {answer}", "--words", "grey,fine")
    out = tmp_path / "run"
    ok(kinfolk("finetune", runs["gpt2"], "--train", files / "train.tsv", "-o", out, *asked, *QUICK))
    way = FineTuneRecipe.read(out / "recipe.json").formulations[0]
    assert (way.name, getattr(way, "verbalizer")) == ("cloze", ("grey", "fine"))  # noqa: B009


def test_a_suite_ends_in_a_table_with_a_mean(kinfolk: Kinfolk, files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    for name in ("mood", "names", "prose", "pairs"):
        (folder / name).mkdir(parents=True)
    for split in ("train", "test"):
        tables.table(folder / "mood" / f"{split}.tsv", 30, seed=len(split))
        tables.pairs(folder / "pairs" / f"{split}.en", folder / "pairs" / f"{split}.de")
    tables.entities(folder / "names" / "train.txt", 40)
    tables.write(folder / "prose" / "text.txt", ["nothing but text"])
    asked = ("finetune", "bert/nano", "--suite", "glue", folder, *QUICK, "--limit", "20")
    said = ok(kinfolk(*asked, "-o", tmp_path / "run"))
    lines = {line.split()[0]: line.split() for line in said.out.splitlines()}
    assert lines["mood"][1:6] == ["classify", "head", "18", "20", "test"]
    assert lines["names"][1:6] == ["tag", "head", "18", "2", "held"]
    assert lines["glue"][1:3] == ["task", "formulation"]
    written = json.loads((tmp_path / "run" / "suite.json").read_text())
    scores = {one["name"]: one.get("score") for one in written["sets"]}
    assert scores["pairs"] is None and scores["prose"] is None
    assert written["mean"] == pytest.approx((scores["mood"] + scores["names"]) / 2)
    assert float(lines["mean"][1]) == pytest.approx(written["mean"], abs=0.05)
    assert "pairs skipped: bert does not support write tasks" in said.err
    assert "prose skipped: text.txt is read as text, without labels" in said.err
    one = ok(kinfolk(*asked, "-o", tmp_path / "one", "--only", "mood", "--json"))
    assert [part["name"] for part in json.loads(one.out)["sets"]] == ["mood"]


def test_what_is_mended_or_cut_is_said(kinfolk: Kinfolk, files: Path, tmp_path: Path) -> None:
    broken = (files / "ner.txt").read_text().replace("B-PER", "I-PER", 1)
    (tmp_path / "ner.txt").write_text(broken)
    said = kinfolk("finetune", "bert/nano", "--train", tmp_path / "ner.txt", "-o", tmp_path / "a",
                   *QUICK)  # fmt: skip
    assert "1 tags that did not nest repaired, in the sentences on lines: 1" in ok(said).err
    lost = (files / "squad.json").read_text().replace('"text": "', '"text": "no ', 1)
    (tmp_path / "squad.json").write_text(lost)
    said = kinfolk("finetune", "bert/nano", "--train", tmp_path / "squad.json", "-o",
                   tmp_path / "b", *QUICK, "--null-score-diff-threshold", "2.5")  # fmt: skip
    (formulation,) = json.loads((tmp_path / "b" / "recipe.json").read_text())["formulations"]
    assert formulation["null_score_diff_threshold"] == 2.5
    assert "1 answers not found in their context: q0: 'no " in ok(said).err
    said = kinfolk("finetune", "bert/nano", "--train", files / "train.tsv", "-o", tmp_path / "c",
                   *QUICK, "--length", "8")  # fmt: skip
    assert "of 36 rows truncated to 8 tokens (--length)" in ok(said).err


def test_questions_whose_answers_are_all_elsewhere_are_one_sentence(
    kinfolk: Kinfolk, tmp_path: Path
) -> None:
    asked = [
        {"id": f"q{i}", "question": "Who?", "answers": [{"text": "The dog", "answer_start": 99}]}
        for i in range(12)
    ]
    data = {"data": [{"paragraphs": [{"context": "The cat sat.", "qas": asked}]}]}
    (tmp_path / "lost.json").write_text(json.dumps(data))
    said = kinfolk("finetune", "bert/nano", "--train", tmp_path / "lost.json", "-o",
                   tmp_path / "run", *QUICK)  # fmt: skip
    assert said.code == 2
    assert "lost.json has no rows to learn from: 12 answers not found in their" in said.sentence
    assert not (tmp_path / "run").exists()


def test_labels_that_only_dev_has_are_named(kinfolk: Kinfolk, files: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text((files / "dev.tsv").read_text() + "a day\tneutral\n")
    said = kinfolk("finetune", "bert/nano", "--train", files / "train.tsv", "--dev",
                   tmp_path / "dev.tsv", "-o", tmp_path / "run", *QUICK)  # fmt: skip
    assert "dev.tsv has labels that train.tsv lacks, counted as errors: neutral (1)" in (
        ok(said).err
    )


# The words of a command, with {names} of folders; then what its sentence must say.
MISTAKES = [
    ("bert/nano --train {files}/none -o {new}", "no such file: {files}/none"),
    ("bert/nano --train {files} -o {new}", "{files} is a folder: give one of its files (TSV"),
    ("bret/nano --train {train} -o {new}", "bret/nano is neither a folder nor a family"),
    ("bert/tyni --train {train} -o {new}", "bert has no size 'tyni': did you mean tiny"),
    ("{tmp} --train {train} -o {new}", "{tmp} is neither a run"),
    ("bert/nano --train {train}", "missing -o RUN"),
    ("bert/nano -o {new}", "give --train FILE or --suite NAME DIR"),
    (
        "ulmfit/nano --stages --train {train} -o {new}",
        "--stages needs a list before --train: --stages general,target,task",
    ),
    ("--train {train} -o {new}", "missing MODEL"),
    ("bert/nano --train {train} -o {files}", "{files} already exists"),
    ("bert/nano --train {train} -o {files} --seeds 2", "{files} already exists"),
    ("bert/nano --train {train} -o {new} --task classfy", "classfy"),
    (
        "bert/nano --train {train} -o {new} --way haed",
        "unknown formulation 'haed': did you mean head",
    ),
    (
        "bert/nano --train {train} -o {new} --way prompt",
        "bert does not support the formulation 'prompt'",
    ),
    (
        "bert/nano --train {train} -o {new} --metric bleu",
        "the metric 'bleu' does not apply to classify tasks",
    ),
    (
        "bert/nano --train {train} -o {new} --positive ugly",
        "--positive-label ugly is not a label of",
    ),
    ("bert/nano --train {train} -o {new} --columns text,label", "has no 'text'"),
    ("bert/nano --train {train} --dev {files}/bare.tsv -o {new}", "has no 'label'"),
    ("bert/nano --train {bad}/ragged.tsv -o {new}", "line 4 of {bad}/ragged.tsv has 3 columns"),
    ("bert/nano --train {bad}/nan.tsv -o {new}", "label in line 3 of {bad}/nan.tsv (label) is"),
    ("bert/nano --train {bad}/hollow.tsv -o {new}", "line 3 of {bad}/hollow.tsv (label) is empty"),
    ("bert/nano --train {bad}/one.tsv -o {new}", "have the label good: classification needs"),
    ("bert/nano --train {train} --dev {bad}/silent.jsonl -o {new}", "has no 'label'|no label"),
    ("bert/nano --train {bad}/ragged.txt -o {new}", "line 5 of {bad}/ragged.txt has 1 columns"),
    ("{t5} --train {files}/train.en --target {files}/dev.de -o {new}", "24 lines and"),
    ("{t5} --train {files}/train.en --target {files}/none -o {new}", "no such file: {files}/none"),
    (
        "bert/nano --train {files}/train.en --target {files}/train.de -o {new}",
        "bert does not support write tasks (supported: classify, regress, choose, tag, span, "
        "coref, extract): choose another family, or say what {files}/train.en holds with --task",
    ),
    ("bert/nano --train {train} -o {new} --length 9999", "--length 9999 exceeds"),
    ("bert/nano --train {train} -o {new} --length 4", "--length must be at least 8 (got 4)"),
    ("bert/nano --train {train} -o {new} --epochs 0", "--epochs=0: it must be above 0"),
    ("bert/nano --train {train} -o {new} --class-weights heavy", "none or balanced"),
    ("bert/nano --train {train} -o {new} train.stpes=5", "did you mean steps?"),
    (
        "bert/nano --train {train} -o {new} --null-score-diff-threshold 1",
        "--null-score-diff-threshold does not apply to the formulation 'head' of classify tasks",
    ),
    (
        "bert/nano --train {train} -o {new} --formulation features --vectors {tmp}/none",
        "no such file",
    ),
    (
        "bert/nano --train {train} -o {new} --formulation features --feature-layers none",
        "feature_layers='none' leaves the word vectors alone: give some (--vectors FILE)",
    ),
    (
        "bert/nano --train {train} -o {new} --formulation features --feature-layers top",
        "feature_layers='top': it must be mixed, last or none",
    ),
    (
        "bert/nano --train {train} -o {new} --formulation features --task-network lstm",
        "--task-network lstm does not apply to classify tasks: there are bilstm_classifier, bcn",
    ),
    (
        "bert/nano --train {train} -o {new} --output-features",
        "--output-features does not apply to the formulation 'head'",
    ),
    (
        "bilstm/nano --train {train} -o {new} --formulation features",
        "bilstm does not support the formulation 'features' for classify tasks",
    ),
    (
        "bert/nano --train {train} -o {new} --pattern {{answer}}",
        "--pattern does not apply to the formulation 'head'",
    ),
    ("bert/nano --train {train} -o {new} --seed 1 --seeds 2", "cannot be combined with --seed"),
    ("bert/nano --train {train} -o {new} --seeds 0", "Invalid value for '--seeds': "),
    (
        "bert/nano --train {train} -o {new} --teaching 0.5",
        "requires --teacher",
    ),
    ("bert/nano --train {train} -o {new} --teacher {tmp}/none", "no such folder: {tmp}/none"),
    ("bert/nano --train {train} -o {new} --teacher {bad}/loop", "no such folder: {bad}/loop"),
    ("bert/nano --train {bad}/loop -o {new}", "no such file: {bad}/loop"),
    ("bert/nano --train {bad}/plain.txt -o {new}", "plain.txt was read as text without labels"),
    ("bert/nano --train {bad}/fast.txt -o {new}", "line 2 of {bad}/fast.txt has several labels"),
    ("bert/nano --train {bad}/mixed.txt -o {new}", "mixed.txt has the tag 'PER', and other tags"),
    ("bert/nano --train {train} -o {new} --limit 5", "--tasks and --limit require --suite"),
    ("bert/nano --train {train} --train {ner} --dev {train} -o {new}", "got 2 --train and 1 --dev"),
    ("bert/nano --train {train} --train {ner} -o {new}", "trained on together as text"),
    (
        "cvt/nano --train {train} -o {new}",
        "cvt also learns from text without labels: give it with --unlabelled FILE, or train on the",
    ),
    (
        "cvt/nano --train {train} --unlabelled {bad}/blank.txt -o {new}",
        "{bad}/blank.txt: no unlabelled text",
    ),
    ("cvt/nano --train {train} --unlabelled {bad}/latin.txt -o {new}", "not UTF-8 at byte 1"),
    (
        "bert/nano --train {train} --unlabelled {bad}/plain.txt -o {new}",
        "--unlabelled does not apply to the formulation 'head' of bert for classify tasks",
    ),
    ("bert/nano --train {train} --formulation cross_view -o {new}", "(supported: features, head)"),
    (
        "cvt/nano --train {train} --unlabelled {bad}/plain.txt -o {new} --dropout 1",
        "--dropout=1: it must be from 0 to less than 1",
    ),
    ("bert/nano --suite glue {tmp}/none -o {new}", "no such folder: {tmp}/none"),
    ("bert/nano --suite glue {sets} -o {new} --only sst9", "--tasks sst9: unknown dataset"),
    ("--resume {tmp}", "is not a run: it has no recipe.json"),
    ("--resume {bert}", "{bert} is a run of pretrain"),
    ("bert/nano --resume {bert}", "cannot be combined with other options"),
    ("--resume {bert} --epochs 3", "cannot be combined with other options"),
    ("bert/nano --suite glue {sets} -o {new} --metric f1", "its own files, tasks and metrics"),
]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write labelled files that are wrong."""
    folder = tmp_path_factory.mktemp("bad")
    rows = [f"{text}\t{label}" for text, label in tables.reviews(6)]
    top = "sentence\tlabel"
    tables.write(folder / "ragged.tsv", [top, *rows[:2], f"{rows[2]}\tmore", *rows[3:]])
    tables.write(folder / "nan.tsv", [top, rows[0], "a day\tNaN", *rows[1:]])
    tables.write(folder / "hollow.tsv", [top, rows[0], "a day\t", *rows[1:]])
    tables.write(folder / "one.tsv", [top, *rows[::2]])
    (folder / "sets" / "sst2").mkdir(parents=True)
    tables.write(folder / "sets" / "sst2" / "train.tsv", [top, *rows])
    tables.write(folder / "silent.jsonl", ['{"sentence": "a day"}'])
    tables.write(folder / "plain.txt", [text for text, _ in tables.reviews(6)])
    tables.write(folder / "fast.txt", ["__label__a a day", "__label__a __label__b a day"])
    tables.write(folder / "mixed.txt", ["a O", "king B-PER", "", "Ann PER", "ran O"])
    (folder / "blank.txt").write_text("\n \n", encoding="utf-8")
    (folder / "latin.txt").write_bytes("für alle\n".encode("latin-1"))
    (folder / "loop").symlink_to(folder / "loop")
    words = ["a O", "king B-PER", "", "the O", "cat", "saw O", ""]
    tables.write(folder / "ragged.txt", [*words, *["a O", "dog B-PER", ""] * 9])
    return folder


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_sentence(
    words: str,
    expected: str,
    kinfolk: Kinfolk,
    home: Home,
    runs: dict[str, Path],
    files: Path,
    bad: Path,
    tmp_path: Path,
) -> None:
    folders = {
        **runs,
        "bad": bad,
        "files": files,
        "train": files / "train.tsv",
        "ner": files / "ner.txt",
        "new": tmp_path / "new",
        "sets": bad / "sets",
        "tmp": tmp_path,
        "tok": home.tokenizer,
    }
    before = tree(files)
    said = kinfolk("finetune", *(word.format(**folders) for word in words.split()))
    assert said.code == 2 and said.out == "", said
    assert "Traceback" not in said.err
    sentence = said.sentence
    assert sentence.startswith("error: ")
    assert any(choice.format(**folders) in sentence for choice in expected.split("|")), sentence
    assert list(tmp_path.iterdir()) == []
    assert tree(files) == before
