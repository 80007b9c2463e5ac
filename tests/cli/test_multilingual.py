"""`--pair`: one encoder-decoder for several languages, and directions it was not trained in."""

import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfolk as package
from kinfolk import hub
from kinfolk.data.corpus import Corpus
from kinfolk.data.datasets import MixtureDataset
from kinfolk.data.parallel_text import pair_lengths
from kinfolk.generation import generate as generation
from kinfolk.generation.prompts import EncodedPrompt
from kinfolk.workflows.load import untrained_modules_of
from kinfolk.workflows.pretrain import PretrainWorkload, initial_model
from kinfolk.workflows.recipe import Recipe
from support.runs import Kinfolk, tree

# Word n of each language is the translation of word n of the others.
WORDS = {
    "en": ("dog", "man", "cat", "runs", "sleeps", "plays", "now", "often"),
    "de": ("Hund", "Mann", "Katze", "rennt", "schläft", "spielt", "jetzt", "oft"),
    "zh": ("狗", "人", "猫", "跑", "睡", "玩", "现在", "常常"),
}
DIRECTIONS = ("en-de", "de-en", "en-zh", "zh-en")
FEW = ("--length", 32, "--batch", 4, "--steps", 8, "--device", "cpu", "--vocab", 380)
FEW = (*FEW, "train.save_every=4", "train.eval_every=4", "model.dropout=0.1")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of three words; those of en-de and of en-zh are drawn apart."""
    folder, chance = tmp_path_factory.mktemp("texts"), random.Random(0)
    for pair, count in (("en-de", 90), ("en-zh", 60), ("dev-en-de", 8), ("dev-de-zh", 6)):
        chosen = [
            (chance.randrange(3), chance.randrange(3, 6), chance.randrange(6, 8))
            for _ in range(count)
        ]
        for name in pair.split("-")[-2:]:
            lines = [" ".join(WORDS[name][i] for i in three) for three in chosen]
            (folder / f"{pair}.{name}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source, target = (
        (folder / f"en-zh.{name}").read_text(encoding="utf-8").splitlines() for name in ("en", "zh")
    )
    table = "".join(f"{a}\t{b}\n" for a, b in zip(source, target, strict=True))
    (folder / "en-zh.tsv").write_text(table, encoding="utf-8")
    return folder


def named(texts: Path) -> tuple[object, ...]:
    """Name two pairs, and dev pairs of one of them and of a direction that is not trained."""
    return (
        *("--pair", f"en-de={texts}/en-de.en,{texts}/en-de.de"),
        *("--pair", f"en-zh={texts}/en-zh.tsv"),
        *("--dev-pair", f"en-de={texts}/dev-en-de.en,{texts}/dev-en-de.de"),
        *("--dev-pair", f"de-zh={texts}/dev-de-zh.de,{texts}/dev-de-zh.zh"),
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(texts: Path, folders: Path, kinfolk: Kinfolk) -> Path:
    """A run of a few steps on two pairs, made once."""
    out = folders / "run"
    if not out.exists():
        said = kinfolk("pretrain", "transformer/nano", *named(texts), "-o", out, *FEW)
        assert said.code == 0, said.err
        (folders / "said.txt").write_text(said.out + said.err, encoding="utf-8")
    return out


@pytest.fixture
def learned(texts: Path, folders: Path, kinfolk: Kinfolk) -> Path:
    """A run that has learned to translate, also each language into itself, made once."""
    out = folders / "learned"
    if not out.exists():
        for name in WORDS:
            files = sorted(texts.glob(f"en-??.{name}"))
            lines = [x for f in files for x in f.read_text(encoding="utf-8").splitlines()]
            table = "".join(f"{line}\t{line}\n" for line in lines)
            (texts / f"{name}.tsv").write_text(table, encoding="utf-8")
        same = [w for name in WORDS for w in ("--pair", f"{name}-{name}={texts}/{name}.tsv")]
        said = kinfolk(
            *("pretrain", "transformer/nano", *named(texts), *same, "-o", out, *FEW),
            *(
                "--steps",
                150,
                "--batch",
                7,
                "--lr",
                "4e-3",
                "--warmup",
                20,
                "--vocab",
                400,
                "model.dropout=0",
            ),
            *("train.save_every=150", "train.eval_every=150"),
        )
        assert said.code == 0, said.err
    return out


@pytest.mark.slow
def test_a_direction_without_pairs_is_translated_far_better_than_by_copying(learned: Path) -> None:
    found = json.loads((learned / "translation.json").read_text(encoding="utf-8"))["directions"]
    for name, least in (("en-de", 80), ("de-en", 80), ("de-zh", 50), ("zh-de", 15)):
        print(f"{name}: chrF {found[name]['chrf']:.1f}, copied {found[name]['copied_chrf']:.1f}")
        assert found[name]["chrf"] > least + found[name]["copied_chrf"]
    recipe = Recipe.read(learned / "recipe.json")
    assert recipe.directions == (*DIRECTIONS, "en-en", "de-de", "zh-zh")


def test_each_pair_is_trained_in_both_directions_with_the_tag_of_its_target(run: Path) -> None:
    recipe = Recipe.read(run / "recipe.json")
    assert recipe.directions == DIRECTIONS
    assert [Path(share.corpus).relative_to(run / "corpus") for share in recipe.corpora] == [
        Path(name) for name in DIRECTIONS
    ]
    assert {share.weight for share in recipe.corpora} == {1.0}
    for name, share in zip(DIRECTIONS, recipe.corpora, strict=True):
        corpus = share.open()
        tokenizer, size = corpus.tokenizer(), int(pair_lengths(corpus)[0, 0])
        assert list(tokenizer.language_tags) == ["de", "en", "zh"]
        ids = corpus.document(0).tolist()
        assert tokenizer.id_to_token(ids[0]) == f"<2{name.partition('-')[2]}>"
        source, target = tokenizer.decode(ids[1:size]), tokenizer.decode(ids[size:])
        sides = [set(WORDS[side]) for side in name.split("-")]
        assert set(source.split()) <= sides[0] and set(target.split()) <= sides[1]
    held_out = {n for n in DIRECTIONS if (run / "corpus" / n / "holdout").is_dir()}
    assert held_out == {"en-de", "de-en"}


def test_tags_are_in_the_encoder_input_of_mixed_batches_and_never_in_the_loss(run: Path) -> None:
    recipe = Recipe.read(run / "recipe.json")
    work = PretrainWorkload(recipe)
    tags = {id: name for name, id in work.tokenizer.language_tags.items()}
    seen: dict[str, int] = dict.fromkeys(tags.values(), 0)
    for number in range(len(work.batches)):
        batch = work.batches[number]
        inputs = batch.inputs.encoder_inputs
        assert inputs is not None
        ids, starts = inputs.input_ids, inputs.position_ids == 0
        text = inputs.attention_mask.document_ids >= 0
        tagged = torch.isin(ids, torch.tensor([*tags]))
        assert ((starts & text) == tagged).all()  # the first token of each source, and no other
        for id, name in tags.items():
            seen[name] += int((ids == id).sum())
        written = {*batch.targets.labels.tolist(), *batch.inputs.input_ids.ravel().tolist()}
        assert not written & tags.keys()
    assert all(seen.values())
    # Rows of a batch take turns among the four directions.
    assert isinstance(work.batches, MixtureDataset)
    assert {work.batches.schedule.locate(position)[0] for position in range(4)} == {0, 1, 2, 3}


def test_a_run_reports_each_direction_beside_copied_sources(run: Path, folders: Path) -> None:
    kept = json.loads((run / "translation.json").read_text(encoding="utf-8"))["directions"]
    assert [*kept] == ["en-de", "de-en", "de-zh", "zh-de"]
    assert [kept[name]["trained"] for name in kept] == [True, True, False, False]
    assert [kept[name]["pairs"] for name in kept] == [8, 8, 6, 6]
    assert "tok:zh" in kept["de-zh"]["signature"] and "tok:13a" in kept["zh-de"]["signature"]
    assert all(0 <= kept[name]["bleu"] <= 100 >= kept[name]["chrf"] >= 0 for name in kept)
    assert kept["de-zh"]["copied_bleu"] == kept["de-zh"]["copied_chrf"] == 0
    assert (run / "translations.txt").read_text(encoding="utf-8").count("\n") == 28
    said = (folders / "said.txt").read_text(encoding="utf-8")
    assert "300 sentence pairs in en-de, de-en, en-zh, zh-en" in said
    zero_shot = [line for line in said.splitlines() if line.endswith("zero-shot")]
    assert [line[:6] for line in zero_shot] == ["de-zh:", "zh-de:"]


def test_a_stopped_run_of_several_pairs_ends_where_it_would_have(
    run: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    cut = shutil.copytree(run, tmp_path / "run", symlinks=True)
    for name in ("translation.json", "translations.txt"):
        (cut / name).unlink()
    shutil.rmtree(cut / "checkpoints" / "step-00000008")
    said = kinfolk("pretrain", "--resume", cut)
    assert said.code == 0, said.err
    assert tree(cut / "checkpoints" / "last") == tree(run / "checkpoints" / "last")
    for name in ("translation.json", "translations.txt", "log.jsonl"):
        assert (cut / name).read_bytes() == (run / name).read_bytes()


def test_a_resume_refuses_other_directions(run: Path, kinfolk: Kinfolk, tmp_path: Path) -> None:
    cut = shutil.copytree(run, tmp_path / "run", symlinks=True)
    recipe = json.loads((cut / "recipe.json").read_text(encoding="utf-8"))
    recipe["directions"][0] = "en-fr"
    (cut / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    shutil.rmtree(cut / "checkpoints" / "step-00000008")
    said = kinfolk("pretrain", "--resume", cut)
    assert (
        said.code == 2 and "directions.0 is en-fr, but the run was started with en-de" in said.err
    )


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The encoder inputs of a command, in order."""
    read: list[list[int]] = []
    encode = generation.encode_prompt

    def recorded(*args: Any, **options: Any) -> tuple[EncodedPrompt, int]:
        found = encode(*args, **options)
        read.append(found[0].source or [])
        return found

    monkeypatch.setattr(generation, "encode_prompt", recorded)
    return read


