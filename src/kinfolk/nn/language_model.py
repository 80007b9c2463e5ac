"""The base classes of networks and their configs, and types that mark parts of a network.

Training, generation and the hub read these declarations. They never search parameter names and
never probe for attributes.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, LazyLogits, Output, SegmentMemory, gather_positions
from kinfolk.config import config, field, type_name
from kinfolk.errors import UserError
from kinfolk.nn.attention import SPARSE_HEAD_DIMS as SPARSE_HEAD_DIMS
from kinfolk.nn.attention import attention_backend, cross_attention_backend
from kinfolk.nn.attention import head_dims as head_dims
from kinfolk.nn.embeddings import LinearLogits
from kinfolk.nn.layers import HAS_TRITON as HAS_TRITON
from kinfolk.nn.layers import FusedLinear as FusedLinear
from kinfolk.nn.layers import Split as Split
from kinfolk.nn.layers import TensorParallel as TensorParallel

NORMS = (nn.LayerNorm, nn.RMSNorm)  # of all families

Architecture = Literal["encoder", "decoder", "encoder-decoder", "recurrent"]
# How it generates: the next token; the same with an encoder; into the blanks of a text (GLM); a
# prediction for a target position (XLNet).
Decoding = Literal["causal", "encoder-decoder", "infilling", "two-stream"]


@config("pooling")
class Pooling:
    """How hidden states become one vector of a text."""

    token: Literal["first", "last", "mean", "concat"] = field(
        default="first",
        help="token whose hidden state is read, the mean of all tokens, or the last hidden state, "
        "the maximum and the mean side by side (concat)",
    )
    activation: Literal["tanh", "gelu"] | None = field(
        default=None, help="activation after a new dense layer; None has no such layer"
    )
    pooler: bool = field(default=False, help="use the family's own pretrained pooling layer")
    bias: bool = field(default=True, help="add a bias to the scores")


# Upper bounds of sizes: far above any published network, and low enough that no product of two of
# them overflows. Whether a network fits into memory is checked when it is built.
MAX_VOCAB, MAX_SIZE, MAX_LAYERS, MAX_TOKENS = 2**26, 2**18, 2**12, 2**24

# Range and help of the fields that several configs have.
MODEL_FIELDS: dict[str, dict[str, Any]] = {
    "vocab_size": {"ge": 1, "le": MAX_VOCAB, "help": "number of token ids"},
    "type_vocab_size": {"ge": 1, "le": MAX_VOCAB, "help": "number of token types"},
    "embedding_size": {"ge": 1, "le": MAX_SIZE, "help": "size of the token embeddings"},
    "hidden_size": {"ge": 1, "le": MAX_SIZE, "help": "size of the hidden states"},
    "num_layers": {"ge": 1, "le": MAX_LAYERS, "help": "number of layers"},
    "num_heads": {"ge": 1, "le": MAX_SIZE, "help": "number of attention heads"},
    "head_dim": {
        "ge": 1,
        "le": MAX_SIZE,
        "help": "size of an attention head; None is the hidden size over the heads",
    },
    "intermediate_size": {
        "ge": 1,
        "le": 2**20,
        "help": "size of the feed-forward layer; None is four times the hidden size",
    },
    "max_length": {"ge": 1, "le": MAX_TOKENS, "help": "longest sequence, in tokens"},
    "clamp_len": {
        "ge": 1,
        "le": MAX_TOKENS,
        "help": "largest relative distance; None is unlimited",
    },
    "decoder_start_token_id": {
        "ge": 0,
        "lt": MAX_VOCAB,
        "help": "id of the token that the decoder starts from",
    },
    "activation": {"help": "activation function of the feed-forward layer"},
    "dropout": {"ge": 0, "lt": 1, "help": "dropout rate of embeddings and sublayers"},
    "attention_dropout": {"ge": 0, "lt": 1, "help": "dropout rate of attention probabilities"},
    "layer_norm_eps": {"gt": 0, "le": 1, "help": "epsilon of the layer norms"},
    "init_std": {"ge": 0, "le": 100, "help": "standard deviation of initial weights"},
    "mimetic_init": {"help": "mimetic initialisation: attention starts on neighbouring tokens"},
}


def model_field(name: str, default: Any) -> Any:
    """Declare a field of `MODEL_FIELDS`: `num_layers: int = model_field("num_layers", 12)`."""
    return field(default=default, **MODEL_FIELDS[name])


class ModelConfig:
    """Base of the frozen dataclasses that describe a network.

    The defaults here are properties, not fields: a config without such a field rejects its name.
    """

    vocab_size: int
    network: ClassVar["type[LanguageModel]"]  # the class that `network_of` declares

    def __post_init__(self) -> None:
        if self.num_heads > 1 and self.head_dim is None and self.hidden_size % self.num_heads:
            raise UserError(
                f"model.num_heads={self.num_heads} does not divide "
                f"model.hidden_size={self.hidden_size}"
            )

    def build(self) -> "LanguageModel":
        """Build the network with new weights."""
        return self.network(self)

    def build_on(self, backbone: "LanguageModel") -> "LanguageModel":
        """Build the network with the weights of a pretrained one, below a new task head if any."""
        model = self.build()
        model.load_state_dict(backbone.state_dict())
        return model

    @property
    def pretrained(self) -> "ModelConfig":
        """The config of the pretrained network: itself, or the one below a task head."""
        return self

    @property
    def features_only(self) -> "ModelConfig":
        """The config of the part that gives features to a task network; by default all of it."""
        return self

    @property
    def family_name(self) -> str:
        """The name of its family: the registered name of the pretrained network's config."""
        return type_name(self.pretrained)

    @property
    def hidden_size(self) -> int:
        """The size of the hidden states."""
        raise NotImplementedError

    @property
    def max_length(self) -> int | None:
        """The longest input in tokens; None where there is no bound."""
        return None

    @property
    def max_characters(self) -> int | None:
        """The characters of a token that the network reads; None where it reads ids alone."""
        return None

    @property
    def num_heads(self) -> int:
        """The number of attention heads; 1 where there is no attention."""
        return 1

    @property
    def head_dim(self) -> int | None:
        """The size of an attention head; None is the hidden size over the heads."""
        return None

    @property
    def attention_dropout(self) -> float:
        """The dropout rate of attention probabilities."""
        return 0.0

    @property
    def counting_steps(self) -> int | None:
        """The steps of a run that counts; None for a network that is trained by gradients."""
        return None

    @property
    def init_std(self) -> float:
        """The standard deviation of initial weights."""
        return 0.02

    def with_fields(self, **values: Any) -> Self:
        """Replace the fields that the config has; ignore the other values."""
        declared = {field.name for field in fields(self)}  # type: ignore[arg-type]
        known = {name: value for name, value in values.items() if name in declared}
        return replace(self, **known)  # type: ignore[type-var]


