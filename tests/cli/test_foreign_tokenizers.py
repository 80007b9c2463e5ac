"""Tokenizers of other programs: files without tokenizer.json, beside the model or elsewhere."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from kinfolk.config import read_json
from kinfolk.data.corpus import Corpus
from kinfolk.data.prepare import prepare
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.generation.prompts import build_prompt
from kinfolk.text import Tokenizer
from kinfolk.text.tokenizer import glm_tokens
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import recipe
from support.runs import Home, Kinfolk, text

STEPS = ("--steps", "2", "--batch", "2", "--length", "16", "--device", "cpu")
CHINESE = "机器学习是人工智能的一个分支。\n今天天气很好,我们去公园散步。\n他昨天买了三本新书。\n"
# The order of GLM's released Chinese vocabulary.
GLM_ADDED = ("<|endoftext|>", "[SEP]", "[CLS]", "[MASK]", "[UNK]", "<|startofpiece|>")
GLM_ADDED += ("<|endofpiece|>", "[gMASK]", "[sMASK]")


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


def byte_pairs(folder: Path, names: tuple[str, str], special: list[str], suffix: str = "") -> Path:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if suffix:
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=[] if suffix else sorted(pre_tokenizers.ByteLevel.alphabet()),
        end_of_word_suffix=suffix,
        show_progress=False,
    )
    backend.train_from_iterator([text()], trainer)
    model = json.loads(backend.to_str())["model"]
    write_json(folder / names[0], model["vocab"])
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / names[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def gpt2(folder: Path) -> Path:
    return byte_pairs(folder, ("vocab.json", "merges.txt"), ["<|endoftext|>"])


def gpt(folder: Path) -> Path:
    """Write files as OpenAI released them: with a token for line ends, but none for the end."""
    names = ("encoder_bpe_40000.json", "vocab_40000.bpe")
    return byte_pairs(folder, names, ["<unk>", "\n</w>"], suffix="</w>")


def bert(folder: Path) -> Path:
    characters = sorted({*text()} - {" ", "\n"})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", *characters]
    words += [f"##{character}" for character in characters]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder


def spiece(folder: Path, name: str = "spiece", before: str = "", **settings: int) -> Path:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((before + text()).splitlines()),
        model_prefix=str(folder / name),
        vocab_size=200,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **settings,
    )
    return folder


def t5(folder: Path) -> Path:
    return spiece(folder, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def glm(folder: Path) -> Path:
    spiece(folder, "cog-pretrain", CHINESE)
    processor = sentencepiece.SentencePieceProcessor(str(folder / "cog-pretrain.model"))
    size = processor.get_piece_size()
    write_json(folder / "added_tokens.json", {t: size + i for i, t in enumerate(GLM_ADDED)})
    roles = {"eos": "<|endoftext|>", "pad": "<|endoftext|>", "cls": "[CLS]", "mask": "[MASK]"}
    settings = {f"{role}_token": token for role, token in roles.items()}
    write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "GLMChineseTokenizer", **settings}
    )
    return folder


FORMATS: dict[str, Callable[[Path], Path]] = {"bert": bert, "gpt2": gpt2, "gpt": gpt, "t5": t5}
SLOW = ("bert", "gpt2", "t5", "glm")
END = "the tokenizer has no end token: texts end with '\\n</w>' (id 1)"


def ok(kinfolk: Kinfolk, *arguments: object) -> str:
    ended = kinfolk(*arguments)
    assert ended.code == 0, ended.err
    return ended.out + ended.err


@pytest.mark.parametrize(
    "name", ["gpt", *(pytest.param(n, marks=pytest.mark.slow) for n in ("bert", "gpt2", "t5"))]
)
def test_such_folders_serve_wherever_a_tokenizer_is_asked_for(
    name: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    folder = FORMATS[name](tmp_path)
    ids = Tokenizer.load(folder).encode("the cat", add_special_tokens=False)
    ok(kinfolk, "tokenizer", "compare", home.text, "--tokenizer", folder)
    ok(kinfolk, "prepare", home.text, "--tokenizer", folder, "-o", tmp_path / "corpus")
    assert Corpus.open(tmp_path / "corpus").tokenizer().vocab_size == (
        Tokenizer.load(folder).vocab_size
    )
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the cat\tthe dog\na dog\ta cat\n" * 20, encoding="utf-8")
    run = tmp_path / "run"
    options = ("--pairs", pairs, "--tokenizer", folder, "-o", run, *STEPS)
    ok(kinfolk, "pretrain", "transformer/nano", *options)
    encoded = Corpus.open(run / "corpus").tokenizer().encode("the cat", add_special_tokens=False)
    assert encoded == ids


@pytest.mark.parametrize("name", FORMATS)
def test_folders_without_tokenizer_json_open(name: str, kinfolk: Kinfolk, tmp_path: Path) -> None:
    folder = FORMATS[name](tmp_path)
    ids = Tokenizer.load(folder).encode("the cat", add_special_tokens=False)
    assert str(ids[0]) in ok(kinfolk, "tokenizer", "show", folder, "the cat")


def pretrained(name: str, home: Path) -> tuple[Path, Path]:
    """Pretrain a small network of a family; return its model folder and its tokenizer."""
    (home / "tokenizer").mkdir()
    folder = (FORMATS | {"glm": glm})[name](home / "tokenizer")
    (home / "text.txt").write_text(f"{CHINESE}\n{text(60)}", encoding="utf-8")
    prepare([home / "text.txt"], tokenizer=folder, out=home / "corpus")
    chosen = recipe(f"{name}/nano", home / "corpus", length=16, steps=2, batch_size=2)
    return pretrain(chosen, home / "run") / "checkpoints" / "last", folder


@pytest.fixture(
    scope="module", params=["gpt", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def apart(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path, Path]:
    """Return a family, a model folder without a tokenizer, its tokenizer and its corpus."""
    name = str(request.param)
    home = tmp_path_factory.mktemp(name)
    with warnings.catch_warnings(action="ignore"):  # of the missing end token
        last, folder = pretrained(name, home)
    model = home / "model"
    shutil.copytree(last, model)
    for file in (*model.glob("tokenizer*"), model / "kinfolk.json", model / "checksums.json"):
        file.unlink()  # as a folder of another program
    return name, model, folder, home / "corpus"


def test_a_tokenizer_that_lies_elsewhere_serves_every_command(
    apart: tuple[str, Path, Path, Path], kinfolk: Kinfolk, tmp_path: Path
) -> None:
    family, model, folder, corpus = apart
    scored = tmp_path / "text.txt"
    scored.write_text("The cat saw a ball.\n", encoding="utf-8")
    asked = kinfolk("evaluate", model, "--text", scored)
    assert asked.code == 2
    assert "holds no tokenizer.json" in asked.sentence
    assert "--tokenizer PATH" in asked.sentence
    given = ("--tokenizer", folder)
    printed = ok(kinfolk, "evaluate", model, "--text", scored, *given)
    assert (END in printed) == (family == "gpt")
    ok(kinfolk, "import", model, "-o", tmp_path / "imported", *given)
    assert (tmp_path / "imported" / "tokenizer.json").is_file()
    if family != "glm":
        ok(kinfolk, "export", model, "-o", tmp_path / "exported", *given)
    if family != "bert":
        ok(kinfolk, "generate", model, "the cat", "--max-new-tokens", "2", *given)
    if family in ("bert", "glm", "t5"):
        ok(kinfolk, "fill", model, "the [MASK] saw", *given)
    options = ("--corpus", corpus, "-o", tmp_path / "more", *STEPS)
    ok(kinfolk, "pretrain", model, *given, *options)
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "the cat saw\tgood\na dog\tbad\n" * 20, encoding="utf-8")
    tuned = tmp_path / "tuned"
    ok(kinfolk, "finetune", model, "--train", rows, "-o", tuned, *given, "train.steps=1")
    best = shutil.copytree(tuned / "checkpoints" / "best", tmp_path / "best")
    for file in (*best.glob("tokenizer*"), best / "checksums.json"):
        file.unlink()
    for command in (("predict", best, rows), ("evaluate", best, "--test", rows)):
        assert kinfolk(*command).code == 2
        ok(kinfolk, *command, *given)


def test_a_new_network_takes_the_tokenizer_of_its_corpus(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    options = ("--corpus", home.corpus, "--tokenizer", home.tokenizer, "-o", tmp_path / "run")
    ended = kinfolk("pretrain", "gpt2/nano", *options)
    assert ended.code == 2
    assert "--tokenizer does not apply to gpt2/nano" in ended.sentence


def test_glms_released_vocabulary_trains_glm(tmp_path: Path) -> None:
    last, folder = pretrained("glm", tmp_path)
    tokens = Tokenizer.load(folder)
    assert Tokenizer.load(last).special_tokens == tokens.special_tokens
    assert tokens.special_tokens == read_json(last / "kinfolk.json").objective.special_tokens


def test_the_roles_of_glms_own_tokens_are_known(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(glm(tmp_path))
    tokens = glm_tokens(tokenizer.special_tokens)
    names = ("[MASK]", "[sMASK]", "[gMASK]", "<|startofpiece|>", "<|endofpiece|>")
    ids = (tokens.mask, tokens.sentence, tokens.gmask, tokens.start, tokens.end)
    assert [tokenizer.id_to_token(id) for id in ids] == [*names]
    assert tokenizer.id_to_token(tokenizer.special_tokens.pad) == "<|endoftext|>"
    # Text that spells a special token stays text.
    assert not {*ids} & {*tokenizer.offsets("[MASK] [gMASK] <|endofpiece|>")[0]}
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").special_tokens == tokenizer.special_tokens


def test_a_vocabulary_of_bert_ends_the_texts_of_a_decoder_with_sep(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(bert(tmp_path))
    assert tokenizer.with_end_token(("cls",)) is tokenizer
    with pytest.warns(
        UserWarning, match=r"texts end with '\[SEP\]' \(id 3\) and begin with '\[CLS\]'"
    ):
        ended = tokenizer.with_end_token(("eos",))
    assert ended.special_tokens.eos == tokenizer.special_tokens.sep
    assert ended.special_tokens.bos == tokenizer.special_tokens.cls
    assert ended.fingerprint == tokenizer.fingerprint


def test_texts_of_a_decoder_with_a_vocabulary_of_bert_end_with_sep(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(bert(tmp_path))
    special_tokens = tokenizer.special_tokens
    sizes: dict[str, Any] = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "max_length": 32}
    model = GPT2Config(vocab_size=tokenizer.vocab_size, **sizes).build()
    ids = tokenizer.encode("the cat", add_special_tokens=False)
    for add_bos_token, start in ((True, [special_tokens.cls]), (False, [])):
        prompt = build_prompt(model, tokenizer, ids, add_bos_token=add_bos_token)
        assert prompt.prompt == [*start, *ids]
        assert prompt.eos_ids == {special_tokens.sep}
        assert prompt.suppress_ids == special_tokens.ids - prompt.eos_ids
