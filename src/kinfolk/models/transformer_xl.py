"""Transformer-XL (Dai et al., 2019): a decoder that remembers the rows before, by their distance.

Each layer looks at what it read in the row before, too, so that a text has no end at the end of a
row. Places would be counted anew in every row: distances take their stead.
"""

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.nn.adaptive import Clusters
from kinfolk.nn.feedforward import FeedForward
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Summary, WithBiases
from kinfolk.nn.relative import RelativeAttention, View, waves
from kinfolk.nn.residual import PostNorm
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import initialise
from kinfolk.sight import UNWRITTEN
from kinfolk.types import Inputs, Memory, Output, Prediction, State


@config("transformer_xl")
class TransformerXLConfig(ModelConfig):
    """The published large model of WikiText-103, unless told otherwise."""

    vocab: int = field(default=267735, ge=1, help="number of token ids")
    width: int = field(default=1024, ge=1, help="size of the hidden states")
    depth: int = field(default=18, ge=1, help="number of layers")
    heads: int = field(default=16, ge=1, help="number of attention heads")
    head_width: int | None = field(
        default=None, ge=1, help="size of an attention head; None is the hidden size over the heads"
    )
    inner: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    memory: int = field(
        default=384, ge=1, help="number of cached hidden states from earlier segments"
    )
    clamp: int | None = field(
        default=None, ge=1, help="largest relative distance; None is unlimited"
    )
    window: int | None = field(
        default=None,
        ge=1,
        help="number of tokens that attention sees; None is the segment and the memory",
    )
    cutoffs: tuple[int, ...] = field(
        default=(20_000, 40_000, 200_000),
        ge=1,
        help="first id of each cluster of rarer tokens (adaptive softmax)",
    )
    divisor: int = field(
        default=4, ge=1, help="factor by which the embeddings of each next cluster are smaller"
    )
    dropout: float = field(default=0.2, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.2, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    epsilon: float = field(default=1e-5, gt=0, help="epsilon of the layer norms")
    std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return TransformerXL

    def build(self) -> "TransformerXL":
        """Make the network, with fresh weights."""
        return TransformerXL(self)


class Block(nn.Module):
    """Attention to the memory and the row, and feed-forward, each followed by a norm."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        inner = None if c.head_width is None else c.heads * c.head_width
        attention = RelativeAttention(c.width, c.heads, inner=inner, dropout=c.attention_dropout)
        feed = FeedForward(c.width, c.inner or 4 * c.width, "relu", dropout=c.dropout)
        self.attend = PostNorm(attention, nn.LayerNorm(c.width, c.epsilon), c.dropout)
        self.feed = PostNorm(feed, nn.LayerNorm(c.width, c.epsilon), c.dropout)

    def forward(
        self, x: Tensor, content: Tensor, view: View, state: State | None, layer: int
    ) -> Tensor:
        known = self.attend.branch.read(content, state, layer)  # type: ignore[operator]
        return self.feed(self.attend(x, known, view))


class TransformerXL(LanguageModel):
    """A table in clusters that also predicts, and blocks."""

    config: TransformerXLConfig
    tokens: Clusters
    architecture = "decoder"
    decoding = "causal"
    static_cache = False
    summary = Summary(reads="last", bias=False)

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.config = c
        self.attention_windows = () if c.window is None else (c.window,)
        self.tokens = Clusters(c.vocab, c.width, cutoffs=c.cutoffs, divisor=c.divisor)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = LayerStack(Block(c) for _ in range(c.depth))
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw the weights as the released code does."""
        initialise(self, std=self.config.std)
        # Deviation: the released code draws only the projections of clusters from 0.01.
        smaller = {*self.tokens.projections()}
        smaller |= {part.widen for part in self.modules() if isinstance(part, FeedForward)}
        for module in self.modules():
            if module in smaller:
                for weight in module.parameters():
                    weight.normal_(0.0, 0.01)
            noisy: tuple[nn.Parameter, ...] = ()
            if isinstance(module, WithBiases):
                noisy = module.bias_parameters()
            if isinstance(module, nn.LayerNorm):
                noisy = (module.weight,)
            for weight in noisy:
                weight.add_(torch.randn_like(weight), alpha=self.config.std)

    def forward(self, inputs: Inputs) -> Output:
        x = self.drop(self.tokens(inputs.ids) * self.config.width**0.5)
        view, memory, read = self.view(inputs), inputs.memory, []
        for layer, block in enumerate(self.blocks):
            content = x if memory is None else torch.cat([memory.hidden[layer], x], dim=1)
            read.append(content)
            x = block(x, content, view, inputs.state, layer)
        if inputs.state is not None and inputs.state.filled > self.config.memory:
            inputs.state.keep(self.config.memory)
        return Output(self.drop(x), inputs.state, self.remember(inputs, read))

    def view(self, inputs: Inputs) -> View:
        """Say how each token looks at the memory and at the tokens before it."""
        dropped = self.training and self.config.attention_dropout > 0
        visible = inputs.visible(dropout=dropped, window=self.config.window)
        past = 0 if inputs.memory is None else inputs.memory.document.shape[1]
        keys = past + inputs.ids.shape[1]
        if inputs.key_mask is not None:
            keys = inputs.key_mask.document.shape[1]
        table = self.tokens.table(0)
        far = waves(keys, 0, self.config.width, like=table, clamp=self.config.clamp)
        return View(visible, self.drop(far), keys)

    def remember(self, inputs: Inputs, read: list[Tensor]) -> Memory | None:
        """Return the last of what every layer read, where a memory was given."""
        if inputs.memory is None:
            return None
        size, seen = self.config.memory, inputs.memory.before(inputs.sight)
        hidden = torch.stack([content[:, -size:] for content in read]).detach()
        # Laid out as a blank one is: a compiled learner would be compiled again for another layout.
        document, birth = (x[:, -size:].contiguous() for x in (seen.document, seen.birth))
        return Memory(hidden, document, birth)

    def blank(self, rows: int) -> Memory:
        """Return the memory of rows that nothing stands before."""
        c, like = self.config, self.tokens.bias
        hidden = like.new_zeros(c.depth, rows, c.memory, c.width)
        document = torch.full((rows, c.memory), UNWRITTEN, dtype=torch.int32, device=like.device)
        return Memory(hidden, document, torch.zeros_like(document))

    def predict(self, hidden: Tensor) -> Prediction:
        """Score the next token with the tables that read the last."""
        return self.tokens.predict(hidden)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text. Its rows are of
# 128 tokens up to a width of 256 and of 512 above, and so are its memories; its vocabularies are
# small enough for one softmax.
PRESETS = {
    name: TransformerXLConfig(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        memory=128 if size.width <= 256 else 512,
        cutoffs=(),
        divisor=1,
        dropout=0.0,
        attention_dropout=0.0,
        std=size.width**-0.5,
    )
    for name, size in LADDER.items()
} | {
    # The scripts of the released code. Hugging Face calls the first transfo-xl-wt103.
    "transformer-xl-wt103": TransformerXLConfig(),
    "transformer-xl-wt103-base": TransformerXLConfig(
        width=410,
        depth=16,
        heads=10,
        inner=2100,
        memory=150,
        divisor=1,
        dropout=0.1,
        attention_dropout=0.0,
    ),
    "transformer-xl-enwik8": TransformerXLConfig(
        vocab=204,
        depth=24,
        heads=8,
        inner=3072,
        memory=784,
        cutoffs=(),
        divisor=1,
        dropout=0.15,
        attention_dropout=0.15,
    ),
    "transformer-xl-enwik8-base": TransformerXLConfig(
        vocab=204,
        width=512,
        depth=12,
        heads=8,
        memory=512,
        cutoffs=(),
        divisor=1,
        dropout=0.1,
        attention_dropout=0.0,
    ),
}
