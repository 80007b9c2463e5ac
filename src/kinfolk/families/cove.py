"""CoVe (McCann et al., 2017): contextual word vectors from the encoder of a translation model.

The encoder, the MT-LSTM, is two layers of bidirectional LSTMs over word vectors. The decoder is two
layers of LSTMs with global attention (Luong et al. 2015): a step reads the word before and the
attentional state of the step before (input feeding). What the trained encoder returns for the
words of another task is CoVe; classifiers and readers get [word vector; CoVe] of every word.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import STANDARD_SIZES, Family
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import (
    MAX_LAYERS,
    MAX_SIZE,
    EncoderDecoder,
    LayerStack,
    ModelConfig,
    model_field,
    network_of,
)
from kinfolk.nn.layers import SlicedLinear
from kinfolk.nn.recurrent import open_forget_gates_
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.packed_texts import PackedTexts
from kinfolk.training.config import TrainConfig

STATE, SCORES = 0, 1  # keys of KVCache.extra


@config("cove")
class CoVeConfig(ModelConfig):
    """The published network by default, with a vocabulary of 50,000 words for both languages."""

    vocab_size: int = model_field("vocab_size", 50_000)
    embedding_size: int = model_field("embedding_size", 300)
    hidden_size: int = field(
        default=600,
        ge=2,
        le=MAX_SIZE,
        help="size of the hidden states; in the encoder half of it for each direction",
    )
    num_layers: int = field(
        default=2, ge=1, le=MAX_LAYERS, help="number of LSTM layers of encoder and of decoder"
    )
    freeze_embeddings: bool = field(
        default=False, help="do not train the word vectors of the encoder"
    )
    encoder_only: bool = field(
        default=False, help="no decoder, as the published weights: it gives features, no words"
    )
    decoder_start_token_id: int = model_field("decoder_start_token_id", 0)
    dropout: float = field(
        default=0.2, ge=0, lt=1, help="dropout rate of the inputs and outputs of layers"
    )

    def __post_init__(self) -> None:
        if self.hidden_size % 2:
            raise UserError(
                f"model.hidden_size={self.hidden_size} must be even: each direction of the encoder "
                "has half of it"
            )

    @property
    def features_only(self) -> "CoVeConfig":
        """The config of the encoder."""
        return replace(self, encoder_only=True)


class MTLSTM(nn.Module):
    """The encoder: bidirectional LSTM layers over the texts of packed rows."""

    def __init__(self, c: CoVeConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(c.dropout)
        sizes = [c.embedding_size, *[c.hidden_size] * (c.num_layers - 1)]
        self.layers = LayerStack(
            nn.LSTM(size, c.hidden_size // 2, bidirectional=True) for size in sizes
        )

    def forward(self, flat: Tensor, batch_sizes: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the output of each layer, (tokens, hidden_size), and the last states.

        These are hidden and cell state of each layer: (texts, 2 x layers, hidden_size).
        """
        outputs: list[Tensor] = []
        states: list[Tensor] = []
        for layer in self.layers:
            packed, (hidden, cell) = layer(PackedSequence(self.dropout(flat), batch_sizes))
            flat = packed.data
            outputs.append(flat)
            states += [torch.cat([*hidden], dim=1), torch.cat([*cell], dim=1)]
        return outputs, torch.stack(states, dim=1)


@dataclass(frozen=True, eq=False)
class Source:
    """What the decoder attends to, for each of its texts."""

    keys: Tensor  # (texts, source length, hidden_size)
    values: Tensor  # (texts, source length, hidden_size)
    scores: Tensor  # (texts, source length): added to those of the keys; -inf at padding

    def first(self, texts: int) -> "Source":
        """Return the part of the first texts."""
        if texts == len(self.keys):
            return self
        return Source(self.keys[:texts], self.values[:texts], self.scores[:texts])

    def select(self, texts: Tensor) -> "Source":
        """Return the parts of these texts."""
        return Source(self.keys[texts], self.values[texts], self.scores[texts])


