"""Options that name sentence pairs: files of one direction, or of pairs of several languages."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.cli.app import MAX_VOCAB, flag, option
from kinfolk.cli.options import option_name
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.data.parallel_text import ParallelText
    from kinfolk.workflows.translation.parallel import LanguagePair, SentencePairs

PAIRS = "Sentence pairs (translation)"


@dataclass(frozen=True)
class PairOptions:
    """Options that name sentence pairs."""

    source: Path | None = option("FILE", "Source sentences, one per line.")
    target: Path | None = option("FILE", "Target sentences, aligned line by line.")
    pairs: Path | None = option("FILE", "Source and target in one TSV file.")
    source_prefix: str | None = option("TEXT", "Text put before every source.")
    pair: list[str] | None = option(
        "L1-L2=FILE,FILE", "Pairs of two named languages: en-de=x.en,x.de. Repeat for several."
    )
    one_way: bool = flag("--one-way", "Take each --pair in the given direction alone, not in both.")

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given."""
        set_ = {name: value for name, value in vars(self).items() if value is not None}
        return {name: value for name, value in set_.items() if value is not False}

    def sentence_pairs(self, tokenizer: Path | None = None) -> "SentencePairs | None":
        """Return the sentence pairs, for an existing tokenizer; None where no option is given."""
        given = self.given
        if not given:
            return None
        train, dev = parallel_text(given), parallel_text(given, "dev_")
        if "pair" in given:
            single = [name for name in given if name not in MULTILINGUAL]
            if single:
                raise UserError(
                    f"{option_name(single[0])} cannot be combined with --pair, which names its "
                    "languages and files: remove one of them"
                )
        elif train is None:
            name = option_name("dev_pairs" if dev is not None else next(iter(given)))
            needed = "--pair" if set(given) & MULTILINGUAL - {"vocab_size"} else None
            raise UserError(f"{name} requires {needed or '--source and --target, or --pairs'}")
        elif wrong := [name for name in ("dev_pair", "one_way", "pivot") if name in given]:
            raise UserError(f"{option_name(wrong[0])} requires --pair")
        if "vocab_size" in given and tokenizer is not None:
            raise UserError(
                "--vocab-size does not apply to an existing --tokenizer: remove one of them"
            )
        from kinfolk.workflows.translation.parallel import MultilingualData, ParallelData

        vocab_size: int | None = given.get("vocab_size")
        if train is None:
            return MultilingualData(
                train=language_pairs(given["pair"], "--pair"),
                dev=language_pairs(given.get("dev_pair", ()), "--dev-pair"),
                one_way=self.one_way,
                vocab_size=vocab_size,
                tokenizer=tokenizer,
            )
        return ParallelData(
            train=train,
            dev=dev,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            prefix=given.get("source_prefix", ""),
        )


# Options that apply to --pair.
MULTILINGUAL = {"pair", "dev_pair", "one_way", "pivot", "vocab_size"}


@dataclass(frozen=True)
class ScoredPairOptions(PairOptions):
    """Options of a translation model that is scored."""

    pivot: str | None = option("LANGUAGE", "Translate through this language, in two passes.")


@dataclass(frozen=True)
class TranslationOptions(PairOptions):
    """Options of a model that is trained to translate."""

    dev_source: Path | None = option("FILE", "Development sources; BLEU is reported.")
    dev_target: Path | None = option("FILE", "Development targets.")
    dev_pairs: Path | None = option("FILE", "Both in one TSV file.")
    dev_pair: list[str] | None = option(
        "L1-L2=FILE,FILE", "Development pairs of two languages, trained together or not."
    )
    vocab_size: int | None = option(
        "N", "Size of the joint BPE vocabulary (default: 8192, or what fits).", max=MAX_VOCAB
    )


def language_pairs(texts: Sequence[str], option: str) -> "tuple[LanguagePair, ...]":
    """Parse the values of an option that names languages and their files."""
    from kinfolk.workflows.translation.parallel import LanguagePair

    return tuple(LanguagePair.parse(text, option) for text in texts)


def parallel_text(given: dict[str, Any], split: str = "") -> "ParallelText | None":
    """Return the files of sentence pairs that options of a split name, if any."""
    from kinfolk.data.parallel_text import ParallelText

    source, target, pairs = (given.get(f"{split}{name}") for name in ("source", "target", "pairs"))
    dev = split.replace("_", "-")
    if (source is None) != (target is None):
        raise UserError(f"--{dev}source and --{dev}target must be given together")
    if pairs is not None and source is not None:
        raise UserError(f"give either --{dev}source and --{dev}target, or --{dev}pairs")
    file = source or pairs
    return None if file is None else ParallelText(file, target)
