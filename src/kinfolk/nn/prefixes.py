"""Prefixes (Li & Liang 2021): key and value states that every layer attends to before a text.

A prefix enters the cache as slots that hold no token. In a row of several texts each text has slots
of its own, in its document; they precede its first token in the order of attention:

    document_ids   0   0   1   1 |  0   0   0   1   1      prefixes of two slots, texts of 3 and 2
    key_order     -2  -1   1   2 |  0   1   2   3   4

Deviation: position embeddings of the text start at 0, as without a prefix, so that a prefix takes
nothing from the context of the model.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, KVCache, Output, TensorTree, TokenTargets, tree_map
from kinfolk.nn.embeddings import LinearLogits
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.losses import frozen_logprobs


@dataclass(frozen=True, eq=False)
class KeyValuePrefix(TensorTree):
    """The keys and values of a prefix in every layer: each (layers, heads, length, head_dim)."""

    keys: Tensor
    values: Tensor

    @property
    def length(self) -> int:
        """The number of slots."""
        return self.keys.shape[2]

    def __add__(self, other: "KeyValuePrefix") -> "KeyValuePrefix":
        """Put another prefix after this one."""
        return KeyValuePrefix(
            torch.cat([self.keys, other.keys], dim=2), torch.cat([self.values, other.values], dim=2)
        )

    def fits(self, config: Any) -> bool:
        """Return whether a network of this config has such layers and heads."""
        layers, heads, _, head_dim = self.keys.shape
        return (layers, heads, head_dim) == prefix_shape(config)

    def fill(self, cache: KVCache, attention_mask: AttentionMask, dtype: torch.dtype) -> None:
        """Put the prefix into an empty cache, before the one text of every row of a mask."""
        rows = len(attention_mask.document_ids)
        keys, values = (
            part.to(attention_mask.document_ids.device, dtype)[:, None].expand(-1, rows, -1, -1, -1)
            for part in (self.keys, self.values)
        )
        cache.fill(keys, values, prefix_mask(attention_mask, self.length))


def prefix_shape(config: Any) -> tuple[int, int, int]:
    """Return the layers, the heads and the size of a head of a network."""
    head_dim = config.head_dim or config.hidden_size // config.num_heads
    return config.num_layers, config.num_heads, head_dim


def prefix_mask(
    attention_mask: AttentionMask, length: int, max_documents: int = 1
) -> AttentionMask:
    """Return the mask of the slots of a prefix before each document of packed rows."""
    ids, order = attention_mask.document_ids, attention_mask.key_order
    # The order of the first token of each document; padding comes first and is dropped.
    first = order.new_full((len(ids), max_documents + 1), torch.iinfo(order.dtype).max)
    first = first.scatter_reduce(1, (ids + 1).long(), order, "amin")[:, 1:]
    back = torch.arange(-length, 0, device=order.device, dtype=order.dtype)
    key_order = (first[:, :, None] + back).flatten(1)
    document_ids = torch.arange(max_documents, device=ids.device, dtype=ids.dtype)
    document_ids = document_ids.repeat_interleave(length).expand_as(key_order)
    return AttentionMask(document_ids, key_order, key_order, attention_mask.unpacked)


class Prefixes(nn.Module):
    """One prefix for each attribute, computed by an MLP from small embeddings.

    The MLP makes training stable (Li & Liang 2021, section 4.3); only its outputs are used later.
    Deviation: attributes share the MLP; Qian et al. 2022 give each a matrix of its own.
    """

    def __init__(self, config: Any, attributes: int, length: int, embedding_size: int) -> None:
        super().__init__()
        self.shape = prefix_shape(config)
        layers, heads, head_dim = self.shape
        self.embeddings = nn.Parameter(torch.randn(attributes, length, embedding_size))
        self.mlp = nn.Sequential(
            nn.Linear(embedding_size, embedding_size),
            nn.Tanh(),
            nn.Linear(embedding_size, 2 * layers * heads * head_dim),
        )

    @torch.no_grad()
    def start_from(self, keys: Tensor, values: Tensor) -> None:
        """Let all slots begin near the states of one token, each (layers, heads, head_dim).

        Attention to it is what the network is used to, so that a text is hardly changed at first.
        """
        last = self.mlp[2]
        assert isinstance(last, nn.Linear)
        last.weight.normal_(std=0.02)
        last.bias.copy_(torch.stack([keys, values]).flatten())

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return keys and values, each (layers, attributes, heads, length, head_dim)."""
        attributes, length, _ = self.embeddings.shape
        states = self.mlp(self.embeddings).view(attributes, length, 2, *self.shape)
        keys, values = states.permute(2, 3, 0, 4, 1, 5).unbind()
        return keys, values


