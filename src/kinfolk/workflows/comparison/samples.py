"""Samples of a pretrained model: their diversity, and how likely and how copied they are.

    held-out window:  16 tokens of prompt | 64 tokens of real text     the reference
    model:            the same prompt     | 64 sampled tokens

Every model continues the same prompts with the same settings, by as many tokens as the real text
has in its tokenizer, and one n-gram model measures all of them. A number says nothing alone: it is
read beside that of the real continuations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.corpus import Corpus
from kinfolk.errors import UserError
from kinfolk.families import family, family_of
from kinfolk.families.ngram import NGram
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.generate import generate_batches
from kinfolk.generation.prompts import REPLACEMENT, EncodedPrompt, build_prompt
from kinfolk.metrics.copies import longest_copies
from kinfolk.metrics.diversity import DiversityScores, diversity_scores
from kinfolk.nn.language_model import LanguageModel
from kinfolk.rng import derive_seed
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.types import IntArray
from kinfolk.workflows.baselines import document_nll, end_ids, fit_ngram
from kinfolk.workflows.comparison.plan import Plan, PlannedEntrant
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.generate import to_inference
from kinfolk.workflows.load import load
from kinfolk.workflows.recipe import CorpusShare, recipe_of
from kinfolk.workflows.samples import sample_excerpts

PROMPT_TOKENS, NEW_TOKENS = 16, 64
COUNT = 64  # samples
TEMPERATURE, TOP_P = 1.0, 0.95
SAMPLE_NGRAM_ORDER = 4  # of the model of the training text
LENGTH_QUANTILE = 0.75  # of held-out documents: windows are no longer, where documents are short
MIN_WINDOW = 10  # tokens of a prompt and its continuation
MAX_COPY_TOKENS = 5_000_000  # of the training text that copies are looked for in
RESERVED_TOKENS = 4  # for special tokens of the row, as GLM's
SAMPLE_BATCH_SIZE = 32
TEXTS_SHOWN = 5


@dataclass(frozen=True, eq=False)
class SampleQuality:
    """Measures of continuations."""

    diversity: DiversityScores
    nll: NDArray[np.float64]  # (texts, 2): nats under the n-gram model, and tokens
    copies: IntArray  # (texts,): tokens of the longest part that the training text has too
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    tokens: int  # of each continuation

    @property
    def ngram_perplexity(self) -> float:
        """The perplexity of a token under the n-gram model of the training text."""
        nats, tokens = self.nll.sum(0)
        return float(np.exp(nats / tokens))

    @property
    def ngram_bits_per_byte(self) -> float:
        """The same in bits per byte, for models of different tokenizers."""
        size = sum(len(text.encode(errors="replace")) for text in self.texts)
        return float(self.nll[:, 0].sum() / math.log(2) / max(size, 1))

    def to_json(self, entrant: str, *, reference: bool = False) -> dict[str, Any]:
        """Return the row of race.json, with the first texts."""
        scores = self.diversity
        return {
            "entrant": entrant,
            "distinct_1": scores.distinct_n[0],
            "distinct_2": scores.distinct_n[1],
            "distinct_3": scores.distinct_n[2],
            "repetition": scores.repetition_rate,
            "loops": scores.loop_rate,
            "self_bleu": scores.self_bleu,
            "ngram_perplexity": self.ngram_perplexity,
            "ngram_bits_per_byte": self.ngram_bits_per_byte,
            "longest_copy": float(self.copies.mean()),
            "longest_copy_max": int(self.copies.max()),
            "reference": reference,
            "prompts": list(self.prompts[:TEXTS_SHOWN]),
            "texts": list(self.texts[:TEXTS_SHOWN]),
        }


@dataclass(frozen=True, eq=False)
class SampleEvaluator:
    """The training text as an n-gram model, and windows of held-out text."""

    corpus: Corpus
    ngram: NGram
    tokenizer: Tokenizer
    held_out: Corpus

    @classmethod
    def open(cls, folder: Path | str, *, order: int = SAMPLE_NGRAM_ORDER) -> "SampleEvaluator":
        """Open a corpus with held-out documents, and count the n-grams of its training text."""
        corpus, held_out = Corpus.open(folder), CorpusShare(str(folder)).held_out()
        if held_out is None or not held_out.documents:
            raise UserError(
                f"corpus {folder} has no held-out documents to take prompts from: prepare it with "
                "--holdout"
            )
        return cls(corpus, fit_ngram([(corpus, 1.0)], order), corpus.tokenizer(), held_out)

    def windows(
        self, count: int, prompt_tokens: int, new_tokens: int
    ) -> tuple[list[IntArray], int]:
        """Return windows of held-out text, all of one length, and the tokens of their prompts.

        Where most documents are short, the windows are, too.
        """
        sizes = np.diff(self.held_out.starts)
        wanted = prompt_tokens + new_tokens
        length = min(wanted, int(np.quantile(sizes[sizes > 0], LENGTH_QUANTILE)))
        if length < MIN_WINDOW:
            raise UserError(
                f"three quarters of the held-out documents have at most {length} tokens, and a "
                f"prompt with its continuation needs {MIN_WINDOW}: prepare longer documents"
            )
        windows = [w for w in sample_excerpts(self.held_out, count, length) if len(w) == length]
        return windows, max(1, prompt_tokens * length // wanted)

    def measure(self, prompts: Sequence[str], texts: Sequence[str], tokens: int) -> SampleQuality:
        """Measure the continuations of prompts."""
        before = self.nats(prompts)
        nll = self.nats([a + b for a, b in zip(prompts, texts, strict=True)]) - before
        known = self.corpus.ids(0, min(self.corpus.tokens, MAX_COPY_TOKENS))
        return SampleQuality(
            diversity_scores(texts),
            nll,
            longest_copies(self.encode(texts), known),
            tuple(prompts),
            tuple(texts),
            tokens,
        )

    def encode(self, texts: Sequence[str]) -> list[IntArray]:
        """Return the ids of texts."""
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(ids, np.int64) for ids in encoded]

    def nats(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the nats of each text under the n-gram model, and its tokens: (texts, 2)."""
        losses = document_nll(self.ngram, self.encode(texts), *end_ids(self.corpus))
        # A text that was cut has no end to predict.
        return np.array([(float(nll[:-1].sum()), len(nll) - 1) for nll in losses])


