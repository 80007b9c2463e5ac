"""Settings of text generation, under the names of Hugging Face's `GenerationConfig`.

This module imports no torch: the command line makes its options from these fields.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, Literal

from kinfolk.config import config, did_you_mean, field
from kinfolk.errors import UserError

Method = Literal["sample", "greedy", "beam", "diverse-beam", "contrastive"]

DECODING = "Decoding"  # panel of options
decoding, constraint = partial(field, panel=DECODING), partial(field, panel="Constraints")
# Settings that only some methods read; others refuse a value that is not the default.
BEAM_FIELDS = ("num_beams", "length_penalty", "early_stopping")
METHOD_FIELDS: dict[Method, tuple[str, ...]] = {
    "sample": ("temperature", "top_k", "top_p", "min_p", "typical_p"),
    "greedy": (),
    "beam": BEAM_FIELDS,
    "diverse-beam": (*BEAM_FIELDS, "diversity_penalty", "num_beam_groups"),
    "contrastive": ("penalty_alpha", "top_k"),
}


@config("generation")
class GenerationConfig:
    """How a text is generated: its length, the decoding method and the constraints.

    The method follows from the fields: `penalty_alpha` selects contrastive search, `num_beams`
    above 1 beam search, `do_sample=False` greedy decoding; otherwise tokens are sampled.
    """

    max_new_tokens: int = field(
        default=100,
        ge=1,
        le=2**20,
        help="Maximum number of generated tokens",
    )
    min_new_tokens: int = field(
        default=0,
        ge=0,
        le=2**20,
        help="Minimum number of generated tokens",
    )
    num_return_sequences: int = field(default=1, ge=1, le=2**14, help="Outputs per prompt")
    do_sample: bool | None = decoding(
        default=None, help="Sample each token; false takes the most likely one (greedy decoding)"
    )
    temperature: float = decoding(
        default=1.0,
        ge=0,
        le=1e6,
        help="Sampling temperature; 0 is greedy",
    )
    top_k: int | None = decoding(
        default=None,
        ge=1,
        le=2**31,
        help="Choose among the k most likely tokens (contrastive search: 4)",
    )
    top_p: float | None = decoding(
        default=None,
        gt=0,
        le=1,
        help="Nucleus sampling: the smallest set of tokens with this total probability",
    )
    min_p: float | None = decoding(
        default=None,
        gt=0,
        le=1,
        help="Drop tokens below this fraction of the best token's probability",
    )
    typical_p: float | None = decoding(
        default=None, gt=0, le=1, help="Locally typical sampling: total probability kept"
    )
    num_beams: int = decoding(
        default=1,
        ge=1,
        le=2**12,
        help="Number of beams; above 1 selects beam search",
    )
    num_beam_groups: int = decoding(
        default=1, ge=1, le=2**12, help="Beam groups; above 1 selects diverse beam search"
    )
    diversity_penalty: float = decoding(
        default=0.5, ge=0, le=1e6, help="Penalty for a token that an earlier beam group has chosen"
    )
    length_penalty: float = decoding(
        default=1.0,
        ge=-100,
        le=100,
        help="Beam scores are divided by length^X; above 0 favors longer outputs",
    )
    early_stopping: bool = decoding(
        default=False, help="End beam search as soon as there are enough complete outputs"
    )
    penalty_alpha: float | None = decoding(
        default=None,
        ge=0,
        le=1,
        help="Degeneration penalty (usually 0.6); a value selects contrastive search",
    )
    seed: int = decoding(
        default=0, ge=0, lt=2**64, help="Random seed; the same seed gives the same text"
    )
    repetition_penalty: float = constraint(
        default=1.0,
        gt=0,
        le=1e6,
        help="Above 1 lowers the probability of tokens that have occurred",
    )
    no_repeat_ngram_size: int | None = constraint(
        default=None, ge=1, le=2**20, help="Never repeat an n-gram of this many tokens"
    )
    stop_strings: tuple[str, ...] = constraint(default=(), help="Stop before this string")
    forced_prefix: str = constraint(default="", help="Text that the output starts with")
    bad_words: tuple[str, ...] = constraint(default=(), help="Word that is never generated")
    allowed_texts: tuple[str, ...] = constraint(
        default=(), help="Restrict the output to this text, or another one given this way"
    )
    add_bos_token: bool = field(
        default=False,
        help="Put the start token, as <|endoftext|>, before the prompt of a decoder; an empty "
        "prompt always has it",
    )
    truncate_left: bool = field(
        default=False, help="Drop the beginning of a prompt that does not fit the context"
    )
    compile: bool = field(
        default=False, help="Compile the decoding step with torch (about 30 s at first)"
    )

    def __post_init__(self) -> None:
        if self.min_new_tokens > self.max_new_tokens:
            raise UserError(
                f"min_new_tokens={self.min_new_tokens} exceeds max_new_tokens={self.max_new_tokens}"
            )
        for name, texts in (
            ("stop_strings", self.stop_strings),
            ("bad_words", tuple(word.strip() for word in self.bad_words)),
            ("allowed_texts", self.allowed_texts),
        ):
            if "" in texts:
                raise UserError(f"{name} has an empty string: it must have at least one character")
        self._check_method()

    def _check_method(self) -> None:
        """Refuse settings that the decoding method does not read."""
        method, num = self.method, self.num_return_sequences
        if self.do_sample and method not in ("sample", "greedy"):
            raise UserError(f"do_sample=True does not combine with the method {method}")
        own = METHOD_FIELDS[method]
        for f in fields(self):
            owners = [name for name, names in METHOD_FIELDS.items() if f.name in names]
            if owners and f.name not in own and vars(self)[f.name] != f.default:
                raise UserError(
                    f"{f.name}={vars(self)[f.name]} applies to the method "
                    f"{' or '.join(owners)}, and the method is {method}"
                )
        if self.num_beams % self.num_beam_groups:
            raise UserError(
                f"num_beams={self.num_beams} is not divisible by "
                f"num_beam_groups={self.num_beam_groups}"
            )
        if num > 1 and (method == "contrastive" or self.is_greedy):
            name = "contrastive search" if method == "contrastive" else "greedy decoding"
            raise UserError(
                f"num_return_sequences={num}: {name} gives one output; sample or use beam search"
            )
        if self.num_beams > 1 and num > self.num_beams:
            raise UserError(f"num_return_sequences={num} exceeds num_beams={self.num_beams}")

    @property
    def method(self) -> Method:
        """The decoding method that the fields select."""
        if self.penalty_alpha is not None:
            return "contrastive"
        if self.num_beams > 1:
            return "beam" if self.num_beam_groups == 1 else "diverse-beam"
        return "greedy" if self.do_sample is False else "sample"

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the most likely one."""
        method = self.method
        return method == "greedy" or (method == "sample" and self.temperature == 0)

    @property
    def sampling(self) -> tuple[object, ...]:
        """All settings that the choice of one token depends on."""
        return (
            self.is_greedy,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.typical_p,
        )

    @property
    def beams_per_group(self) -> int:
        """Number of beams in each group."""
        return self.num_beams // self.num_beam_groups

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "GenerationConfig":
        """Build from keyword arguments: lists of strings and single strings are taken as tuples."""
        defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
        values = dict(options)
        for name, value in options.items():
            if name not in defaults:
                raise UserError(f"unknown argument {name!r}: {did_you_mean(name, [*defaults])}")
            if isinstance(defaults[name], tuple):
                if isinstance(value, str):
                    values[name] = (value,)
                elif isinstance(value, list):
                    values[name] = tuple(value)
        return cls(**values)


GREEDY = GenerationConfig(do_sample=False)
