"""Initial weights: normal, scaled on residual branches, and mimetic."""

import torch
from torch import nn

from kinfolk.nn.attention import Attention, CrossAttention
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.layers import FeedForward, GatedFeedForward
from kinfolk.nn.positions import RelativePositionBias, sinusoidal_embedding

# Initial biases at distances 1 and 2 of an encoder; its other scores deviate by about 1.
NEIGHBOR_BIASES = (5.0, 2.5)


@torch.no_grad()
def init_weights_(model: nn.Module, *, std: float, embedding_std: float | None = None) -> None:
    """Draw matrices and embeddings from a normal distribution; biases are 0 and norms 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0.0, std)
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, std if embedding_std is None else embedding_std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
        if isinstance(module, TokenEmbedding):
            module.weight[module.vocab_size :] = 0.0


@torch.no_grad()
def scale_residual_init_(layers: nn.Module, num_residuals: int) -> None:
    """Divide the output matrices of N residual branches by sqrt(N) (GPT-2, section 2.3)."""
    outputs: list[nn.Linear] = []
    for module in layers.modules():
        if isinstance(module, Attention | CrossAttention):
            outputs.append(module.out_proj)
        if isinstance(module, FeedForward | GatedFeedForward):
            outputs.append(module.down_proj)
    assert len(outputs) == num_residuals, f"{len(outputs)} residual branches, not {num_residuals}"
    for linear in outputs:
        linear.weight.mul_(num_residuals**-0.5)


@torch.no_grad()
def mimetic_init_(layers: nn.Module, position_embeddings: nn.Embedding, *, std: float) -> None:
    """Start with attention that decays with the distance (after Trockman and Kolter, 2023).

    Position embeddings start as sinusoids, whose product is the larger the nearer two positions
    are, and query matrices as copies of the key matrices, so that this product decides the initial
    attention scores. All of them are trained.
    """
    table = position_embeddings
    if table.weight.is_meta:
        return
    sinusoids = sinusoidal_embedding(torch.arange(table.num_embeddings), table.embedding_dim)
    table.weight.copy_(sinusoids * std * 2**0.5)
    for attention in layers.modules():
        if isinstance(attention, Attention):
            query, key, _ = attention.qkv_proj.weight.chunk(3)
            query.copy_(key)


@torch.no_grad()
def mimetic_encoder_decoder_init_(model: nn.Module, encoder_bias: RelativePositionBias) -> None:
    """Start with heads for the tokens before and after, and a decoder that finds its sentinel.

    Without it a small network learns for long that a span follows from itself alone: the path from
    a sentinel's neighbours to the decoder goes through two attention layers. Queries of the decoder
    start as the keys of the encoder (Trockman and Kolter, 2023).
    """
    weight = encoder_bias.embedding.weight
    distances = torch.arange(1, 1 + len(NEIGHBOR_BIASES), device="cpu")  # an index on meta, too
    for distance, value in zip(distances, NEIGHBOR_BIASES, strict=True):
        weight[encoder_bias.bucket(-distance), 0::2] += value
        weight[encoder_bias.bucket(distance), 1::2] += value
    for part in model.modules():
        if isinstance(part, CrossAttention):
            key, _ = part.kv_proj.weight.chunk(2)
            part.q_proj.weight.copy_(key * part.head_dim**-0.5)


@torch.no_grad()
def uniform_attention_init_(model: nn.Module) -> None:
    """Set the query projections to 0, so that a token attends to all visible ones equally."""
    for attention in model.modules():
        if isinstance(attention, Attention):
            for parameter in attention.qkv_proj.parameters():
                parameter.chunk(3)[0].zero_()