def test_translate_puts_the_tag_before_the_source_as_training_does(
    run: Path, texts: Path, kinfolk: Kinfolk, sources: list[list[int]]
) -> None:
    said = kinfolk("translate", run, texts / "en-de.en", "--to", "de", "--max-tokens", 1)
    assert said.code == 0, said.err
    corpus = Corpus.open(run / "corpus" / "en-de")
    eos, sizes = corpus.tokenizer().special_tokens.eos, pair_lengths(corpus)[:, 0].tolist()
    assert sources == [[*corpus.document(i)[:n].tolist(), eos] for i, n in enumerate(sizes)]


@pytest.mark.slow
def test_a_pivot_translates_what_the_first_pass_wrote(
    learned: Path, texts: Path, kinfolk: Kinfolk, sources: list[list[int]], tmp_path: Path
) -> None:
    file = texts / "dev-de-zh.de"
    first = kinfolk("translate", learned, file, "--to", "en").out
    assert {word for line in first.splitlines() for word in line.split()} <= {*WORDS["en"]}
    (tmp_path / "x.en").write_text(first, encoding="utf-8")
    second = kinfolk("translate", learned, tmp_path / "x.en", "--to", "zh").out
    expected = [*sources]
    sources.clear()
    assert kinfolk("translate", learned, file, "--to", "zh", "--pivot", "en").out == second
    assert sorted(sources) == sorted(expected)
    tags = Corpus.open(learned / "corpus" / "en-de").tokenizer().language_tags
    assert [ids[0] for ids in expected] == [tags["en"]] * 6 + [tags["zh"]] * 6