class PrefixedModel(LanguageModel):
    """A frozen decoder, and the prefixes of several attributes that are trained for it.

    With `latent`, an encoder guesses the attribute of a text: a linear layer over the hidden states
    of the frozen decoder.
    """

    architecture, decoding = "decoder", "causal"

    def __init__(
        self,
        backbone: LanguageModel,
        attributes: int,
        *,
        length: int,
        embedding_size: int,
        start_id: int,  # the token that begins a text
        latent: bool = False,
    ) -> None:
        super().__init__()
        self.config = backbone.config
        self.backbone = backbone.requires_grad_(False).eval()
        self.prefixes = Prefixes(self.config, attributes, length, embedding_size)
        self.encoder = nn.Linear(self.config.hidden_size, embedding_size) if latent else None
        cache = KVCache(1)
        start = Inputs.from_ids(torch.tensor([[start_id]]), causal=True)
        with torch.no_grad():
            backbone(replace(start, cache=cache).append_to_cache())
        states = zip(*(layer.buffers() for layer in cache.layers.values()), strict=True)
        self.prefixes.start_from(*(torch.stack(part)[:, 0, :, 0] for part in states))

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the prefixes; the frozen network stays without dropout."""
        super().train(mode)
        self.backbone.eval()
        return self

    @property
    def trained(self) -> nn.ModuleDict:
        """The modules that are trained."""
        modules: dict[str, nn.Module] = {"prefixes": self.prefixes}
        return nn.ModuleDict(
            modules if self.encoder is None else modules | {"encoder": self.encoder}
        )

    def forward_prefixes(self, inputs: Inputs, max_documents: int) -> Tensor:
        """Run packed texts after each prefix: (attributes, rows, length, hidden_size)."""
        keys, values = self.prefixes()
        attributes, length, _ = self.prefixes.embeddings.shape
        rows, tokens = inputs.input_ids.shape
        # All rows after the first prefix, then all rows after the second.
        repeated = tree_map(inputs, lambda t: t.repeat(attributes, *[1] * (t.ndim - 1)))
        cache = KVCache(max_documents * length + tokens)
        keys, values = (
            part.repeat_interleave(rows, dim=1).repeat(1, 1, 1, max_documents, 1)
            for part in (keys, values)
        )
        cache.fill(keys, values, prefix_mask(repeated.attention_mask, length, max_documents))
        output: Output = self.backbone(replace(repeated, cache=cache).append_to_cache())
        return output.hidden.view(attributes, rows, tokens, -1)

    def text_logprobs(
        self, inputs: Inputs, tokens: TokenTargets, text_ids: Tensor, texts: int, max_documents: int
    ) -> Tensor:
        """Return the log-likelihood of every text after each prefix: (attributes, texts)."""
        hidden = self.forward_prefixes(inputs, max_documents)
        logits = self.backbone.lm_logits(torch.cat([tokens.gather(each) for each in hidden]))
        assert isinstance(logits, LinearLogits) and logits.bias is None
        labels = tokens.labels.repeat(len(hidden))
        each = frozen_logprobs(logits.hidden, logits.weight, labels, logits.vocab_size)
        return each.new_zeros(len(hidden), texts).index_add(1, text_ids, each.view(len(hidden), -1))

    def attribute_logits(
        self, inputs: Inputs, tokens: TokenTargets, text_ids: Tensor, texts: int
    ) -> Tensor:
        """Return the encoder's scores of the attributes of every text: (texts, attributes).

        They are the negative squared distances of a text to the mean embedding of each prefix.
        """
        assert self.encoder is not None
        with torch.no_grad():
            hidden = tokens.gather(self.backbone(inputs).hidden).float()
            total = hidden.new_zeros(texts, hidden.shape[1]).index_add(0, text_ids, hidden)
            features = nn.functional.layer_norm(total, total.shape[1:])
        encoded, codes = self.encoder(features), self.prefixes.embeddings.mean(1)
        return -(encoded[:, None] - codes).square().sum(-1).float()

    def prefix(self, attribute: int) -> KeyValuePrefix:
        """Return the prefix of an attribute."""
        keys, values = self.prefixes()
        return KeyValuePrefix(keys[:, attribute].detach(), values[:, attribute].detach())