class LanguageModel(nn.Module):
    """A network over tokens, independent of the objective."""

    config: Any
    token_embeddings: nn.Module  # input ids to vectors
    architecture: Architecture
    decoding: Decoding | None = None  # None: it cannot generate
    can_fill: bool = False  # it predicts masked tokens or spans from both sides
    gradient_free: str | None = None  # why it has no gradients; None: it is trained by them
    static_cache: bool = True  # one step over its cache has the same shapes as the next
    # Its layers attend to cached keys and values wherever they come from (prefix tuning).
    takes_prefix: bool = False
    # Shapes inside follow from those of the inputs; else it is not compiled (recurrent networks).
    static_shapes: bool = True
    # Its layers read the texts of a row one by one (recurrent networks): the data loader finds
    # them, since on an accelerator the network would have to wait for it.
    reads_texts: bool = False
    # Without static shapes: they are static for batches whose rows are one text each.
    static_whole_rows: bool = False
    # Tables of token embeddings that predict no tokens: the output layer is another one.
    input_only: tuple[str, ...] = ()
    attention_windows: tuple[int, ...] = ()  # of its banded layers
    # What position 0 is embedded as; None: it reads no absolute positions.
    first_position: int | None = None
    varlen_attention: bool = True  # no attention to a whole row adds a bias to the scores
    # Why processes cannot hold its layers together (tensor parallel); None: they declare how.
    undivided: str | None = None
    # It computes the end of its last layer at `Inputs.read_positions` alone, where these are set.
    skips_unread: bool = False
    # Its layers are one stack, whose input may be `Inputs.hidden` (pipeline parallel).
    pipelined: bool = False
    pooling: Pooling | None = None  # of a task head; None: it takes none
    lm_head_modules: tuple[
        str, ...
    ] = ()  # modules that only predict tokens, which a folder may lack
    # Modules with random weights, because the folder that the network was loaded from lacks them.
    random_modules: tuple[str, ...] = ()
    # Modules that an objective of the encoder alone leaves as they are; none of other networks.
    decoder_modules: tuple[str, ...] = ()
    # Modules whose weights are still random, because its pretraining left them as they were.
    untrained_modules: tuple[str, ...] = ()
    pretraining_only: tuple[str, ...] = ()  # modules that a network with a task head lacks
    pooling_only: tuple[str, ...] = ()  # modules that only a head over a text uses
    top_modules: tuple[str, ...] = ()  # of the top layer besides a head: a tied output layer
    # The file that the weights are mapped from, where it is copied to save the network.
    weights_file: Path | None = None

    @property
    def pretrained(self) -> "LanguageModel":
        """The pretrained network: itself, or the one below a task head."""
        return self

    @property
    def family_name(self) -> str:
        """The name of its family."""
        return self.config.family_name

    def attention_fn(self, inputs: Inputs, *, window: int | None = None) -> AttentionBackend:
        """Return the backend of self-attention for these inputs."""
        dropout = self.training and self.config.attention_dropout > 0
        return attention_backend(inputs, dropout=dropout, window=window)

    @property
    def num_feature_layers(self) -> int:
        """The number of hidden states that `layer_outputs` returns."""
        return int(self.config.num_layers) + 1

    @property
    def feature_size(self) -> int:
        """The size of the hidden states that `layer_outputs` returns."""
        return int(self.config.hidden_size)

    def layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the input of the first layer and the output of each: (batch, length, size).

        The last one is what the network itself returns, after its last norm.
        """
        return self.record_layers(lambda: self(inputs).hidden)

    def all_layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the embeddings and the output of every layer, whose sizes may differ."""
        return self.layer_outputs(inputs)

    def record_layers(self, run: Callable[[], Tensor]) -> list[Tensor]:
        """Return the input of the first layer and the outputs of all that a function runs.

        The function returns the hidden states after the last norm, which replace the last output.
        """
        found: list[Tensor] = []

        def add(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            found.extend([output] if found else [arguments[0], output])

        stacks = [part for part in self.modules() if isinstance(part, LayerStack)]
        hooks = [layer.register_forward_hook(add) for stack in stacks for layer in stack]
        try:
            hidden = run()
        finally:
            for hook in hooks:
                hook.remove()
        return [*found[:-1], hidden]

    @property
    def max_vocab_size(self) -> int:
        """The number of token ids that it may be given; `random_modules` may have any number."""
        return int(self.config.vocab_size)

    def set_character_table(self, table: Tensor) -> None:
        """Set the characters of every token, if the config has `max_characters`."""
        raise NotImplementedError

    def forward_lm(self, inputs: Inputs) -> Output:
        """Run the network that predicts tokens: itself, its generator (ELECTRA), or its encoder."""
        return self(inputs)

    def read(self, inputs: Inputs, positions: Tensor | None) -> Tensor:
        """Return the hidden states at positions of the flattened rows, or at all.

        The shape is (positions, size). A network that `skips_unread` computes no others.
        """
        return self._read(self, inputs, positions)

    def read_lm(self, inputs: Inputs, positions: Tensor | None) -> Tensor:
        """Return the hidden states of the network that predicts tokens, as `read` does."""
        return self._read(self.forward_lm, inputs, positions)

    def _read(
        self, run: Callable[[Inputs], Output], inputs: Inputs, positions: Tensor | None
    ) -> Tensor:
        if positions is None or not self.skips_unread:
            return gather_positions(run(inputs).hidden, positions)
        return run(replace(inputs, read_positions=positions)).hidden[0]

    def forward_bilm(
        self, inputs: Inputs, backward_inputs: Inputs
    ) -> tuple[Tensor, Tensor, SegmentMemory | None]:
        """Run a forward and a backward LM (ELMo); return their hidden states and the memory."""
        raise NotImplementedError

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the logits over the vocabulary, computed on demand."""
        raise NotImplementedError

    def apply_final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the norm after the last layer, where there is one (logit lens)."""
        return hidden

    def fill_logits(self, ids: Tensor, position: int) -> Tensor:
        """Return a score of every token at a position of a text, from both sides: (vocabulary,)."""
        raise NotImplementedError

    def check_lm_head(self) -> None:
        """Raise UserError if the modules that predict tokens were not in the model folder."""
        if random := [name for name in self.random_modules if name in self.lm_head_modules]:
            raise UserError(
                f"the model folder has no weights of {', '.join(random)}, which predict tokens: "
                "pretrain the model first, or fine-tune it on a task"
            )

    def seq_relationship_logits(self, hidden: Tensor) -> Tensor:
        """Return two logits per pair of texts from the hidden state of its first token."""
        raise NotImplementedError

    def discriminator_logits(self, hidden: Tensor) -> Tensor:
        """Return one logit per token, above zero for replaced tokens: (batch, length)."""
        raise NotImplementedError

    def init_memory(self, batch_size: int) -> SegmentMemory:
        """Return an empty memory of earlier segments."""
        raise NotImplementedError


class EncoderDecoder(LanguageModel):
    """A network whose decoder attends to the hidden states of an encoder."""

    architecture = "encoder-decoder"
    decoding = "encoder-decoder"
    can_fill = True

    @property
    def decoder_embeddings(self) -> nn.Module:
        """The embeddings that the decoder reads; by default the encoder's."""
        return self.token_embeddings

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of the next token, computed on demand."""
        raise NotImplementedError

    def encode(self, encoder_inputs: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, hidden_size)."""
        raise NotImplementedError

    def forward_lm(self, inputs: Inputs) -> Output:
        """Run the network; of a text alone the encoder, where it may be trained by itself."""
        if inputs.encoder_inputs is None and self.decoder_modules:
            return Output(self.encode(inputs))
        return self(inputs)

    def layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the input of the encoder's first layer and the output of each of its layers."""
        return self.record_layers(lambda: self.encode(inputs))

    def encoder_states(
        self, inputs: Inputs, *, dropout: bool = False
    ) -> tuple[Tensor, AttentionBackend]:
        """Return the encoder's output, computed once per cache, and how the decoder attends to it.

        `dropout`: attention probabilities will be dropped.
        """
        if inputs.encoder_inputs is None:
            raise UserError(
                f"{type(self).__name__} is an encoder-decoder: pass Inputs with `encoder_inputs`"
            )
        cache = inputs.cache
        source = None if cache is None else cache.encoder_output
        if source is None:
            source = self.encode(inputs.encoder_inputs)
        if cache is not None:
            cache.encoder_output = source
        return source, cross_attention_backend(inputs, dropout=dropout)


Network = TypeVar("Network", bound=LanguageModel)


def network_of(config: type[ModelConfig]) -> Callable[[type[Network]], type[Network]]:
    """Declare the network that a config describes: `@network_of(GPT2Config)` before its class."""

    def declare(network: type[Network]) -> type[Network]:
        config.network = network
        return network

    return declare


class LayerStack(nn.ModuleList):
    """Layers in their order; layer-wise learning rates number them from 1."""

    def with_read_positions(self, inputs: Inputs) -> Iterator[tuple[nn.Module, Tensor | None]]:
        """Return each layer, and where its output is read: only of the last not everywhere."""
        return zip(self, [*(len(self) - 1) * [None], inputs.read_positions], strict=True)


class StagedLayer(nn.Module):
    """A layer with methods besides `forward` that run a part of it."""

    stages: tuple[str, ...]  # the names of these methods


class SharedLayers(nn.Module):
    """Layers that share their weights and count as one layer (ALBERT)."""

    def sublayers(self) -> list[nn.Module]:
        """Return the modules that it runs one after the other, each several times."""
        raise NotImplementedError


class WithBiases(nn.Module):
    """A module with biases of two or more axes, whose shape is that of a matrix."""

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return these biases: they are exempt from weight decay."""
        raise NotImplementedError


def stacked_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all stacks in a module; those that share their weights are one."""
    found: list[nn.Module] = []
    for part in module.modules():
        if isinstance(part, LayerStack):
            found += part
        elif isinstance(part, SharedLayers):
            found.append(part)
    return found


def executed_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all stacks; of those that share their weights, the modules they run."""
    return [
        part
        for layer in stacked_layers(module)
        for part in (layer.sublayers() if isinstance(layer, SharedLayers) else [layer])
    ]


def attention_windows(module: nn.Module) -> tuple[int, ...]:
    """Return the attention windows of the networks in a module, each once."""
    networks = [part for part in module.modules() if isinstance(part, LanguageModel)]
    return tuple({window: None for part in networks for window in part.attention_windows})


def uses_varlen_attention(module: nn.Module) -> bool:
    """Return whether varlen attention can compute what the networks in a module attend to."""
    networks = [part for part in module.modules() if isinstance(part, LanguageModel)]
    return all(part.varlen_attention and part.static_shapes for part in networks)


def reads_texts(module: nn.Module) -> bool:
    """Return whether a network in a module reads the texts of a row one by one."""
    networks = [part for part in module.modules() if isinstance(part, LanguageModel)]
    return any(part.reads_texts for part in networks)


def has_static_shapes(module: nn.Module) -> bool:
    """Return whether the networks in a module have static shapes."""
    networks = [part for part in module.modules() if isinstance(part, LanguageModel)]
    return all(part.static_shapes for part in networks)
