"""Parity with transformers: random weights, padded rows, and comparisons of two networks."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, KVCache
from kinfolk.nn.embeddings import TokenEmbedding
from support.networks import hollow

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

LENGTHS = (9, 5, 7)  # of the rows of a ragged batch
# Fields of a small config.
SMALL_SIZE: Any = {"vocab_size": 70, "hidden_size": 16, "num_layers": 2, "num_heads": 2}


@torch.no_grad()
def shake(model: nn.Module, *, seed: int = 0, by: float = 0.1) -> Any:
    """Move every weight, norms and biases too, so that no two can be confused unseen."""
    draws = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight += by * torch.randn(weight.shape, generator=draws)
    for module in model.modules():
        if isinstance(module, TokenEmbedding):
            module.weight[module.vocab_size :] = 0.0
    return model.eval()


def ids(vocab: int, *, length: int = max(LENGTHS), rows: int = len(LENGTHS)) -> Tensor:
    """Draw tokens."""
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(1))


def ragged(lengths: tuple[int, ...] = LENGTHS) -> Tensor:
    """Return the document ids of rows padded on the right: 0, and -1 for padding."""
    positions = torch.arange(max(lengths)).expand(len(lengths), -1)
    return torch.where(positions < torch.tensor(lengths)[:, None], 0, -1)


def inputs(tokens: Tensor, attention_mask: AttentionMask, **more: Any) -> Inputs:
    """Wrap rows whose positions are counted from their first slot."""
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    return Inputs(input_ids=tokens, attention_mask=attention_mask, position_ids=positions, **more)


def cached_steps(model: Any, both: Inputs, cuts: tuple[int, ...] = (0, 4, 6, 7, 8, 9)) -> Tensor:
    """Return the hidden states of causal rows that are read step by step, with a cache."""
    cache, steps = KVCache(max_length=both.input_ids.shape[1]), []
    for start, stop in pairwise(cuts):
        now = slice(start, stop)
        document_ids = both.attention_mask.document_ids[:, now]
        step = Inputs(
            input_ids=both.input_ids[:, now],
            attention_mask=AttentionMask.causal(document_ids, start=start),
            position_ids=both.position_ids[:, now],
            encoder_inputs=both.encoder_inputs,
            cache=cache,
        )
        steps.append(model(step.append_to_cache()).hidden)
    return torch.cat(steps, dim=1)


def near(ours: Tensor, theirs: Tensor, *, within: float = 1e-5) -> None:
    """Compare two tensors of numbers around one."""
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1, "too small a number proves nothing"
    difference = (ours - theirs).abs().max().item()
    print(f"difference {difference:.1e} of {theirs.abs().max():.2f}")
    assert difference < within


def open_without_a_word(kind: Any, folder: Path) -> Any:
    """Open a folder with transformers; every weight must be in its place."""
    model, problems = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(problems.values()), problems
    return model.eval()


def parameters(model: nn.Module) -> int:
    """Count what a paper counts: not the rows that only align a table."""
    tables = [m for m in model.modules() if isinstance(m, TokenEmbedding)]
    padding = sum((t.weight.shape[0] - t.vocab_size) * t.weight.shape[1] for t in tables)
    return sum(p.numel() for p in model.parameters()) - padding


def count_both(config: Any, hf: Any, kind: Any) -> tuple[int, int]:
    """Count the parameters of our network and of the class of transformers."""
    with hollow():
        ours, peer = config.build(), kind(kind.config_class(**hf.to_config(config, None)))
    return parameters(ours), sum(p.numel() for p in peer.parameters())


@torch.no_grad()
def same_causal(ours: Any, peer: Any) -> None:
    """Compare the outputs of a decoder: rows of one length, and padded ones."""
    tokens, document = ids(ours.config.vocab_size), ragged()
    expected = peer(tokens, output_hidden_states=True)
    hidden = ours(Inputs.from_ids(tokens, causal=True)).hidden
    near(hidden, expected.hidden_states[-1])
    near(ours.lm_logits(hidden).logits(), expected.logits)
    real = document == 0
    expected = peer(tokens, attention_mask=real.long()).logits
    hidden = ours(inputs(tokens, AttentionMask.causal(document))).hidden
    near(ours.lm_logits(hidden).logits()[real], expected[real])


@torch.no_grad()
def same_pairs(ours: Any, peer: Any, pair_logits: str) -> None:
    """Compare the outputs of an encoder with a head for pairs: padded rows, and of one length."""
    tokens, document = ids(ours.config.vocab_size), ragged()
    token_type_ids = (torch.arange(9).expand(3, -1) // 3) % ours.config.type_vocab_size
    for real in (document == 0, torch.ones_like(document, dtype=torch.bool)):
        expected = peer(
            tokens,
            attention_mask=real.long(),
            token_type_ids=token_type_ids,
            output_hidden_states=True,
        )
        mask = AttentionMask.bidirectional(torch.where(real, 0, -1), unpacked=bool(real.all()))
        hidden = ours(inputs(tokens, mask, token_type_ids=token_type_ids)).hidden
        near(hidden[real], expected.hidden_states[-1][real])
        near(ours.lm_logits(hidden).logits()[real], expected.prediction_logits[real])
        near(ours.seq_relationship_logits(hidden[:, 0]), expected[pair_logits])
    last = peer(tokens, output_hidden_states=True).hidden_states[-1]
    near(ours(Inputs.from_ids(tokens, causal=False)).hidden, last)


def with_weights_of(peer: nn.Module, config: Any, hf: Any) -> Any:
    """Return our network with the weights of theirs, in training mode."""
    ours = config.build().train()
    weights = dict(peer.named_parameters())
    ours.load_state_dict(hf.parameters(config).from_hf(weights, ours.state_dict(), "there"))
    return ours


def mean_nll(model: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss over the labels that are not ignored."""
    return model.lm_logits(hidden.flatten(0, 1)).nll(labels.flatten()) / (labels >= 0).sum()


