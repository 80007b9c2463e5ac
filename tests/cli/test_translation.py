"""`kinfolk pretrain` on pairs of texts: one command from two files to BLEU."""

import gzip
import json
import random
import shutil
from pathlib import Path

import pytest

from kinfolk.data.corpus import Corpus
from kinfolk.data.parallel_text import TargetDocuments, pair_lengths
from kinfolk.metrics.baselines import entropy
from kinfolk.training.log import read
from kinfolk.workflows.recipe import Recipe
from support.runs import Home, Kinfolk, tree

ENGLISH = ("a dog", "the man", "two cats", "the child", "runs", "sleeps", "plays", "outside", "now")
GERMAN = (
    "ein Hund",
    "der Mann",
    "zwei Katzen",
    "das Kind",
    "rennt",
    "schläft",
    "spielt",
    "draußen",
)
GERMAN = (*GERMAN, "jetzt")
FEW = ("--length", 32, "--batch", 4, "--steps", 8, "--device", "cpu", "--vocab", 380)
FEW = (*FEW, "train.save_every=4", "train.eval_every=4", "model.dropout=0.1")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of three parts, in two languages; and the same as a table."""
    folder, chance = tmp_path_factory.mktemp("texts"), random.Random(0)
    for name, count in (("train", 120), ("dev", 10)):
        chosen = [
            (chance.randrange(4), chance.randrange(4, 7), chance.randrange(7, 9))
            for _ in range(count)
        ]
        sides = [
            [" ".join(words[i] for i in three) for three in chosen] for words in (ENGLISH, GERMAN)
        ]
        for language, side in zip(("en", "de"), sides, strict=True):
            (folder / f"{name}.{language}").write_text("\n".join(side) + "\n", encoding="utf-8")
        table = "".join(f"{a}\t{b}\n" for a, b in zip(*sides, strict=True))
        (folder / f"{name}.tsv").write_text(table, encoding="utf-8")
    return folder


def named(texts: Path) -> tuple[object, ...]:
    return (
        *("--source", texts / "train.en", "--target", texts / "train.de"),
        *("--dev-source", texts / "dev.en", "--dev-target", texts / "dev.de"),
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(texts: Path, folders: Path, kinfolk: Kinfolk) -> Path:
    """A run of a few steps, made once."""
    out = folders / "run"
    if not out.exists():
        said = kinfolk("pretrain", "transformer/nano", *named(texts), "-o", out, *FEW, "--json")
        assert said.code == 0, said.err
        (folders / "said.json").write_text(said.out, encoding="utf-8")
    return out


def test_one_command_leaves_a_model_and_its_bleu(run: Path, folders: Path, texts: Path) -> None:
    said = json.loads((folders / "said.json").read_text(encoding="utf-8"))
    assert said["run"] == str(run) and said["pairs"] == 10
    kept = json.loads((run / "translation.json").read_text(encoding="utf-8"))
    assert {name: said[name] for name in kept} == kept
    assert 0 <= kept["bleu"] <= 100 and "tok:13a" in kept["signature"]
    written = (run / "translations.txt").read_text(encoding="utf-8")
    assert written.count("\n") == 10
    recipe = Recipe.read(run / "recipe.json")
    assert recipe.name == "transformer/nano" and recipe.corpus == str(run / "corpus")
    assert type(recipe.objective).__name__ == "Seq2Seq" and recipe.objective.label_smoothing == 0.1
    assert Corpus.open(run / "corpus").documents == 120
    assert Corpus.open(run / "corpus" / "holdout").documents == 10
    assert recipe.model.vocab_size == Corpus.open(run / "corpus").vocab_size == 380
    log = read(run)
    assert len(log) == 8 and "eval_loss" in log[3]
    # The plain loss is told beside the smoothed one that is learned by.
    assert all(e["loss"] == pytest.approx(sum(e["losses"].values()), rel=1e-5) for e in log)
    assert [path.name for path in folders.iterdir() if path.name.startswith(".")] == []


def test_what_comes_next_is_a_command_for_pairs(run: Path, kinfolk: Kinfolk) -> None:
    (run / "report.html").unlink()
    said = kinfolk("pretrain", "--resume", run)
    assert said.code == 0, said.err
    assert f"next:   kinfolk translate {run} FILE\n        kinfolk evaluate {run} --s" in said.out


def test_a_run_that_was_stopped_arrives_where_it_would_have(
    run: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    cut = shutil.copytree(run, tmp_path / "run", symlinks=True)
    for name in ("translation.json", "translations.txt"):
        (cut / name).unlink()
    shutil.rmtree(cut / "checkpoints" / "step-00000008")
    said = kinfolk("pretrain", "--resume", cut)
    assert said.code == 0, said.err
    assert "BLEU " in said.out and "on 10 pairs" in said.out
    last = [tree(folder / "checkpoints" / "last") for folder in (cut, run)]
    assert last[0] == last[1]
    for name in ("translation.json", "translations.txt", "log.jsonl"):
        assert (cut / name).read_bytes() == (run / name).read_bytes()


def test_a_run_that_was_killed_before_its_bleu_gets_it(
    run: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    cut = shutil.copytree(run, tmp_path / "run", symlinks=True)
    (cut / "translation.json").unlink()
    said = kinfolk("pretrain", "--resume", cut)
    assert said.code == 0 and "BLEU " in said.out and (cut / "report.html").is_file()
    assert (cut / "translation.json").read_bytes() == (run / "translation.json").read_bytes()
    assert kinfolk("pretrain", "--resume", cut).code == 2  # it is complete


def test_a_saved_model_is_scored_on_other_files(run: Path, texts: Path, kinfolk: Kinfolk) -> None:
    asked = ("evaluate", run, "--device", "cpu", "--json")
    found = json.loads(kinfolk(*asked, "--pairs", texts / "dev.tsv").out)
    assert found == json.loads((run / "translation.json").read_text(encoding="utf-8"))
    scores = json.loads(kinfolk(*asked, "--corpus", run / "corpus" / "holdout").out)
    assert scores["kind"] == "likelihood of each target, left to right, given its source"
    corpus = Corpus.open(run / "corpus" / "holdout")
    assert (
        scores["tokens"] == int(pair_lengths(corpus)[:, 1].sum()) + 10
    )  # each target's end is one
    assert scores["bytes"] == len((texts / "dev.de").read_bytes()) - 10  # less the ends of lines
    said = kinfolk("generate", run, "a dog runs now", "--max-tokens", 5, "--temperature", 0)
    assert said.code == 0


def test_t5_takes_a_table_and_a_prefix(texts: Path, kinfolk: Kinfolk, tmp_path: Path) -> None:
    out, task = tmp_path / "t5", "translate English to German: "
    asked = ("--pairs", texts / "train.tsv", "--dev-pairs", texts / "dev.tsv", "--prefix", task)
    said = kinfolk("pretrain", "t5/nano", *asked, "-o", out, *FEW, "--steps", 2, "--length", 64)
    assert said.code == 0, said.err
    corpus = Corpus.open(out / "corpus")
    tokenizer = corpus.tokenizer()
    first = (texts / "train.en").read_text(encoding="utf-8").split("\n")[0]
    size = int(pair_lengths(corpus)[0, 0])
    assert tokenizer.decode(corpus.document(0)[:size]) == task + first
    kept = (out / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(kept) == 10 and all(json.loads(row)["source"].startswith(task) for row in kept)


def test_a_tokenizer_of_ones_own_serves(
    run: Path, texts: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    out, few = tmp_path / "run", [word for word in FEW if word not in ("--vocab", 380)]
    asked = ("--pairs", texts / "train.tsv", "--tokenizer", run)
    said = kinfolk("pretrain", "transformer/nano", *asked, "-o", out, *few, "--steps", 1, "--json")
    assert said.code == 0, said.err
    assert Corpus.open(out / "corpus").tokenizer_hash == Corpus.open(run / "corpus").tokenizer_hash
    assert "bleu" not in json.loads(said.out)  # nothing to measure it on


def test_training_continues_from_a_folder_and_keeps_its_tokenizer(
    run: Path, texts: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    out, few = tmp_path / "run", [word for word in FEW if word not in ("--vocab", 380)]
    said = kinfolk("pretrain", run, *named(texts), "-o", out, *few, "--steps", 1, "--json")
    assert said.code == 0, said.err
    assert "bleu" in json.loads(said.out)
    recipe = Recipe.read(out / "recipe.json")
    assert Path(recipe.init_from).parent == (run / "checkpoints").resolve()
    assert Corpus.open(out / "corpus").tokenizer_hash == Corpus.open(run / "corpus").tokenizer_hash


def test_the_default_vocabulary_is_as_large_as_the_text_supports(
    texts: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    out, few = tmp_path / "run", [word for word in FEW if word not in ("--vocab", 380)]
    asked = ("pretrain", "transformer/nano", "--pairs", texts / "train.tsv", "-o", out)
    said = kinfolk(*asked, *few, "--steps", 1)
    assert said.code == 0, said.err
    assert 380 < Corpus.open(out / "corpus").vocab_size < 8192


# {who} {pairs} {v} are short for what most of them say.
MISTAKES = [
    ("{who} --source {t}/train.en -o {new}", "--source and --target must be given together"),
    ("{who} --dev-target {t}/dev.de -o {new}", "--dev-source and --dev-target must be given"),
    ("{who} --source {t}/train.en --target {t}/dev.de -o {new}", "120 lines and {t}/dev.de has 10"),
    ("{who} --pairs {t}/train.en -o {new}", "line 1 of {t}/train.en has no tab"),
    ("{who} --pairs {t}/none -o {new}", "{t}/none does not exist"),
    ("{who} {pairs} {v} --tokenizer {run} -o {new}", "--vocab-size does not apply"),
    (
        "{who} {pairs} --corpus {run}/corpus -o {new}",
        "cannot be combined with",
    ),
    ("{who} {pairs} --source {t}/train.en --target {t}/dev.de -o {new}", "give either"),
    (
        "{who} --corpus {run}/corpus --vocab 9 -o {new}",
        "--vocab-size requires --source",
    ),
    ("{who} {pairs} -o {run} {v}", "{run} already exists"),
    ("{who} {pairs} -o {new} --vocab 9", "vocab_size 9 is too small"),
    ("{who} {pairs} -o {new} {v} train.steps=x", "a whole number"),
    ("{who} {pairs} -o {new} {v} --device gpu", "unknown device 'gpu'"),
    ("{who} {pairs} -o {new} {v} --length 32 train.schedule=x", "train.schedule=x: it must be"),
    ("{run} {pairs} -o {new} {v}", "{run}, which keeps its tokenizer: remove it"),
    ("gpt2 {pairs} -o {new}", "gpt2 has no objective 'pairs' (supported: clm"),
    ("transformer/huge {pairs} -o {new}", "has no size 'huge'"),
    ("--resume {run} {pairs}", "cannot be combined with other options"),
    ("t5/nano --objective pairs --corpus {plain} --length 32 -o {new}", "a pair has two sides"),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    words: str,
    expected: str,
    run: Path,
    texts: Path,
    kinfolk: Kinfolk,
    home: Home,
    tmp_path: Path,
) -> None:
    folders = {"t": texts, "run": run, "new": tmp_path / "deep" / "new", "plain": home.corpus}
    short = {"who": "transformer", "pairs": "--pairs {t}/train.tsv", "v": "--vocab 380"}
    for name, long in short.items():
        words = words.replace(f"{{{name}}}", long)
    said = kinfolk("pretrain", *(word.format(**folders) for word in words.split()))
    assert (said.code, said.out) == (2, ""), said
    assert said.err.startswith("error: ") and said.err.count("error: ") == 1, said.err
    assert expected.format(**folders) in said.sentence, said.err
    assert list(tmp_path.iterdir()) == []


def test_empty_lines_and_long_pairs_are_left_out_aloud(
    texts: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    rows = (texts / "train.tsv").read_text(encoding="utf-8")
    (tmp_path / "x.tsv").write_text(f"only\t\n{rows}long\t{'lang ' * 40}\n", encoding="utf-8")
    out = tmp_path / "run"
    said = kinfolk("pretrain", "transformer/nano", "--pairs", tmp_path / "x.tsv", "-o", out, *FEW)
    assert said.code == 0, said.err
    assert (
        f"warning: 1 of 122 pairs in {tmp_path}/x.tsv have an empty side and are skipped, "
        in said.err
    )
    assert "warning: 1 of 121 pairs are left out: a side is longer than the 31 tokens" in said.err


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("member", "setting"), [("transformer", "train.lr=4e-3"), ("t5", "train.lr=3e-2")]
)
def test_60_steps_on_multi30k_beat_the_unigram_entropy(
    member: str, setting: str, real: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    for name, count in (("train", 1500), ("val", 30)):
        for language in ("en", "de"):
            packed = real / "multi30k_en_de" / f"{name}.{language}.gz"
            with gzip.open(packed, "rt", encoding="utf-8") as file:
                lines = "".join(next(file) for _ in range(count))
            (tmp_path / f"{name}.{language}").write_text(lines, encoding="utf-8")
    out = tmp_path / "run"
    said = kinfolk(
        *("pretrain", f"{member}/nano", "--vocab", 420, "--device", "cpu", "-o", out),
        *("--source", tmp_path / "train.en", "--target", tmp_path / "train.de"),
        *("--dev-source", tmp_path / "val.en", "--dev-target", tmp_path / "val.de"),
        *("--steps", 60, "--length", 128, "--batch", 8, setting),
    )
    assert said.code == 0, said.err
    holdout = out / "corpus" / "holdout"
    scores = json.loads(kinfolk("evaluate", out, "--corpus", holdout, "--json").out)
    unigram = entropy(TargetDocuments(Corpus.open(holdout)).token_counts())
    print(f"{member}: {scores['loss']:.3f} nats a token of dev targets, unigram {unigram:.3f}")
    assert scores["loss"] < unigram - 0.1
