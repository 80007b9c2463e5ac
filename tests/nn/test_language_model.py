"""What networks and their configs declare, and the defaults of what they do not."""

import dataclasses

import pytest
from torch import nn

from kinfolk.families import families
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.gpt3 import GPT3Config
from kinfolk.families.t5 import T5Config
from kinfolk.nn.language_model import LanguageModel, attention_windows
from kinfolk.nn.task_heads import ModelWithHeadConfig, pooling_of


def test_a_config_without_a_bound_declares_none_and_takes_none() -> None:
    config = T5Config()
    assert config.max_length is None and config.init_std == 0.02
    assert "max_length" not in {field.name for field in dataclasses.fields(config)}
    assert config.with_fields(vocab_size=70, max_length=9) == T5Config(vocab_size=70)
    assert GPT2Config().with_fields(vocab_size=70, max_length=9) == GPT2Config(
        vocab_size=70, max_length=9
    )
    with pytest.raises(TypeError, match="max_length"):
        dataclasses.replace(config, max_length=9)  # type: ignore[call-arg]


def test_a_head_has_the_bound_and_the_windows_of_the_network_below_it() -> None:
    body = GPT3Config(
        vocab_size=70, hidden_size=16, num_layers=2, num_heads=2, max_length=24, attention_window=5
    )
    config = ModelWithHeadConfig(
        backbone=body, head="text", labels=("a", "b"), pooling=pooling_of(body)
    )
    model = config.build()
    assert config.max_length == 24 and config.pretrained is body
    assert model.pretrained is model.backbone and model.architecture == "decoder"
    assert attention_windows(nn.Sequential(model)) == (5,)
    assert not pooling_of(body).bias and T5Config().network.pooling is None


def test_what_a_family_can_do_is_declared_on_its_network() -> None:
    networks = {name: m.config("nano").network for name, m in families().items()}
    kinds: dict[str | None, set[str]] = {}
    for name, network in networks.items():
        assert issubclass(network, LanguageModel)
        kinds.setdefault(network.decoding, set()).add(name)
    assert kinds == {
        "causal": {"gpt", "gpt2", "gpt3", "transformer_xl", "ngram", "ulmfit"},
        "encoder-decoder": {"transformer", "t5", "cove"},
        "infilling": {"glm"},
        "two-stream": {"xlnet"},
        None: {"bert", "roberta", "albert", "electra", "elmo"},
    }
    moving = {name for name, network in networks.items() if not network.static_cache}
    assert moving == {"transformer_xl", "xlnet", "cove", "ulmfit"}