class AttentionDecoder(nn.Module):
    """LSTM layers whose last output attends to the source; the result is fed to the next step.

    h_t = LSTM([z_t; a_{t-1}], h_{t-1});  a_t = tanh(W2 [H^T softmax(H (W1 h_t + b1)); h_t] + b2)
    """

    def __init__(self, c: CoVeConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(c.dropout)
        sizes = [c.embedding_size + c.hidden_size, *[c.hidden_size] * (c.num_layers - 1)]
        self.layers = LayerStack(nn.LSTM(size, c.hidden_size) for size in sizes)
        self.query_proj = SlicedLinear(c.hidden_size, c.hidden_size)  # W1
        self.out_proj = SlicedLinear(2 * c.hidden_size, c.hidden_size)  # W2

    def source(self, hidden: Tensor, visible: Tensor) -> Source:
        """Prepare the encoder's output for attention: what depends on no step is computed once."""
        # H (W1 h + b1) is (H W1) h + H b1, and W2 H^T p is (H W2)^T p, where p adds up to 1.
        w_context = self.out_proj.weight[:, : hidden.shape[-1]]
        scores = hidden @ self.query_proj.bias
        return Source(
            hidden @ self.query_proj.weight,
            nn.functional.linear(hidden, w_context, self.out_proj.bias),
            scores.masked_fill(~visible, float("-inf")),
        )

    def forward(
        self, flat: Tensor, batch_sizes: Tensor, source: Source, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run all texts step by step; return the attentional states and the last states.

        A state is hidden and cell state of each layer and the attentional state: (texts, 2 x layers
        + 1, hidden_size).
        """
        states, outputs, ended = list(state.unbind(1)), list[Tensor](), list[Tensor]()
        for x in self.dropout(flat).split(batch_sizes.tolist()):
            if len(x) < len(states[0]):  # longer texts come first
                ended.append(torch.stack([part[len(x) :] for part in states], dim=1))
                states = [part[: len(x)] for part in states]
                source = source.first(len(x))
            states = self.step(x, source, states)
            outputs.append(states[-1])
        last = [torch.stack(states, dim=1), *reversed(ended)]
        return torch.cat(outputs), torch.cat(last)

    def step(self, x: Tensor, source: Source, states: list[Tensor]) -> list[Tensor]:
        """Read one word of each text."""
        x = torch.cat([x, states[-1]], dim=1)
        new: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            state = states[2 * i], states[2 * i + 1]
            new += torch.lstm_cell(x, state, *layer.parameters())
            x = self.dropout(new[-2])
        scores = torch.baddbmm(source.scores[:, :, None], source.keys, x[:, :, None])
        context = (scores.softmax(1).transpose(1, 2) @ source.values)[:, 0]
        w_state = self.out_proj.weight[:, x.shape[1] :]
        attentional = torch.addmm(context, x, w_state.T).tanh()
        return [*new, self.dropout(attentional)]


@network_of(CoVeConfig)
class CoVe(EncoderDecoder):
    """Word vectors, the MT-LSTM, target embeddings, the decoder and its output layer."""

    config: CoVeConfig
    token_embeddings: TokenEmbedding
    can_fill = False
    static_cache = False
    static_shapes = False
    input_only = ("token_embeddings", "target_embeddings")

    def __init__(self, c: CoVeConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.embedding_size)
        self.encoder = MTLSTM(c)
        if not c.encoder_only:
            self.target_embeddings = TokenEmbedding(c.vocab_size, c.embedding_size)
            self.decoder = AttentionDecoder(c)
            self.lm_head = TokenEmbedding(c.vocab_size, c.hidden_size)
            self.lm_bias = nn.Parameter(torch.zeros(c.vocab_size))
        self.init_weights()
        self.token_embeddings.weight.requires_grad_(not c.freeze_embeddings)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the weights; the paper does not say how."""
        scale = self.config.hidden_size**-0.5
        init_weights_(self, std=scale, embedding_std=1.0)
        if not self.config.encoder_only:
            # Attentional states are small at first: larger weights of the output learn sooner.
            self.lm_head.weight.mul_(3 * scale)
        open_forget_gates_(self)

    @property
    def decoder_embeddings(self) -> nn.Module:
        """The embeddings that the decoder reads."""
        return self.target_embeddings

    @property
    def num_feature_layers(self) -> int:
        """One: CoVe is the output of the last layer of the encoder."""
        return 1

    def layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return CoVe of each token: (batch, length, hidden_size)."""
        return [self.encode(inputs)]

    def all_layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the word vectors and the output of every layer of the encoder."""
        texts = PackedTexts.of(inputs.attention_mask.document_ids)
        outputs, _ = self.run_encoder(inputs, texts)
        return [self.token_embeddings(inputs.input_ids), *map(texts.unflatten, outputs)]

    def encode(self, encoder_inputs: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, hidden_size)."""
        texts = PackedTexts.of(encoder_inputs.attention_mask.document_ids)
        outputs, _ = self.run_encoder(encoder_inputs, texts)
        return texts.unflatten(outputs[-1])

    def run_encoder(self, inputs: Inputs, texts: PackedTexts) -> tuple[list[Tensor], Tensor]:
        """Return the output of each layer for the tokens of texts, and the last states."""
        embedded = texts.flatten(self.token_embeddings(inputs.input_ids))
        with full_precision(embedded):
            return self.encoder(embedded, texts.batch_sizes)

    def forward(self, inputs: Inputs) -> Output:
        self.check_lm_head()
        texts = PackedTexts.of(inputs.attention_mask.document_ids)
        embedded = texts.flatten(self.target_embeddings(inputs.input_ids))
        with full_precision(embedded):
            source, state = self.decoder_start(inputs, texts)
            flat, state = self.decoder(embedded, texts.batch_sizes, source, state)
        if inputs.cache is not None:
            rows = first_tokens(texts) // inputs.input_ids.shape[1]
            inputs.cache.extra[STATE] = inputs.cache.extra[STATE].index_copy(0, rows, state)
        return Output(texts.unflatten(flat), inputs.cache)

    def decoder_start(self, inputs: Inputs, texts: PackedTexts) -> tuple[Source, Tensor]:
        """Return the source of each of the decoder's texts and the state that it continues from."""
        if inputs.encoder_inputs is None:
            raise UserError("CoVe is an encoder-decoder: pass Inputs with `encoder_inputs`")
        length, cache = inputs.input_ids.shape[1], inputs.cache
        rows = first_tokens(texts) // length
        if cache is None:
            document_ids = inputs.attention_mask.document_ids.flatten()[first_tokens(texts)]
            return self.sources_of(inputs.encoder_inputs, rows, document_ids)
        if not cache.extra:  # each row is one text, document 0
            every = torch.arange(len(inputs.input_ids), device=rows.device)
            source, state = self.sources_of(inputs.encoder_inputs, every, torch.zeros_like(every))
            cache.cross_kv[0] = source.keys, source.values
            cache.extra = {STATE: state, SCORES: source.scores}
        source = Source(*cache.cross_kv[0], cache.extra[SCORES])
        return source.select(rows), cache.extra[STATE][rows]

    def sources_of(
        self, inputs: Inputs, rows: Tensor, document_ids: Tensor
    ) -> tuple[Source, Tensor]:
        """Return the sources of texts, by their rows and documents, and the encoder's last states.

        The attentional state starts from zeros.
        """
        texts = PackedTexts.of(inputs.attention_mask.document_ids)
        outputs, states = self.run_encoder(inputs, texts)
        hidden, lengths = pad_packed_sequence(
            PackedSequence(outputs[-1], texts.batch_sizes), batch_first=True
        )
        visible = torch.arange(hidden.shape[1]) < lengths[:, None]
        first = first_tokens(texts)
        same_row = rows[:, None] == first // inputs.input_ids.shape[1]
        own_ids = inputs.attention_mask.document_ids.flatten()[first]
        own = (same_row & (document_ids[:, None] == own_ids)).int().argmax(1)
        source = self.decoder.source(hidden, visible.to(hidden.device)).select(own)
        return source, torch.cat([states[own], states.new_zeros(len(own), 1, states.shape[2])], 1)

    def check_lm_head(self) -> None:
        """Raise UserError if the network has no decoder."""
        if self.config.encoder_only:
            raise UserError(
                "the model is an encoder without a decoder (model.encoder_only), which predicts no "
                "words: fine-tune it on a task, which reads its features"
            )

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of the next token, computed on demand."""
        return self.lm_head.lm_logits(hidden, self.lm_bias)


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context without mixed precision: errors of a recurrent state add up over a text."""
    return torch.autocast(x.device.type, enabled=False)


def first_tokens(texts: PackedTexts) -> Tensor:
    """Return the positions of the first token of each text in the flattened rows."""
    return texts.positions[: texts.num_texts]


FAMILY = Family(
    name="cove",
    title="CoVe",
    paper="McCann et al. 2017",
    year=2017,
    model=CoVe,
    sizes={
        # Deviation: two layers, as published, in every size but one; the standard sizes, made for
        # Transformers, have up to 24.
        **{
            name: CoVeConfig(
                hidden_size=size.hidden_size,
                embedding_size=size.hidden_size // 2,
                num_layers=4 if name == "medium" else 2,
                dropout=0.0,
            )
            for name, size in STANDARD_SIZES.items()
        },
        # Section 4; word vectors are GloVe's.
        "mt-lstm": CoVeConfig(freeze_embeddings=True),
    },
    objectives={"pairs": Seq2Seq},
    training=TrainConfig(lr=2e-3, warmup=100, weight_decay=0.0),
    # Deviation: AdamW; the paper has SGD with a rate of 1, halved when the perplexity grows.
    paper_training={"mt-lstm": TrainConfig(lr=1e-3, warmup=500, weight_decay=0.0)},
    template="t5",
    formulation="features",
)