def same_step(hf: Any, ours: Any, loss: Tensor, peer: nn.Module, peer_loss: Tensor) -> None:
    """Compare the losses of a training step, and the gradients of every parameter."""
    for total in (loss, peer_loss):
        total.backward()
    near(loss, peer_loss)
    gradients = {k: p.grad for k, p in ours.named_parameters() if p.grad is not None}
    same_gradients(hf.parameters(ours.config).to_hf(gradients), peer)


def same_causal_step(peer: Any, config: Any, hf: Any) -> None:
    """Compare a training step of a decoder."""
    ours, tokens = with_weights_of(peer.train(), config, hf), ids(config.vocab_size)
    hidden = ours(Inputs.from_ids(tokens, causal=True)).hidden[:, :-1]
    same_step(
        hf, ours, mean_nll(ours, hidden, tokens[:, 1:]), peer, peer(tokens, labels=tokens).loss
    )


def same_pair_step(peer: Any, hf: Any, pair_label: str) -> None:
    """Compare a training step of an encoder with a head for pairs, in padded rows."""
    ours = with_weights_of(peer.train(), hf.from_config(peer.config.to_dict()), hf)
    tokens, document, pairs = ids(70), ragged(), torch.tensor([0, 1, 0])
    labels = torch.where(document == 0, tokens, -100)
    expected = peer(tokens, attention_mask=document + 1, labels=labels, **{pair_label: pairs})
    hidden = ours(inputs(tokens, AttentionMask.bidirectional(document))).hidden
    pair_loss = F.cross_entropy(ours.seq_relationship_logits(hidden[:, 0]), pairs)
    same_step(hf, ours, mean_nll(ours, hidden, labels) + pair_loss, peer, expected.loss)


def same_gradients(ours: dict[str, Tensor], theirs: nn.Module) -> None:
    """Compare the gradients of every parameter, by Hugging Face's names."""
    expected = {k: p.grad for k, p in theirs.named_parameters() if p.grad is not None}
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp(min=1e-3)  # a key's bias has only rounding
        assert ((ours[name] - gradient).abs().max() / scale) < 1e-4, name
