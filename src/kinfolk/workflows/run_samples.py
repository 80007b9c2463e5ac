"""Samples during a run: what the model makes of the same text at every checkpoint."""

from collections.abc import Sequence
from typing import Any

from kinfolk.data.corpus import Corpus
from kinfolk.families import family_of
from kinfolk.nn.language_model import LanguageModel
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import Row
from kinfolk.text import Tokenizer
from kinfolk.training.log import RunSample
from kinfolk.workflows.generate import fill, generate

PROMPT_TOKENS, NEW_TOKENS = 16, 24
MASKED_SAMPLE = 0.6  # where the masked word is in the prompt
SAMPLED_ROWS = 3  # of a task
MAX_SAMPLE_CHARS = 400  # of a prompt, and of an output


def text_samples(
    model: LanguageModel, tokenizer: Tokenizer, corpora: Sequence[Corpus]
) -> list[RunSample]:
    """Return a continuation of the first words of a document, or a filled mask among them.

    None of a model that can do neither, and of a corpus without two words.
    """
    abilities = family_of(model).capabilities
    prompt = first_words(tokenizer, corpora)
    if "fill" in abilities and model.decoding in (None, "encoder-decoder", "infilling"):
        before, _, after = mask_word(prompt)
        if not before:
            return []
        masked = f"{before} [MASK]{after}"
        text = fill(model, tokenizer, masked).text
        return [RunSample("fills a mask", masked, text[:MAX_SAMPLE_CHARS])]
    if "generate" not in abilities or model.decoding == "encoder-decoder" or not prompt:
        return []
    text = generate(
        model, tokenizer, prompt, max_new_tokens=NEW_TOKENS, temperature=0.8, top_p=0.95
    )
    return [RunSample("continues a text", prompt, text[:MAX_SAMPLE_CHARS])]


def first_words(tokenizer: Tokenizer, corpora: Sequence[Corpus]) -> str:
    """Return the beginning of the first document that is long enough."""
    for corpus in corpora:
        for index in range(min(corpus.documents, 100)):
            ids = corpus.document(index)[:PROMPT_TOKENS]
            text: str = tokenizer.decode(ids).strip()
            if len(ids) == PROMPT_TOKENS and " " in text:
                return text[:MAX_SAMPLE_CHARS]
    return ""


def mask_word(text: str) -> tuple[str, str, str]:
    """Return the text before a word, the word, and the text after it."""
    words = text.split(" ")
    place = int(MASKED_SAMPLE * len(words))
    after = " ".join(words[place + 1 :])
    return " ".join(words[:place]), words[place], f" {after}" if after else ""


def row_samples(
    formulation: Formulation, model: Any, rows: Sequence[Row], tokenizer: Tokenizer
) -> list[RunSample]:
    """Return the predictions of the first dev rows, beside their references."""
    shown = list(rows[:SAMPLED_ROWS])
    predictions = predict_rows(formulation, model, shown, tokenizer) if shown else []
    samples = []
    for row, prediction in zip(shown, predictions, strict=True):
        reference, predicted = formulation.task.describe(row, prediction)
        title = f"reference: {reference[:MAX_SAMPLE_CHARS]}"
        samples.append(RunSample(title, row.text[:MAX_SAMPLE_CHARS], predicted[:MAX_SAMPLE_CHARS]))
    return samples
