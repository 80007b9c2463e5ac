"""Prompts: from text to token ids, to the inputs of the decoder, and back from ids to text.

Prompts are padded to the left, so that the tokens of each are adjacent and all continue at the
last slot:

    input_ids    .   .  <s>  the      document_ids  -1  -1   0   0      position_ids  0  0  0  1
    input_ids   <s>  a   cat  sat     document_ids   0   0   0   0      position_ids  0  1  2  3

The blanks at the end of a prompt (GLM) have the position of their mask:

    input_ids   it  [M]  .  <s>  was  position_ids  0  1  2  1  1  block_position_ids  0  0  0  1  2
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import Inputs, KVCache, tree_map
from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.logits_process import TokenLists
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.tokenizer import Tokenizer, glm_tokens

MAX_ATTENTION_SCORES = 2**32  # attention scores of a layer for one text; 16 GiB
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
Blanks = Sequence[tuple[int, int]]  # the position of each mask, and the tokens generated for it


@dataclass(frozen=True)
class EncodedPrompt:
    """The token ids of a prompt, as a model's architecture reads them."""

    prompt: list[int]  # what the decoder continues
    source: list[int] | None  # what the encoder reads
    eos_ids: set[int]
    suppress_ids: set[int]  # ids that are not text
    blanks: Blanks | None = None  # the blanks at the end of the prompt (GLM)

    @property
    def length(self) -> int:
        """The number of tokens that share a context: of the source where there is one."""
        return len(self.prompt if self.source is None else self.source)


def encode_prompt(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    config: GenerationConfig,
    *,
    tags: Sequence[int] = (),
) -> tuple[EncodedPrompt, int]:
    """Encode a prompt that fits the context; return it and the number of dropped tokens.

    With `truncate_left` the beginning is dropped, so that all of `max_new_tokens` fit. `tags` are
    ids before the prompt, such as the target language; they are never dropped.
    """
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    encoded = build_prompt(model, tokenizer, [*tags, *ids], add_bos_token=config.add_bos_token)
    context = model.config.max_length
    if context is None:
        check_attention_memory(model, len(encoded.source or encoded.prompt))
        return encoded, 0
    limit = context - 1
    if encoded.source is not None:  # only a decoder shares the context with the output
        limit = context
    elif config.truncate_left:
        limit = context - config.max_new_tokens
    excess = max(encoded.length - limit, 0)
    if not excess:
        return encoded, 0
    if not config.truncate_left:
        raise UserError(
            f"the prompt has {encoded.length} tokens, and a context of {context} has room for "
            f"{limit}: shorten it, or drop its beginning (truncate_left=True, --truncate-prompt)"
        )
    kept = [*tags, *ids[excess:]]
    rest = build_prompt(model, tokenizer, kept, add_bos_token=config.add_bos_token)
    if rest.length > limit:
        raise UserError(
            f"max_new_tokens={config.max_new_tokens} leaves no room for a prompt in a context of "
            f"{context}: lower it"
        )
    return rest, excess


