"""XLNet (Yang et al., 2019): reads both ways, yet predicts token after token, in any order.

Each layer runs two streams through the same weights. The content knows every token it passes; a
guess knows a place and what was born before it, never the token that stands there. Positions are
distances, as in Transformer-XL, so that texts may be of any length and begin with a memory.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.nn.feedforward import FeedForward
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Summary
from kinfolk.nn.relative import SegmentedAttention, View, waves
from kinfolk.nn.residual import PostNorm
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.sight import see
from kinfolk.types import Inputs, Output, State


@config("xlnet")
class XLNetConfig(ModelConfig):
    """The published large model, unless told otherwise."""

    vocab: int = field(default=32000, ge=1, help="number of token ids")
    width: int = field(default=1024, ge=1, help="size of the hidden states")
    depth: int = field(default=24, ge=1, help="number of layers")
    heads: int = field(default=16, ge=1, help="number of attention heads")
    inner: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    bend: str = field(default="gelu", help="activation function of the feed-forward layer")
    clamp: int | None = field(
        default=None, ge=1, help="largest relative distance; None is unlimited"
    )
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    epsilon: float = field(default=1e-12, gt=0, help="epsilon of the layer norms")
    std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return XLNet

    def build(self) -> "XLNet":
        """Make the network, with fresh weights."""
        return XLNet(self)


class Block(nn.Module):
    """Attention and feed-forward, each followed by a norm, for either stream."""

    def __init__(self, c: XLNetConfig) -> None:
        super().__init__()
        attention = SegmentedAttention(c.width, c.heads, dropout=c.dropout)
        feed = FeedForward(c.width, c.inner or 4 * c.width, c.bend, dropout=c.dropout)
        self.attend = PostNorm(attention, nn.LayerNorm(c.width, c.epsilon), c.dropout)
        self.feed = PostNorm(feed, nn.LayerNorm(c.width, c.epsilon), c.dropout)

    def read(self, content: Tensor, state: State | None, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values that both streams look at."""
        return self.attend.branch.read(content, state, layer)  # type: ignore[operator]

    def forward(self, x: Tensor, known: tuple[Tensor, Tensor], view: View) -> Tensor:
        return self.feed(self.attend(x, known, view))


class XLNet(LanguageModel):
    """A token table that also predicts, one vector that every guess starts from, and blocks."""

    config: XLNetConfig
    tokens: Table
    architecture = "encoder"
    decoding = "two-stream"
    can_fill = True
    static_cache = False
    summary = Summary(reads="last", bend="tanh")
    pretraining_only = ("bias",)

    def __init__(self, c: XLNetConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.width)
        self.blank = nn.Parameter(torch.zeros(1, 1, c.width))
        self.drop = nn.Dropout(c.dropout)
        self.blocks = LayerStack(Block(c) for _ in range(c.depth))
        self.bias = nn.Parameter(torch.zeros(c.vocab))
        initialise(self, std=c.std)
        with torch.no_grad():  # the published code draws these as it does matrices
            self.blank.normal_(0.0, c.std)
            for module in self.modules():
                if isinstance(module, SegmentedAttention):
                    for weight in (*module.bias_parameters(), module.segments):
                        weight.normal_(0.0, c.std)

    def forward(self, inputs: Inputs) -> Output:
        content = self.drop(self.tokens(inputs.ids))
        view, ahead = self.views(inputs)
        guesses = None
        if inputs.asked is not None:
            guesses = self.drop(self.blank.expand(*inputs.asked.shape, -1))
        for layer, block in enumerate(self.blocks):
            known = block.read(content, inputs.state, layer)  # type: ignore[operator]
            if guesses is not None:
                guesses = block(guesses, known, ahead)
            if guesses is None or layer + 1 < len(self.blocks):
                content = block(content, known, view)
        return Output(self.drop(content if guesses is None else guesses), inputs.state)

    def views(self, inputs: Inputs) -> tuple[View, View | None]:
        """Say how the content looks at itself, and the guesses at it."""
        seen, length = inputs.seen(), inputs.ids.shape[1]
        keys = seen.document.shape[1]
        far = waves(keys, 1 - length, self.config.width, like=self.blank, clamp=self.config.clamp)
        far = self.drop(far)
        own = see(inputs.sight, seen, biased=True)
        view = View(own, far, keys, apart=apart(inputs.segments, keys))
        if (asked := inputs.asked) is None:
            return view, None
        ahead = see(inputs.sight.before(asked), seen, biased=True)
        return view, View(ahead, far, keys, asked, length, apart(inputs.segments, keys, asked))

    def predict(self, hidden: Tensor) -> Scores:
        """Score the token with the table that read the others."""
        return self.tokens.predict(hidden, self.bias)


def apart(segments: Tensor | None, keys: int, slots: Tensor | None = None) -> Tensor | None:
    """Say which keys are of another segment than a query; a memory is of the first."""
    if segments is None:
        return None
    there = F.pad(segments, (keys - segments.shape[1], 0))
    here = segments if slots is None else segments.gather(1, slots)
    return here[:, :, None] != there[:, None, :]


# Deviation: the shared ladder trains without dropout, as fits one pass over a text. Its weights
# start larger: a small XLNet then finds its neighbours much sooner.
PRESETS = {
    name: XLNetConfig(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        dropout=0.0,
        std=size.width**-0.5,
    )
    for name, size in LADDER.items()
} | {
    "xlnet-base-cased": XLNetConfig(width=768, depth=12, heads=12),
    "xlnet-large-cased": XLNetConfig(),
}
