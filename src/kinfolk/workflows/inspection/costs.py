"""What a network costs: parameters and FLOPs by part with their formulas, memory by length.

Nothing is allocated: networks are built on torch's meta device, so that any size can be asked for.
"""

from collections import Counter
from math import prod

from torch import nn

from kinfolk.families.albert import Albert
from kinfolk.families.cove import CoVe
from kinfolk.families.elmo import ELMo
from kinfolk.families.ngram import NGramTable
from kinfolk.families.transformer_xl import TransformerXLConfig
from kinfolk.nn.attention import Attention, CrossAttention
from kinfolk.nn.characters import CharacterCNN, CharacterEmbedding
from kinfolk.nn.embeddings import AdaptiveEmbedding, MaskedLMHead, TokenEmbedding
from kinfolk.nn.language_model import EncoderDecoder, LanguageModel, ModelConfig
from kinfolk.nn.layers import FeedForward, GatedFeedForward, SlicedLinear
from kinfolk.nn.meta import meta_network
from kinfolk.nn.positions import RelativePositionBias
from kinfolk.nn.recurrent import state_sizes
from kinfolk.nn.relative_attention import RelativeAttention, SegmentRelativeAttention
from kinfolk.reports.inspect_view import CostPart, CostView
from kinfolk.workflows.inspection.memory import activation_bytes

COST_PARTS = ("embeddings", "attention", "feed-forward", "recurrent", "head", "norms", "n-grams")
BATCHES = (1, 8, 64)
LENGTHS = (64, 128, 256, 512)
FLOAT_BYTES = 4
STATES = 4  # float32 numbers of a trained parameter: weight, gradient, two moments of AdamW
TEXT_MODULES = ("pooler", "seq_relationship")  # which run once per text, not per token

Terms = Counter[tuple[int, ...]]  # products of integers, and how often each occurs


def formula(terms: Terms) -> str:
    """Write a sum of products: 2 · 384 · 128 + 384."""
    parts = ((count, *factors) if count > 1 else factors for factors, count in terms.items())
    return " + ".join(" · ".join(map(str, factors)) for factors in parts) or "0"


def evaluate_terms(terms: Terms) -> int:
    """Return the value of a sum of products."""
    return sum(count * prod(factors) for factors, count in terms.items())


def network_costs(name: str, config: ModelConfig, tokens: int) -> CostView:
    """Return the costs of a network; FLOPs are those of a forward pass over one text."""
    model = meta_network(config)
    parts = cost_parts(model, tokens)
    total = sum(part.parameters for part in parts)
    lengths = memory_lengths(config.max_length)
    trained = model.gradient_free is None
    active = [activation_bytes(model, length) if trained else 0 for length in lengths]
    per_parameter = FLOAT_BYTES * (STATES if trained else 1)
    cached = [cache_bytes(model, length) for length in lengths]
    decodes = model.decoding is not None
    return CostView(
        name=name,
        tokens=tokens,
        parts=parts,
        lengths=lengths,
        batches=BATCHES,
        training_bytes=[[per_parameter * total + batch * n for n in active] for batch in BATCHES],
        decoding_bytes=[[FLOAT_BYTES * total + batch * n for n in cached] for batch in BATCHES]
        if decodes
        else [],
        training_formula=f"{per_parameter} bytes · {total:,} parameters (weights"
        + (", gradients and both moments of AdamW" if trained else "")
        + ") + rows · activations that the backward pass needs, in float32",
        decoding_formula=f"{FLOAT_BYTES} bytes · {total:,} parameters + rows · cache"
        if decodes
        else "",
    )