def check_attention_memory(model: LanguageModel, length: int) -> None:
    """Refuse a text whose attention scores take too much memory, where no context bounds it."""
    if attention_scores(model, length) > MAX_ATTENTION_SCORES:
        size = 4 * attention_scores(model, length) / 2**30
        longest = math.isqrt(MAX_ATTENTION_SCORES // model.config.num_heads)
        raise UserError(
            f"the text has {length:,} tokens, and attention over it takes {size:,.0f} GiB: split "
            f"it into texts of at most {longest:,} tokens"
        )


def attention_scores(model: LanguageModel, length: int) -> int:
    """Return the number of attention scores of one layer for a text of this length."""
    return int(model.config.num_heads) * length**2


def build_prompt(
    model: LanguageModel, tokenizer: Tokenizer, ids: Sequence[int], *, add_bos_token: bool = True
) -> EncodedPrompt:
    """Add the special tokens that a model's architecture expects around the ids of a prompt.

    Without `add_bos_token` only an empty prompt of a decoder is the start token.
    """
    special_tokens = tokenizer.special_tokens
    if model.decoding == "infilling":
        glm = glm_tokens(special_tokens)
        suppressed = non_text_ids(model, tokenizer) - {glm.end}
        opened = [*ids, glm.gmask, glm.start]
        return EncodedPrompt(opened, None, {glm.end}, suppressed, [(len(ids), 1)])
    if model.decoding == "two-stream":  # XLNet: texts end with a separator, no token opens them
        eos_ids = {special_tokens.sep} if special_tokens.sep is not None else set()
        return EncodedPrompt(list(ids), None, eos_ids, non_text_ids(model, tokenizer) - eos_ids)
    # A vocabulary of BERT has no end token: texts are between [CLS] and [SEP].
    bos, eos = special_tokens.bos, special_tokens.eos
    if eos is None:
        bos, eos = special_tokens.cls if bos is None else bos, special_tokens.sep
    eos_ids = set() if eos is None else {eos}
    suppressed = non_text_ids(model, tokenizer) - eos_ids
    if model.decoding == "encoder-decoder":
        start = model.config.decoder_start_token_id
        return EncodedPrompt([start], [*ids, *eos_ids], eos_ids, suppressed)
    bos = eos if bos is None else bos
    start = [bos] if bos is not None and (add_bos_token or not ids) else []
    return EncodedPrompt([*start, *ids], None, eos_ids, suppressed)


def non_text_ids(model: LanguageModel, tokenizer: Tokenizer) -> set[int]:
    """Return the ids that are not text: special tokens, and ids the tokenizer lacks."""
    missing = range(tokenizer.vocab_size, model.config.vocab_size)
    return {*tokenizer.special_tokens.ids, *tokenizer.language_tags.values(), *missing}


def stop_on_strings(
    tokenizer: Tokenizer, stops: Sequence[str]
) -> Callable[[Sequence[int]], bool] | None:
    """Return a test of generated ids for any of these strings; None where there are none."""
    if not stops:
        return None
    # Every token has at least one byte, so that many of the newest tokens contain a new stop.
    window = max(len(stop.encode()) for stop in stops) + 1

    def should_stop(generated: Sequence[int]) -> bool:
        text = tokenizer.decode(list(generated[-window:]))
        return any(stop in text for stop in stops)

    return should_stop


def truncate_at_stops(chunks: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """End a text before the first stop string; hold back what may be the beginning of one."""
    held = ""
    for chunk in chunks:
        held += chunk
        starts = [start for start in (held.find(stop) for stop in stops) if start >= 0]
        if starts:
            yield held[: min(starts)]
            return
        safe = len(held) - max((overlap(held, stop) for stop in stops), default=0)
        if held[:safe]:
            yield held[:safe]
        held = held[safe:]
    if held:
        yield held


def overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text are the beginning of a stop string."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)


def stream_decode(tokenizer: Tokenizer, before: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
    """Decode ids as they come; an incomplete character waits for its other bytes.

    Only the newest tokens are decoded each time: those since the last chunk, and those of the
    last chunk, which decide about the space between.
    """
    decoded = list(before)
    prefix_start, printed = 0, len(decoded)
    for id in ids:
        decoded.append(id)
        if chunk := _new_text(tokenizer, decoded, prefix_start, printed):
            yield chunk
            prefix_start, printed = printed, len(decoded)
    known = tokenizer.decode(decoded[prefix_start:printed])
    if rest := tokenizer.decode(decoded[prefix_start:])[len(known) :]:
        yield rest


def _new_text(tokenizer: Tokenizer, ids: Sequence[int], prefix_start: int, printed: int) -> str:
    text = tokenizer.decode(ids[prefix_start:])
    if text.endswith(REPLACEMENT):
        return ""
    return text[len(tokenizer.decode(ids[prefix_start:printed])) :]


def decode_after(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of ids that follow others: "##ing" after "play" is "ing"."""
    return tokenizer.decode([*before, *ids]).removeprefix(tokenizer.decode(before))


def prefill_inputs(
    prompts: TokenLists,
    source: Inputs | None,
    cache: KVCache,
    blanks: Sequence[Blanks] | None = None,
    *,
    two_stream: bool = False,
) -> Inputs:
    """Return the inputs of all prompts, padded to the left.

    A two-stream model (XLNet) has one more slot at the end, for the token that is predicted.
    """
    longest = max(map(len, prompts)) + two_stream
    rows = [[*prompt, 0] if two_stream else list(prompt) for prompt in prompts]
    padding = torch.tensor([longest - len(row) for row in rows])[:, None]
    slots = torch.arange(longest)
    position_ids = (slots - padding).clamp(min=0)
    document_ids = torch.where(slots < padding, PADDING_ID, 0)
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    unpacked: Literal["causal"] | None = None if bool(padding.any()) else "causal"
    attention_mask = AttentionMask(document_ids, position_ids, position_ids, unpacked)
    block_position_ids = None
    if blanks is not None:
        lines = [
            _blank_positions(len(prompt), own) for prompt, own in zip(prompts, blanks, strict=True)
        ]
        filled = [[[0] * (longest - len(line)) + line for line in row] for row in lines]
        position_ids, block_position_ids, order = torch.tensor(filled).unbind(1)
        attention_mask = AttentionMask(document_ids, order, order)
    inputs = Inputs(
        input_ids=ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        block_position_ids=block_position_ids,
        encoder_inputs=source,
        cache=cache,
    )
    return _add_query(inputs) if two_stream else inputs


def _add_query(inputs: Inputs) -> Inputs:
    """Predict the token in the last slot of every row."""
    last = torch.full_like(inputs.input_ids[:, :1], inputs.input_ids.shape[1] - 1)
    return replace(inputs, target_positions=last, token_type_ids=torch.zeros_like(inputs.input_ids))


def _blank_positions(length: int, blanks: Blanks) -> list[list[int]]:
    """Return the position, the position in its blank and the order of each token of a prompt."""
    sizes = [size for _, size in blanks]
    text = length - sum(sizes)
    return [
        [*range(text), *(position for position, size in blanks for _ in range(size))],
        [*[0] * text, *(step for size in sizes for step in range(1, size + 1))],
        [*[0] * text, *range(1, sum(sizes) + 1)],
    ]


def next_inputs(inputs: Inputs, ids: Tensor) -> Inputs:
    """Return the inputs of the token just chosen in every row."""
    if inputs.target_positions is not None:
        return _next_query(inputs, ids)
    position_ids, order = inputs.position_ids[:, -1:], inputs.attention_mask.key_order[:, -1:] + 1
    block_position_ids = inputs.block_position_ids
    if block_position_ids is None:
        position_ids = position_ids + 1
    else:  # all tokens of a blank have the position of its mask
        block_position_ids = block_position_ids[:, -1:] + 1
    return Inputs(
        input_ids=ids[:, None],
        attention_mask=AttentionMask(
            torch.zeros_like(order), order, order, inputs.attention_mask.unpacked
        ),
        position_ids=position_ids,
        block_position_ids=block_position_ids,
        encoder_inputs=inputs.encoder_inputs,
        cache=inputs.cache,
    )


def _next_query(inputs: Inputs, ids: Tensor) -> Inputs:
    """Put the token just chosen into the slot that was predicted, and predict the next."""
    assert inputs.cache is not None
    inputs.cache.drop_last(1)
    order = inputs.attention_mask.key_order[:, -1:]
    order = torch.cat([order, order + 1], dim=1)
    both = torch.stack([ids, torch.zeros_like(ids)], dim=1)
    attention_mask = AttentionMask(
        torch.zeros_like(order), order, order, inputs.attention_mask.unpacked
    )
    return _add_query(
        Inputs(
            input_ids=both, attention_mask=attention_mask, position_ids=order, cache=inputs.cache
        )
    )


def select_rows(inputs: Inputs, rows: Tensor) -> Inputs:
    """Keep these rows, here and in the cache."""
    if inputs.cache is not None:
        inputs.cache.reorder(rows)
    return tree_map(inputs, lambda tensor: tensor[rows])


def source_inputs(texts: TokenLists) -> Inputs:
    """Return the inputs of an encoder, padded to the right."""
    lengths = torch.tensor([len(text) for text in texts])[:, None]
    slots = torch.arange(int(lengths.max())).expand(len(texts), -1)
    filled = slots < lengths
    ids = torch.zeros_like(slots)
    ids[filled] = torch.tensor([id for text in texts for id in text])
    attention_mask = AttentionMask.bidirectional(
        torch.where(filled, 0, PADDING_ID), unpacked=bool(filled.all())
    )
    return Inputs(input_ids=ids, attention_mask=attention_mask, position_ids=slots)


def check_prompts(model: LanguageModel, texts: TokenLists, what: str) -> None:
    """Refuse texts that are empty, longer than the context, or have ids the model lacks."""
    context = model.config.max_length
    for text in texts:
        if not text:
            raise UserError(f"a {what} is empty: it must have at least one token")
        if context is not None and len(text) > context:
            raise UserError(
                f"a {what} has {len(text)} tokens, and the model's context is {context}: shorten it"
            )
        check_ids(model, text, what)


def check_ids(model: LanguageModel, text: Sequence[int], what: str) -> None:
    """Refuse ids that the model lacks."""
    vocab_size = model.max_vocab_size
    if unknown := [id for id in text if not 0 <= id < vocab_size]:
        raise UserError(
            f"a {what} has the id {unknown[0]}, and the model's ids are 0 to {vocab_size - 1}: "
            "use the tokenizer it was trained with"
        )


def tokens_left(model: LanguageModel, length: int, max_new_tokens: int) -> int:
    """Return how many tokens may follow a prompt of this length."""
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens={max_new_tokens}: it must be at least 1")
    context = model.config.max_length
    if context is None:
        return max_new_tokens
    if length >= context:
        raise UserError(
            f"a prompt of {length} tokens leaves no room for output in a context of {context}: "
            f"shorten it to at most {context - 1}"
        )
    return min(max_new_tokens, context - length)


def device_of(model: LanguageModel) -> torch.device:
    """Return the device of the model's weights."""
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


@contextmanager
def eval_mode(model: LanguageModel) -> Iterator[None]:
    """Put a model into evaluation mode, and each module back into the mode it was in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
