"""Prefixes: what a network attends to before a text, in packed rows and against a restatement."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, KVCache
from kinfolk.families.gpt import GPTConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.gpt3 import GPT3Config
from kinfolk.nn.attention import Attention, merge_heads
from kinfolk.nn.prefixes import KeyValuePrefix, PrefixedModel, prefix_mask, prefix_shape
from kinfolk.tasks.formulations.base import Instance
from kinfolk.tasks.formulations.sequences import build_example
from kinfolk.tasks.prefix_config import PrefixConfig
from kinfolk.tasks.prefixes import LabelledPrefixes, LatentPrefixes
from kinfolk.text.tokenizer import SpecialTokens

SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "num_layers": 3, "num_heads": 2}
SIZES |= {"max_length": 40, "dropout": 0.1, "attention_dropout": 0.1}
WINDOW = 6
CONFIGS = {
    "gpt": GPTConfig(**SIZES),
    "gpt2": GPT2Config(**SIZES),
    "gpt3": GPT3Config(**SIZES, attention_window=WINDOW),
}
SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=None, sep=None, mask=None)
TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17], [18], [19, 20, 21, 22, 23]]


def network(name: str) -> Any:
    """Build a network whose attention is far from uniform."""
    torch.manual_seed(0)
    model = CONFIGS[name].build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3)
    return model


def prefix_of(model: Any, length: int) -> KeyValuePrefix:
    """Draw a prefix."""
    layers, heads, head_dim = prefix_shape(model.config)
    draws = torch.Generator().manual_seed(1)
    shape = layers, heads, length, head_dim
    return KeyValuePrefix(*(torch.randn(shape, generator=draws) for _ in range(2)))


def hidden_after(model: Any, prefix: KeyValuePrefix, ids: list[int]) -> Tensor:
    """Run a text after a prefix in the cache."""
    inputs = Inputs.from_ids(torch.tensor([ids]), causal=True)
    cache = KVCache(prefix.length + len(ids))
    prefix.fill(cache, inputs.attention_mask, torch.float32)
    inputs = Inputs(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
        cache=cache,
    )
    return model(inputs.append_to_cache()).hidden[0]


def restated(prefix: KeyValuePrefix, banded: bool) -> Callable[..., Tensor]:
    """Return attention as in a textbook: keys and values of the prefix, then those of the text."""

    def forward(
        self: Attention, x: Tensor, attend: Any, cache: Any = None, layer_idx: int = 0
    ) -> Tensor:
        length = x.shape[1]
        query, key, value = (
            part.view(1, length, self.num_heads, self.head_dim).transpose(1, 2)
            for part in self.qkv_proj(x).chunk(3, dim=-1)
        )
        key = torch.cat([prefix.keys[layer_idx][None], key], dim=2)
        value = torch.cat([prefix.values[layer_idx][None], value], dim=2)
        back = torch.arange(length)[:, None] - torch.arange(-prefix.length, length)
        seen = back >= 0
        if banded and layer_idx % 2:
            seen = seen & (back < WINDOW)
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_dim)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return self.out_proj(merge_heads(weights @ value))

    return forward


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_prefix_is_keys_and_values_before_those_of_the_text(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(name)
    prefix, ids = prefix_of(model, length), [2, *TEXTS[0], *TEXTS[4]]
    found = hidden_after(model, prefix, ids)
    plain = model(Inputs.from_ids(torch.tensor([ids]), causal=True)).hidden[0]
    assert not torch.allclose(found, plain, atol=1e-2)
    monkeypatch.setattr(Attention, "forward", restated(prefix, name == "gpt3"))
    expected = model(Inputs.from_ids(torch.tensor([ids]), causal=True)).hidden[0]
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prefix_without_slots_changes_nothing(name: str) -> None:
    model, ids = network(name), [2, *TEXTS[0]]
    plain = model(Inputs.from_ids(torch.tensor([ids]), causal=True)).hidden[0]
    found = hidden_after(model, prefix_of(model, 0), ids)
    logits = [model.lm_logits(hidden).logits() for hidden in (found, plain)]
    assert torch.allclose(*logits, atol=1e-5)


def test_two_prefixes_follow_each_other() -> None:
    model = network("gpt2")
    one, other = prefix_of(model, 2), prefix_of(model, 3)
    both = one + other
    assert both.length == 5
    assert torch.equal(both.keys[:, :, :2], one.keys)
    assert torch.equal(both.values[:, :, 2:], other.values)


def test_each_document_has_slots_before_its_first_token() -> None:
    """As in the picture of the module."""
    document_ids = torch.tensor([[0, 0, 0, 1, 1, -1]])
    mask = prefix_mask(AttentionMask.causal(document_ids), 2, max_documents=3)
    assert mask.document_ids.tolist() == [[0, 0, 1, 1, 2, 2]]
    assert mask.key_order[:, :4].tolist() == [[-2, -1, 1, 2]]
    seen = AttentionMask.causal(document_ids).dense(mask)[0]
    assert seen[:3].tolist() == [[True, True, False, False, False, False]] * 3
    assert seen[3:5].tolist() == [[False, False, True, True, False, False]] * 2
    assert not seen[5].any()


def prefixed(name: str, *, latent: bool = False, attributes: int = 3) -> PrefixedModel:
    """Put prefixes before a frozen network."""
    backbone = network(name)
    torch.manual_seed(3)
    model = PrefixedModel(
        backbone, attributes, length=4, embedding_size=8, start_id=2, latent=latent
    )
    return model.train()


def instances() -> list[Instance]:
    examples = [build_example("decoder", SPECIALS, [], text) for text in TEXTS]
    return [Instance(examples=(e,), target=i % 3) for i, e in enumerate(examples)]


def gradients(model: PrefixedModel) -> list[Tensor]:
    found = [p.grad for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    return [torch.zeros(1) if grad is None else grad for grad in found]


@pytest.mark.parametrize("kind", [LabelledPrefixes, LatentPrefixes])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_texts_score_as_one_by_one(name: str, kind: type[LabelledPrefixes]) -> None:
    model = prefixed(name, latent=kind is LatentPrefixes)
    objective = kind(PrefixConfig(), 0)
    batch = objective.make_batch(instances())
    assert batch.targets.max_documents > 1  # they do share rows
    packed = objective.scores(model, batch)
    total = objective.loss(model, batch)
    torch.autograd.backward(total.mean(batch.counts))
    whole = gradients(model)
    for index, instance in enumerate(instances()):
        own = objective.make_batch([instance])
        assert own.targets.max_documents == 1
        assert torch.allclose(objective.scores(model, own)[:, 0], packed[:, index], atol=1e-4)
        part = objective.loss(model, own)
        torch.autograd.backward(part.mean(batch.counts))
        total = total + type(part)({name: -value for name, value in part.sums.items()})
    for value in total.sums.values():
        assert value.item() == pytest.approx(0.0, abs=1e-3)
    for one, other in zip(whole, gradients(model), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_the_likelihoods_after_each_prefix(name: str) -> None:
    model = prefixed(name)
    objective = LabelledPrefixes(PrefixConfig(), 0)
    scores = objective.scores(model, objective.make_batch(instances()))
    for attribute in range(3):
        prefix = model.prefix(attribute)
        for index, text in enumerate(TEXTS):
            hidden = hidden_after(model.backbone, prefix, [2, *text])
            logprobs = model.backbone.lm_logits(hidden).logits().log_softmax(-1)
            expected = logprobs[range(len(text) + 1), [*text, 3]].sum()
            assert scores[attribute, index].item() == pytest.approx(expected.item(), abs=1e-4)


def test_the_frozen_network_gets_no_gradient_and_no_dropout() -> None:
    model = prefixed("gpt2", latent=True)
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    objective = LatentPrefixes(PrefixConfig(), 0)
    batch = objective.make_batch(instances())
    losses = [objective.loss(model, batch).mean(batch.counts) for _ in range(2)]
    assert torch.equal(*losses)
    losses[0].backward()
    assert all(p.grad is None for p in model.backbone.parameters())
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.trained.parameters())
    after = model.backbone.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_losses_of_labelled_texts_are_those_of_the_paper() -> None:
    objective = LabelledPrefixes(PrefixConfig(lm_weight=0.7, discriminative_weight=0.4), 0)
    batch = objective.make_batch(instances()[:2])
    scores = torch.tensor([[-3.0, -5.0], [-4.0, -4.5], [-6.0, -7.0]])  # attributes, texts
    loss = objective.loss_of(scores, prefixed("gpt2"), batch)
    exp = np.exp(scores.numpy())
    told = -np.log(exp[0, 0] / exp[:, 0].sum()) - np.log(exp[1, 1] / exp[:, 1].sum())
    assert loss.sums["lm"].item() == pytest.approx(3.0 + 4.5)
    assert loss.sums["discriminative"].item() == pytest.approx(told, rel=1e-6)
    assert batch.counts == {"lm": 8 + 3, "discriminative": 2}
    mean = 0.7 * 7.5 / 11 + 0.4 * told / 2
    assert loss.mean(batch.counts).item() == pytest.approx(mean, rel=1e-6)


def test_the_losses_of_text_alone_weigh_attributes_by_the_encoder() -> None:
    settings = PrefixConfig(lm_weight=0.5, kl_weight=0.3, contrastive_weight=0.2, margin=0.9)
    model, objective = prefixed("gpt2", latent=True), LatentPrefixes(settings, 0)
    batch = objective.make_batch(instances()[:2])
    targets = batch.targets
    logits = model.attribute_logits(batch.inputs, targets.tokens, targets.text_ids, 2)
    q = logits.softmax(1).T.detach().double().numpy()
    scores = torch.tensor([[-3.0, -5.0], [-4.0, -4.5], [-6.0, -7.0]])
    found = objective.loss_of(scores, model, batch).sums
    posterior = np.exp(scores.numpy()) / np.exp(scores.numpy()).sum(0)
    gap = np.maximum(0.9 - (posterior - (1 - posterior)), 0) ** 2
    assert found["lm"].item() == pytest.approx(-(q * scores.numpy()).sum(), rel=1e-5)
    assert found["kl"].item() == pytest.approx((q * np.log(3 * q)).sum(), rel=1e-4, abs=1e-5)
    assert found["contrastive"].item() == pytest.approx((q * gap).sum(), rel=1e-5)