@dataclass(frozen=True, eq=False)
class SampleResult:
    """The samples of a model, and the real continuations of the same prompts."""

    samples: SampleQuality
    reference: SampleQuality

    def to_json(self, entrant: str) -> list[dict[str, Any]]:
        """Return both rows of race.json."""
        return [
            self.samples.to_json(entrant),
            self.reference.to_json("held-out text", reference=True),
        ]


def sample_quality(
    model: Path | str | tuple[LanguageModel, Tokenizer],
    corpus: Path | str | SampleEvaluator,
    *,
    seed: int = 0,
    count: int = COUNT,
    prompt_tokens: int = PROMPT_TOKENS,
    new_tokens: int = NEW_TOKENS,
    device: str = "auto",
) -> SampleResult:
    """Let a model continue held-out text, and measure what it samples beside the real text.

    The model is a run, a model folder, or what `load` returns. `corpus` is the folder that it was
    trained on, prepared with held-out documents, or an evaluator of it for several models. A model
    with another tokenizer gets the same prompts as text, and writes texts of about the same length.
    Families that cannot continue a text are refused with the reason.
    """
    network, tokenizer = model if isinstance(model, tuple) else load(model)
    check_samples(network)
    room = row_length(network, None if isinstance(model, tuple) else model)
    if room is not None and prompt_tokens + new_tokens > room:
        prompt_tokens = max(1, prompt_tokens * room // (prompt_tokens + new_tokens))
        new_tokens = max(1, room - prompt_tokens)
    evaluator = corpus if isinstance(corpus, SampleEvaluator) else SampleEvaluator.open(corpus)
    windows, size = evaluator.windows(count, prompt_tokens, new_tokens)
    # A prompt may end within a character of several tokens.
    prompts = [evaluator.tokenizer.decode(window[:size]).rstrip(REPLACEMENT) for window in windows]
    whole = [evaluator.tokenizer.decode(window) for window in windows]
    real = [text.removeprefix(prompt) for text, prompt in zip(whole, prompts, strict=True)]
    tokens = len(windows[0]) - size
    if tokenizer.fingerprint != evaluator.tokenizer.fingerprint:
        encoded = tokenizer.encode_batch(real, add_special_tokens=False)
        tokens = max(1, round(sum(map(len, encoded)) / len(encoded)))
    network = to_inference(network, device=device, precision="fp32")
    texts = continue_prompts(network, tokenizer, prompts, tokens, seed)
    return SampleResult(
        evaluator.measure(prompts, texts, tokens), evaluator.measure(prompts, real, tokens)
    )


def window_tokens(plan: Plan) -> tuple[int, int]:
    """Return the tokens of prompts and of continuations, which the rows of all entrants hold.

    They are tokens of the corpus that all samples are measured with.
    """
    sampled = [e for e in plan.entrants if no_samples_reason(e) is None and not e.baseline]
    # A family that counts has no rows.
    corpora = {e.corpus for e in sampled if not e.gradient_free} or {plan.samples_corpus}
    density = {folder: tokens_per_byte(folder) for folder in {*corpora, plan.samples_corpus}}
    bytes_of_row = (plan.length - RESERVED_TOKENS) / max(density[folder] for folder in corpora)
    wanted = PROMPT_TOKENS + NEW_TOKENS
    tokens = min(wanted, max(MIN_WINDOW, int(bytes_of_row * density[plan.samples_corpus])))
    prompt = max(1, PROMPT_TOKENS * tokens // wanted)
    return prompt, tokens - prompt


def tokens_per_byte(folder: str) -> float:
    """Return how many tokens a byte of a corpus has in the mean."""
    corpus = Corpus.open(folder)
    return corpus.tokens / max(1, corpus.bytes)


def check_samples(network: LanguageModel) -> None:
    """Refuse networks that were not trained to continue a text."""
    name = family_of(network).name
    if network.pretrained is not network:
        raise UserError(f"the {name} model was fine-tuned: sample from the pretrained model")
    if reason := cannot_continue(network.decoding):
        raise UserError(f"{name} is {reason}: sample from a decoder")
    network.check_lm_head()


def cannot_continue(decoding: str | None) -> str | None:
    """Return why networks that decode like this cannot continue a text; None if they can."""
    if decoding is None:
        return "trained to predict tokens from both sides or labels, and cannot continue a text"
    if decoding == "encoder-decoder":
        return (
            "trained to write the spans that its input lacks, or the target of a source, and never "
            "to continue its input"
        )
    return None


def no_samples_reason(entrant: PlannedEntrant) -> str | None:
    """Return why an entrant is not asked to continue text; None if it is."""
    if not entrant.pretrains:
        return "not pretrained"
    return cannot_continue(family(entrant.family).model.decoding)


def row_length(network: LanguageModel, path: Path | str | None) -> int | None:
    """Return the tokens of a prompt and its continuation that the model was trained for.

    That is the length of its rows, also where the network has no bound, so that all models of a
    race sample texts of one length. None where it is not known.
    """
    recipe = None if path is None else recipe_of(find_model_folder(path))
    length = network.config.max_length if recipe is None else recipe.objective.max_length
    return None if length is None else max(2, length - RESERVED_TOKENS)


def continue_prompts(
    network: LanguageModel, tokenizer: Tokenizer, prompts: Sequence[str], tokens: int, seed: int
) -> list[str]:
    """Return a sampled continuation of each prompt, of a fixed number of tokens."""
    encoded = [prompt_of(network, tokenizer, text) for text in prompts]
    context = network.config.max_length
    if context is not None:
        tokens = max(1, min(tokens, context - max(prompt.length for prompt in encoded)))
    config = GenerationConfig(
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        seed=derive_seed(seed),
    )
    outputs = generate_batches(network, tokenizer, encoded, config, batch_size=SAMPLE_BATCH_SIZE)
    return [output.text for group in outputs for output in group]


def prompt_of(network: LanguageModel, tokenizer: Tokenizer, text: str) -> EncodedPrompt:
    """Encode a prompt as the model's architecture reads it."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return build_prompt(network, tokenizer, ids, add_bos_token=False)
