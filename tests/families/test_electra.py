"""ELECTRA against its published sizes and against transformers: both of its networks."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import ElectraConfig as TheirConfig
from transformers import ElectraForMaskedLM as TheirGenerator
from transformers import ElectraForPreTraining as Theirs

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families.electra import FAMILY, Electra, ElectraConfig
from kinfolk.hub import load, load_model, save
from kinfolk.text import train_tokenizer
from support.networks import hollow
from support.peers import (
    ids,
    inputs,
    near,
    open_without_a_word,
    parameters,
    ragged,
    same_gradients,
    shake,
)

# Millions of the discriminator with its head, as the released folders have them.
table: Any = FAMILY.hf
PUBLISHED = {"electra-small": 13.5, "electra-base": 109.5, "electra-large": 335.1}
SMALL = {"vocab_size": 70, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_length": 32}
NARROW = [16, 8, 6]  # as wide as the discriminator, as its generator, and as neither


def theirs(kind: Any, **options: object) -> Any:
    config = TheirConfig(
        **{
            "vocab_size": 70,
            "embedding_size": 6,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 40,
            "max_position_embeddings": 32,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **options,
        }
    )
    return shake(kind(config), by=0.2)


def pair(narrow: int = 6, **options: object) -> tuple[Theirs, TheirGenerator]:
    """Return a discriminator and a generator half as wide that share their tables."""
    large = theirs(Theirs, embedding_size=narrow, **options)
    sizes = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 20}
    small = theirs(TheirGenerator, embedding_size=narrow, **{**options, **sizes})
    small.electra.embeddings.load_state_dict(large.electra.embeddings.state_dict())
    return large, small


@torch.no_grad()
def same(ours: Electra, large: Theirs, small: TheirGenerator) -> None:
    tokens, document = ids(ours.config.vocab_size), ragged()
    segments = (torch.arange(9).expand(3, -1) // 3) % ours.config.type_vocab_size
    for real in (document == 0, torch.ones_like(document, dtype=torch.bool)):
        given = {"attention_mask": real.long(), "token_type_ids": segments}
        attention_mask = AttentionMask.bidirectional(
            torch.where(real, 0, -1), unpacked=bool(real.all())
        )
        read = inputs(tokens, attention_mask, token_type_ids=segments)
        said = large(tokens, **given, output_hidden_states=True)
        hidden = ours(read).hidden
        near(hidden[real], said.hidden_states[-1][real])
        near(ours.discriminator_logits(hidden)[real], said.logits[real])
        said = small(tokens, **given, output_hidden_states=True)
        hidden = ours.forward_lm(read).hidden
        near(hidden[real], said.hidden_states[-1][real])
        near(ours.lm_logits(hidden).logits()[real], said.logits[real])
    plain = Inputs.from_ids(tokens, causal=False)
    near(ours(plain).hidden, large(tokens, output_hidden_states=True).hidden_states[-1])


@pytest.mark.parity
@pytest.mark.parametrize("narrow", NARROW)
def test_their_folders_say_the_same_here(narrow: int, tmp_path: Path) -> None:
    large, small = pair(narrow, hidden_act="gelu_new", type_vocab_size=3)
    large.save_pretrained(tmp_path)
    small.save_pretrained(tmp_path / "generator")
    ours = load_model(tmp_path)
    assert isinstance(ours, Electra) and ours.config.generator_size == 0.5
    same(ours, large, small)


@pytest.mark.parity
@pytest.mark.parametrize("narrow", NARROW)
def test_our_folders_say_the_same_there(narrow: int, tmp_path: Path) -> None:
    config = ElectraConfig(**SMALL, embedding_size=narrow, generator_size=0.5, layer_norm_eps=1e-3)
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    large = open_without_a_word(Theirs, tmp_path)
    same(ours, large, open_without_a_word(TheirGenerator, tmp_path / "generator"))
    # The generator alone is a model folder, too.
    alone: Any = load_model(tmp_path / "generator")
    inputs = Inputs.from_ids(ids(70), causal=False)
    with torch.no_grad():
        states, own = (model.forward_lm(inputs).hidden for model in (alone, ours))
        near(alone.lm_logits(states).logits(), ours.lm_logits(own).logits())
    alone.check_lm_head()
    # And again after transformers wrote them.
    large.save_pretrained(tmp_path)
    assert load_model(tmp_path).config == config


@pytest.mark.parity
def test_a_discriminator_alone_gets_a_fresh_generator_and_says_so(tmp_path: Path) -> None:
    large, _ = pair()
    large.save_pretrained(tmp_path)
    ours: Any = load_model(tmp_path)
    assert ours.random_modules == ("generator", "mlm_head")
    with pytest.raises(UserError, match="no weights of generator, mlm_head"):
        ours.check_lm_head()
    assert ours.config.generator_size == 0.25
    assert all(p.isfinite().all() and not p.is_meta for p in ours.parameters())
    tokens = ids(70)
    with torch.no_grad():
        hidden = ours(Inputs.from_ids(tokens, causal=False)).hidden
        near(ours.discriminator_logits(hidden), large(tokens).logits)
        assert (
            ours.lm_logits(ours.forward_lm(Inputs.from_ids(tokens, causal=False)).hidden)
            .logits()
            .any()
        )
    with pytest.warns(UserWarning, match="no trained weights of generator, mlm_head"):
        save(tmp_path / "saved", ours, None)
    assert not (tmp_path / "saved" / "generator").exists()
    assert load_model(tmp_path / "saved").random_modules == ("generator", "mlm_head")


@pytest.mark.parity
def test_a_body_alone_gets_a_fresh_head_too(tmp_path: Path) -> None:
    large, _ = pair()
    large.electra.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert ours.random_modules == ("discriminator_head", "generator", "mlm_head")
    tokens = ids(70)
    with torch.no_grad():
        hidden = ours(Inputs.from_ids(tokens, causal=False)).hidden
        near(hidden, large.electra(tokens).last_hidden_state)


@pytest.mark.parity
def test_folders_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    large, small = pair()
    large.save_pretrained(tmp_path)
    theirs(TheirGenerator, hidden_size=8, num_attention_heads=1, intermediate_size=20,
           num_hidden_layers=3).save_pretrained(tmp_path / "generator")  # fmt: skip
    with pytest.raises(UserError, match="num_hidden_layers=3"):
        load_model(tmp_path)
    with torch.no_grad():
        small.electra.embeddings.LayerNorm.bias += 1.0
    small.save_pretrained(tmp_path / "generator")
    with pytest.raises(UserError, match=r"generator/.*LayerNorm\.bias and .* differ"):
        load_model(tmp_path)


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    large, small = pair()
    config = ElectraConfig(
        **SMALL, embedding_size=6, intermediate_size=40, generator_size=0.5, dropout=0.0
    )
    ours = ElectraConfig(**{**vars(config), "attention_dropout": 0.0}).build().train()
    names = table.parameters(config)
    weights = dict(large.named_parameters())
    weights |= {f"generator/{k}": p for k, p in small.named_parameters()}
    ours.load_state_dict(names.from_hf(weights, ours.state_dict(), "there"))
    tokens, document = ids(70), ragged()
    verdicts = (tokens % 3 == 0).long()
    labels = torch.where(document == 0, tokens, -100)
    read = inputs(tokens, AttentionMask.bidirectional(document))

    def gradients() -> dict[str, Tensor]:
        found = {k: p.grad for k, p in ours.named_parameters() if p.grad is not None}
        silent = {k: torch.zeros_like(p) for k, p in ours.named_parameters() if p.grad is None}
        ours.zero_grad()
        return names.to_hf(found | silent)

    said = large(tokens, attention_mask=document + 1, labels=verdicts)
    said.loss.backward()
    scores, real = ours.discriminator_logits(ours(read).hidden), document == 0
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    loss = bce(scores[real], verdicts[real].float())
    loss.backward()
    near(loss, said.loss)
    same_gradients({k: g for k, g in gradients().items() if "generator" not in k}, large)

    said = small(tokens, attention_mask=document + 1, labels=labels)
    said.loss.backward()
    hidden = ours.forward_lm(read).hidden.flatten(0, 1)
    loss = ours.lm_logits(hidden).nll(labels.flatten()) / (labels >= 0).sum()
    loss.backward()
    near(loss, said.loss)
    inside = {k: g for k, g in gradients().items() if k.startswith("generator/")}
    same_gradients({k.removeprefix("generator/"): g for k, g in inside.items()}, small)


@pytest.mark.parity
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_their_published_count(name: str) -> None:
    config = FAMILY.sizes[name]
    with hollow():
        ours = config.build()
        large = Theirs(TheirConfig(**table.to_config(config, None)))
        small = TheirGenerator(
            TheirConfig(**table.subfolders["generator"](config, table.to_config(config, None)))
        )
    count = sum(p.numel() for p in large.parameters())
    assert round(count / 1e6, 1) == PUBLISHED[name]
    shared = sum(p.numel() for p in large.electra.embeddings.parameters())
    assert parameters(ours) == count + sum(p.numel() for p in small.parameters()) - shared


@pytest.mark.parametrize(
    ("name", "width", "heads"),
    [("electra-small", 64, 1), ("electra-base", 256, 4), ("electra-large", 256, 4)],
)
def test_published_generators_have_their_published_width(name: str, width: int, heads: int) -> None:
    small = FAMILY.sizes[name].encoder_config(FAMILY.sizes[name].generator_size)
    assert (small.hidden_size, small.num_heads, small.intermediate_size) == (
        width,
        heads,
        4 * width,
    )
    assert small.num_layers == FAMILY.sizes[name].num_layers


@pytest.mark.parity
def test_the_tokenizer_opens_in_transformers_with_the_same_frame(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(
        ["low lower lowest new newer newest wide wider"] * 9, kind="byte", vocab_size=400
    )
    config = ElectraConfig(**{**SMALL, "vocab_size": tokenizer.vocab_size})
    save(tmp_path, config.build(), tokenizer)
    _, mine = load(tmp_path)
    text = "a lower, newer wide low"
    framed = [
        mine.special_tokens.cls,
        *mine.encode(text, add_special_tokens=False),
        mine.special_tokens.sep,
    ]
    for folder in (tmp_path, tmp_path / "generator"):
        peer = transformers.AutoTokenizer.from_pretrained(folder)
        assert peer(text)["input_ids"] == mine.encode(text) == framed


def test_the_tables_are_shared_and_saved_in_both_folders(tmp_path: Path) -> None:
    ours = ElectraConfig(**SMALL).build()
    save(tmp_path, ours, None)
    name = "electra.embeddings.word_embeddings.weight"
    for folder in (tmp_path, tmp_path / "generator"):
        assert torch.equal(
            load_file(folder / "model.safetensors")[name], ours.token_embeddings.weight[:70]
        )


def test_a_share_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="hidden size 10 with 3 heads"):
        ElectraConfig(hidden_size=12, num_heads=4, generator_size=0.85)
    with pytest.raises(UserError, match="hidden size 0"):
        ElectraConfig(**SMALL, generator_size=0.01)
    with pytest.raises(UserError, match=r"model.generator_size=0.0: it must be above 0"):
        ElectraConfig(**SMALL, generator_size=0.0)


@pytest.mark.parametrize(
    "config", [*FAMILY.sizes.values(), ElectraConfig(**SMALL, intermediate_size=9)]
)
def test_a_config_comes_back_through_transformers(config: ElectraConfig) -> None:
    peer = transformers.AutoConfig.for_model("electra", **table.to_config(config, None))
    assert table.from_config(peer.to_dict()) == config


def test_a_narrow_generator_starts_as_a_network_of_its_own_width() -> None:
    model = FAMILY.sizes["tiny"].build()
    stds = [part.layers[0].feed_forward.sublayer.up_proj.weight.std().item() for part in
            (model.generator, model.discriminator)]  # fmt: skip
    assert stds == pytest.approx([64**-0.5, 128**-0.5], rel=0.05)