def memory_lengths(limit: int | None) -> tuple[int, ...]:
    """Return the lengths of a curve of memory; of a short context, its quarters."""
    if limit is None or limit >= LENGTHS[-1]:
        return LENGTHS
    return tuple(sorted({max(1, limit * part // 4) for part in (1, 2, 3, 4)}))


def cost_parts(model: LanguageModel, tokens: int) -> list[CostPart]:
    """Return the parameters and the FLOPs of each part, with the formulas that give them."""
    parameters, flops = parameter_terms(model), flop_terms(model, tokens)
    return [
        CostPart(
            name=part,
            parameters=evaluate_terms(parameters[part]),
            parameter_formula=formula(parameters[part]),
            flops=evaluate_terms(flops[part]),
            flop_formula=formula(flops[part]),
        )
        for part in COST_PARTS
        if parameters[part] or flops[part]
    ]


def parameter_terms(model: LanguageModel) -> dict[str, Terms]:
    """Return the shapes of the parameters of each part; tied ones once, without padding rows."""
    found = {part: Terms() for part in COST_PARTS}
    padded = {
        id(table.weight): table.vocab_size
        for table in model.modules()
        if isinstance(table, TokenEmbedding)
    }
    for name, weight in model.named_parameters():
        rows = padded.get(id(weight), weight.shape[0])
        found[part_of(model, name)][(rows, *weight.shape[1:])] += 1
    return found


def part_of(model: LanguageModel, name: str) -> str:
    """Return the part of a network that a parameter belongs to: that of its outermost module."""
    inputs = {id(model.token_embeddings)} if model.gradient_free is None else set()
    if isinstance(model, EncoderDecoder) and not is_encoder_only(model):
        inputs.add(id(model.decoder_embeddings))
    path = name.split(".")
    for depth in range(1, len(path)):
        part = kind_of(model.get_submodule(".".join(path[:depth])), inputs)
        if part is not None:
            return part
    return "embeddings" if "embedding" in path[0] else "head"


def is_encoder_only(model: LanguageModel) -> bool:
    """Return whether a network of CoVe has no decoder."""
    return isinstance(model, CoVe) and model.config.encoder_only


def kind_of(module: nn.Module, inputs: set[int]) -> str | None:
    """Return the part that a module is; None where its own modules decide."""
    if id(module) in inputs or isinstance(module, CharacterEmbedding | CharacterCNN):
        return "embeddings"
    kinds: tuple[tuple[str, type | tuple[type, ...]], ...] = (
        (
            "attention",
            (Attention, CrossAttention, RelativeAttention, RelativePositionBias, SlicedLinear),
        ),
        ("feed-forward", (FeedForward, GatedFeedForward)),
        ("recurrent", nn.LSTM),
        ("head", (TokenEmbedding, AdaptiveEmbedding, MaskedLMHead)),
        ("embeddings", nn.Embedding),
        ("norms", (nn.LayerNorm, nn.RMSNorm)),
        ("n-grams", NGramTable),
    )
    return next((name for name, types in kinds if isinstance(module, types)), None)


def flop_terms(model: LanguageModel, tokens: int) -> dict[str, Terms]:
    """Return the products of a forward pass that predicts at every token of one text.

    An encoder-decoder reads as many tokens as it predicts. Masked pairs of tokens count too.
    """
    found = {part: Terms() for part in COST_PARTS}
    for name, module in model.named_modules():
        uses = times_used(model, name)
        for terms in module_products(model, module, name, tokens):
            part = part_of(model, f"{name}.weight")
            found[part][(2, *terms)] += uses
    output = output_tables(model)
    for rows, size in output:
        found["head"][(2, tokens, rows, size)] += 2 if isinstance(model, ELMo) else 1
    return found


def module_products(
    model: LanguageModel, module: nn.Module, name: str, tokens: int
) -> list[tuple[int, ...]]:
    """Return the products of matrices in a module itself, each as (tokens, rows, columns)."""
    if name.partition(".")[0] in TEXT_MODULES:
        return []
    if isinstance(module, RelativeAttention):
        size, distances = module.r_proj.out_features, num_distances(module, tokens)
        # Scores of content and of positions, and values.
        return [(tokens, tokens, size), (tokens, distances, size), (tokens, tokens, size)]
    if isinstance(module, Attention | CrossAttention):
        size = module.out_proj.in_features
        return [(tokens, tokens, size)] * 2
    if isinstance(module, nn.LSTM):
        weights = [w for some in module.all_weights for w in some if w.dim() > 1]
        return [(tokens, *w.shape) for w in weights]
    if isinstance(module, nn.Conv1d):
        (width,), characters = module.kernel_size, int(model.config.max_characters)
        steps = characters - width + 1
        return [(tokens, steps, width, module.in_channels, module.out_channels)]
    if isinstance(module, nn.Linear):
        parent = model.get_submodule(name.rpartition(".")[0])
        rows = tokens
        if isinstance(parent, RelativeAttention) and module is parent.r_proj:
            rows = num_distances(parent, tokens)
        own: list[tuple[int, ...]] = [(rows, module.out_features, module.in_features)]
        if isinstance(module, SlicedLinear) and module.in_features == module.out_features:
            return [
                *own,
                (tokens, tokens, module.in_features),
                (tokens, tokens, module.in_features),
            ]
        return own
    return []


def num_distances(module: RelativeAttention, tokens: int) -> int:
    """Return the relative distances that a row has: in both directions in XLNet."""
    return 2 * tokens if isinstance(module, SegmentRelativeAttention) else tokens + 1


def times_used(model: LanguageModel, name: str) -> int:
    """Return how often a module runs in a forward pass: shared layers run several times."""
    path = name.split(".")
    if isinstance(model, ELMo) and path[0] == "token_embeddings":
        return 2  # both language models read the words
    if not isinstance(model, Albert) or path[0] != "layers" or len(path) < 3:
        return 1
    side = 0 if path[1] == "attentions" else 1
    return sum(pair[side] == int(path[2]) for pair in model.layers.layer_modules)


def output_tables(model: LanguageModel) -> list[tuple[int, int]]:
    """Return rows and columns of the output layer, which may be the embeddings."""
    if model.gradient_free is not None:
        return []
    tables = {n: m for n, m in model.named_modules() if isinstance(m, TokenEmbedding)}
    heads = [t for n, t in tables.items() if part_of(model, f"{n}.weight") == "head"]
    if not heads and (model.decoding is not None or model.can_fill):
        heads = [m for m in model.token_embeddings.modules() if isinstance(m, TokenEmbedding)]
    return [(table.vocab_size, table.embedding_dim) for table in heads]


def cache_bytes(model: LanguageModel, tokens: int) -> int:
    """Return the bytes that a text of this length keeps while it is generated."""
    total = 0
    for name, module in model.named_modules():
        if isinstance(model, EncoderDecoder) and name.startswith("encoder."):
            continue  # it runs once, before the first token
        if isinstance(module, Attention | CrossAttention):
            total += 2 * tokens * module.out_proj.in_features
        if isinstance(module, RelativeAttention):
            kept = tokens
            if isinstance(model.config, TransformerXLConfig) and model.config.mem_len:
                kept = min(tokens, model.config.mem_len)
            total += 2 * kept * module.out_proj.in_features
        if isinstance(module, nn.LSTM):
            total += sum(state_sizes([module]))
    return FLOAT_BYTES * total