def test_evaluate_scores_a_pair_directly_and_by_a_pivot(
    run: Path, texts: Path, kinfolk: Kinfolk
) -> None:
    pair = f"de-zh={texts}/dev-de-zh.de,{texts}/dev-de-zh.zh"
    asked = ("evaluate", run, "--pair", pair, "--device", "cpu")
    kept = json.loads((run / "translation.json").read_text(encoding="utf-8"))["directions"]
    found = json.loads(kinfolk(*asked, "--json").out)["directions"]
    assert found == {name: kept[name] for name in ("de-zh", "zh-de")}
    one = json.loads(kinfolk(*asked, "--one-way", "--pivot", "en", "--json").out)["directions"]
    assert [*one] == ["de-zh"] and one["de-zh"]["copied_chrf"] == found["de-zh"]["copied_chrf"]
    lines = kinfolk(*asked).out.splitlines()
    assert len(lines) == 2 and lines[0].startswith("de-zh: BLEU ")


def test_tags_are_never_generated(run: Path) -> None:
    model, tokenizer = package.load(run)
    suppressed = generation.encode_prompt(model, tokenizer, "dog", package.GenerationConfig())[
        0
    ].suppress_ids
    assert set(tokenizer.language_tags.values()) <= suppressed


def test_one_way_trains_the_given_direction_alone(
    texts: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    pairs = named(texts)[:4]
    out = tmp_path / "run"
    said = kinfolk(
        "pretrain", "transformer/nano", *pairs, "--one-way", "-o", out, *FEW, "--steps", 1
    )
    assert said.code == 0, said.err
    assert Recipe.read(out / "recipe.json").directions == ("en-de", "en-zh")
    refused = kinfolk("translate", out, texts / "en-de.de", "--to", "en")
    assert f"unknown language 'en': {out} translates into de, zh" in refused.sentence


def test_pairs_continue_from_a_model_whose_tokenizer_has_the_tags(
    texts: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    files = [texts / "en-de.en", texts / "en-de.de", texts / "en-zh.zh"]
    tokenizer, corpus, spans = (tmp_path / name for name in ("tok", "corpus", "spans"))
    for words in (
        ("tokenizer", "train", *files, "--vocab-size", 380, "--languages", "de,en,zh"),
        ("prepare", *files, "--tokenizer", tokenizer),
        ("pretrain", "transformer/nano", "--objective", "spans", "--corpus", corpus, *FEW[:8]),
    ):
        out = {"tokenizer": tokenizer, "prepare": corpus}.get(words[0], spans)
        said = kinfolk(*words, "-o", out)
        assert said.code == 0, said.err
    out, few = tmp_path / "run", FEW[:8]
    said = kinfolk("pretrain", spans, "--objective", "pairs", *named(texts)[:4], "-o", out, *few)
    assert said.code == 0, said.err
    recipe = Recipe.read(out / "recipe.json")
    assert recipe.init_from and recipe.directions == DIRECTIONS
    assert recipe.model.vocab_size == 383


@pytest.mark.slow
def test_pairs_continue_from_an_encoder_that_predicted_masked_tokens(
    texts: Path, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    """The encoder is the trained one, the decoder starts from random values, and that is said."""
    files = [texts / "en-de.en", texts / "en-de.de", texts / "en-zh.zh"]
    tokenizer, corpus, masked = (tmp_path / name for name in ("tok", "corpus", "masked"))
    few = (*FEW[:8], "train.save_every=4")
    for words in (
        ("tokenizer", "train", *files, "--vocab-size", 380, "--languages", "de,en,zh"),
        ("prepare", *files, "--tokenizer", tokenizer),
        ("pretrain", "transformer/nano", "--objective", "mlm", "--corpus", corpus, *few),
    ):
        out = {"tokenizer": tokenizer, "prepare": corpus}.get(words[0], masked)
        said = kinfolk(*words, "-o", out)
        assert said.code == 0, said.err
    trained = hub.load_model(masked / "checkpoints" / "last").state_dict()
    before = hub.load_model(masked / "checkpoints" / "step-00000004").state_dict()
    moved = {name for name in before if not torch.equal(before[name], trained[name])}
    assert moved and all(name.startswith(("encoder.", "token_embeddings.")) for name in moved)
    for words in (("translate", masked, files[1], "--to", "en"), ("fill", masked, "A [MASK].")):
        assert "the decoder of the model was not trained" in kinfolk(*words).sentence

    out, pairs = tmp_path / "run", named(texts)[:4]
    said = kinfolk("pretrain", masked, "--objective", "pairs", *pairs, "-o", out, *few)
    assert said.code == 0, said.err
    words = " ".join(said.err.split())
    assert "was trained without its decoder: it starts from random values" in words
    recipe = Recipe.read(out / "recipe.json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = initial_model(recipe).state_dict()
    assert all(torch.equal(start[name], trained[name]) for name in start)
    assert kinfolk("translate", out, files[1], "--to", "en").code == 0

    again = tmp_path / "again"  # the decoder was trained in between
    said = kinfolk("pretrain", out, "--objective", "mlm", "--corpus", corpus, "-o", again, *few)
    assert said.code == 0 and "random values" not in said.err
    assert untrained_modules_of(masked / "checkpoints" / "last") == ("decoder",)
    assert untrained_modules_of(again / "checkpoints" / "last") == ()


# {en-de} is a pair of files that are in order.
MISTAKES = [
    ("pretrain {who} --pair ende={t}/en-de.en,{t}/en-de.de", "write two languages and their fil"),
    ("pretrain {who} --pair en-de", "write two languages and their files, such as en-de=train.en"),
    ("pretrain {who} --pair en-de={t}/a,{t}/b,{t}/c", "write two languages and their files"),
    ("pretrain {who} --pair en-de={t}/none", "{t}/none does not exist"),
    (
        "pretrain {who} --pair en-de={t}/en-de.en,{t}/en-zh.zh",
        "{t}/en-de.en has 90 lines and {t}/en-zh.zh has 60",
    ),
    ("pretrain {who} {ok} {ok}", "the direction en-de is given twice: join the files of a pair"),
    ("pretrain {who} {ok} --pair de-en={t}/en-zh.tsv", "the direction en-de is given twice"),
    ("pretrain {who} {ok} --dev-pair de-fr={t}/en-zh.tsv", "--dev-pair de-fr: fr is in no --pair"),
    ("pretrain {who} {ok} --pairs {t}/en-zh.tsv", "--pairs cannot be combined with --pair"),
    ("pretrain {who} {ok} --source-prefix x", "--source-prefix cannot be combined with --pair"),
    ("pretrain {who} --one-way", "--one-way requires --pair"),
    ("pretrain {who} --dev-pair en-de={t}/en-zh.tsv", "--dev-pair requires --pair"),
    ("pretrain {who} --pairs {t}/en-zh.tsv --one-way", "--one-way requires --pair"),
    ("pretrain gpt2/nano {ok}", "gpt2 has no objective 'pairs'"),
    ("pretrain {one} --pair en-fr={t}/en-zh.tsv", "has no token <2en>: train it with kinfolk tok"),
    ("translate {run} {t}/en-de.de", "{run} translates into de, en, zh: choose one with --to"),
    ("translate {run} {t}/en-de.de --to fr", "unknown language 'fr': {run} translates into de, "),
    ("translate {run} {t}/en-de.de --to zh --pivot fr", "unknown language 'fr': {run} trans"),
    ("translate {run} {t}/en-de.de --to zh --pivot zh", "--pivot zh is the language of --to"),
    ("translate {run} {t}/en-de.de --pivot en", "choose one with --to"),
    ("translate {one} {t}/en-de.de --to de", "--to de does not apply to {one}, which was not trai"),
    ("translate {one} {t}/en-de.de --pivot en", "--pivot en does not apply to {one}"),
    ("evaluate {one} {ok}", "{one} was not trained with --pair and has one direction: score it"),
    ("evaluate {run} --pairs {t}/en-zh.tsv", "name the languages of the files, such as --pair en-"),
    ("evaluate {run} --pair en-fr={t}/en-zh.tsv", "unknown language 'fr': {run} translates into"),
    ("evaluate {run} {ok} --pivot fr", "unknown language 'fr': {run} translates into de, en, zh"),
    ("evaluate {run} --pivot en", "--pivot requires --pair"),
    ("tokenizer train {t}/en-de.en --vocab-size 380 --languages d$,en", "language 'd$': write a "),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_with_languages_is_one_sentence_and_leaves_nothing(
    words: str,
    expected: str,
    run: Path,
    texts: Path,
    folders: Path,
    kinfolk: Kinfolk,
    tmp_path: Path,
) -> None:
    one = folders / "one"
    if not one.exists():
        said = kinfolk(
            *("pretrain", "transformer/nano", "--pairs", texts / "en-zh.tsv", "-o", one),
            *(*FEW, "--steps", 1),
        )
        assert said.code == 0, said.err
        assert Recipe.read(one / "recipe.json").directions == ()
    ok = f"--pair en-de={texts}/en-de.en,{texts}/en-de.de"
    places = {"t": texts, "run": run, "one": one, "who": "transformer/nano", "ok": ok}
    asked = words.format(**places).split()
    if asked[0] in ("pretrain", "tokenizer"):
        asked += ["-o", str(tmp_path / "new")]
    said = kinfolk(*asked)
    assert (said.code, said.out) == (2, ""), said
    assert said.err.startswith("error: ") and said.err.count("error: ") == 1, said.err
    assert expected.format(**places) in said.sentence, said.err
    assert list(tmp_path.iterdir()) == []
