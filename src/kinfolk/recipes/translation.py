"""One command from pairs of texts to a model that translates: vocabulary, corpus, run, BLEU."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinfolk.data.pairs import Pair, PairFiles, write_pairs
from kinfolk.errors import UserError
from kinfolk.files import new_folder
from kinfolk.generation.decoding import generate
from kinfolk.generation.rules import Rules
from kinfolk.generation.sampling import GREEDY
from kinfolk.generation.texts import unspoken
from kinfolk.generation.writer import Request
from kinfolk.metrics.translation import bleu, library
from kinfolk.recipes import pretraining
from kinfolk.recipes.catalogue import member, member_of
from kinfolk.recipes.opening import load, tokenizer_of
from kinfolk.recipes.recipe import Recipe, recipe
from kinfolk.recipes.rewriting import PREFIX, ROOM
from kinfolk.text import Tokenizer, train

VOCAB = 8192
DEV = "dev.jsonl"  # in the run: the pairs that BLEU is measured on, as they were read
SCORE = "translation.json"
WRITTEN = "translations.txt"
BATCH = 64  # texts written at a time

Facts = dict[str, float | int | str]  # a score, and what it was counted on


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What a run translates, and how text becomes ids."""

    train: PairFiles
    dev: PairFiles | None = None
    vocab: int | None = None  # of a vocabulary of its own, for both sides
    tokenizer: Path | None = None  # one there is already
    prefix: str = ""  # before every source: what is to be done with it

    def check(self) -> None:
        """Refuse what cannot be done, before anything is."""
        if self.vocab is not None and self.tokenizer is not None:
            raise UserError("--tokenizer has its vocabulary: leave --vocab out")
        if self.dev is not None:
            library()
        for files in (self.train, self.dev):
            if files is not None:
                files.check()

    def learned(self) -> Tokenizer:
        """Open the tokenizer, or learn one from both sides."""
        if self.tokenizer is not None:
            return tokenizer_of(self.tokenizer)
        both = (text for pair in self.train.rows() for text in (pair.source, pair.target))
        return train(both, kind="bpe", vocab=self.vocab or VOCAB)


def texts(
    *,
    source: Path | None = None,
    target: Path | None = None,
    pairs: Path | None = None,
    dev_source: Path | None = None,
    dev_target: Path | None = None,
    dev_pairs: Path | None = None,
    vocab: int | None = None,
    tokenizer: Path | None = None,
    prefix: str | None = None,
) -> Texts | None:
    """Put together what the options of the command line say; None where they name no pairs."""
    train = _files("", source, target, pairs)
    dev = _files("dev-", dev_source, dev_target, dev_pairs)
    others = {"dev-pairs": dev, "vocab": vocab, "tokenizer": tokenizer, "prefix": prefix}
    if train is None:
        if said := [name for name, value in others.items() if value is not None]:
            raise UserError(
                f"--{said[0]} is for pairs of texts: name some with --source and --target, or with "
                "--pairs"
            )
        return None
    return Texts(train=train, dev=dev, vocab=vocab, tokenizer=tokenizer, prefix=prefix or "")


def _files(
    dev: str, source: Path | None, target: Path | None, pairs: Path | None
) -> PairFiles | None:
    if (source is None) != (target is None):
        raise UserError(f"a pair has two sides: give --{dev}source and --{dev}target")
    if pairs is not None and source is not None:
        raise UserError(f"give either --{dev}source and --{dev}target, or --{dev}pairs")
    only = source or pairs
    return None if only is None else PairFiles(only, target)


def begin(
    name: str,
    texts: Texts,
    out: Path,
    *,
    objective: str | None = None,
    length: int | None = None,
    settings: Sequence[str] = (),
    say: Callable[[str], None] = lambda sentence: None,
) -> Recipe:
    """Make a run folder with a corpus of pairs in it, for `pretraining.resume` to run."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o, or resume it with --resume")
    family, _, size = name.partition("/")
    member(family).config(size or "tiny")
    member(family).objective(objective or "pairs")
    texts.check()
    with new_folder(out) as folder:
        tokenizer = texts.learned()
        write_pairs(texts.train, tokenizer, folder / "corpus", prefix=texts.prefix)
        if texts.dev is not None:
            holdout = folder / "corpus" / "holdout"
            write_pairs(texts.dev, tokenizer, holdout, prefix=texts.prefix)
            keep(texts.dev, texts.prefix, folder / DEV)
        chosen = recipe(
            name,
            folder / "corpus",
            objective=objective or "pairs",
            length=length,
            settings=settings,
        )
        with warnings.catch_warnings(action="ignore"):  # they come again when it runs
            pretraining.Run(chosen, out)  # what is wrong with the settings shows itself here
        chosen = replace(chosen, corpus=str((out / "corpus").resolve()))
        chosen.write(folder / "recipe.json")
        (folder / PREFIX).write_text(texts.prefix, encoding="utf-8")
    corpus = chosen.shares[0].open()
    say(f"{corpus.documents:,} pairs, {corpus.tokens:,} tokens of {corpus.vocab:,} kinds")
    return chosen


def keep(files: PairFiles, prefix: str, path: Path) -> None:
    """Write the pairs that BLEU is measured on into the run, so that a resume finds them."""
    with path.open("w", encoding="utf-8") as file:
        for _, pair in files.pairs():
            row = {"source": prefix + pair.source, "target": pair.target}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def score(run: Path) -> Facts | None:
    """Translate the pairs a run keeps for that, and write BLEU and the translations beside them."""
    path = run / DEV
    if not path.is_file():
        return None
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    pairs = [Pair(row["source"], row["target"]) for row in rows]
    facts, written = measure(run, pairs, Recipe.read(run / "recipe.json").train.device)
    (run / WRITTEN).write_text("".join(f"{text}\n" for text in written), encoding="utf-8")
    (run / SCORE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def evaluate(path: Path | str, texts: Texts, *, device: str = "auto") -> Facts:
    """Score a saved model by what it writes about the sources of files."""
    texts.check()
    pairs = [replace(pair, source=texts.prefix + pair.source) for _, pair in texts.train.pairs()]
    return measure(path, pairs, device)[0]


def measure(path: Path | str, pairs: Sequence[Pair], device: str) -> tuple[Facts, list[str]]:
    """Let a saved model translate, and score it; also return what it wrote."""
    model, tokenizer = load(path)
    if model.decoding != "encoder-decoder":
        raise UserError(f"{member_of(model).name} reads no source: an encoder-decoder translates")
    model.to(pretraining.pick(device))
    written = translate(model, tokenizer, [pair.source for pair in pairs])
    found = bleu(written, [pair.target for pair in pairs])
    return {"bleu": found.score, "signature": found.signature, "pairs": len(pairs)}, written


def translate(model: Any, tokenizer: Tokenizer, sources: Sequence[str]) -> list[str]:
    """Write the likeliest token after the likeliest token about each source, a line each."""
    eos = tokenizer.specials.need("eos")
    ids = [[*tokenizer.offsets(source)[0], eos] for source in sources]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # texts of a length go together
    found: dict[int, str] = {}
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        request = Request(
            prompts=[[model.config.decoder_start_token_id]] * len(chosen),
            tokens=[len(ids[i]) + ROOM for i in chosen],
            ends={eos},
            sources=[ids[i] for i in chosen],
            rules=Rules(banned=unspoken(model, tokenizer) - {eos}),
        )
        for i, text in zip(chosen, generate(model, request, GREEDY), strict=True):
            found[i] = " ".join(tokenizer.decode(text.ids).split())
    return [found[i] for i in range(len(ids))]
