"""Hidden states as features of a task network: what is read, losses, freezing, saving."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk import hub
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.nn.task_networks import BiLSTMTaggerConfig, ModelWithFeatures, ScalarMix
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.choose import build_formulation
from kinfolk.tasks.formulations.features import FeatureClassifier, FeatureTagger
from kinfolk.tasks.formulations.sequences import encode_words
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import TaggedSentence
from support.task_rows import LENGTH, cases, config, rows, sampled, task, tokenizer

EVERY = [*cases("features")]
every = pytest.mark.parametrize(("name", "kind", "kind_of"), sampled(EVERY))


def made(name: str, kind: str, kind_of: type[Formulation], **options: Any) -> tuple[Any, Any]:
    """Return a formulation and its network in double precision."""
    body = config(name)
    built = build_formulation(
        kind_of, task(kind), family_of(body), body, tokenizer(), length=LENGTH, **options
    )
    torch.manual_seed(0)
    model = replace(built.model_config(body), dropout=0.0).build().double().eval()
    return built, model


def test_encoders_decoders_and_others_have_features_and_baselines_have_none() -> None:
    names = {name for name, _, _ in EVERY}
    assert {"bert", "albert", "roberta", "electra", "xlnet", "gpt2", "transformer_xl"} <= names
    assert "bilstm" not in names


@every
def test_packing_changes_no_loss_and_no_prediction(
    name: str, kind: str, kind_of: type[Formulation]
) -> None:
    formulation, model = made(name, kind, kind_of)
    groups = [formulation.instances(row, tokenizer()) for row in rows(kind)]
    flat = [instance for group in groups for instance in group]

    def loss(instances: Any) -> torch.Tensor:
        total: torch.Tensor = formulation.loss(model, formulation.make_batch(instances)).sums[
            "label"
        ]
        return total.detach()

    alone = torch.stack([loss([instance]) for instance in flat]).sum()
    torch.testing.assert_close(loss(flat), alone, rtol=1e-6, atol=1e-6)
    together = predict_rows(formulation, model, rows(kind), tokenizer())
    single = [predict_rows(formulation, model, [row], tokenizer())[0] for row in rows(kind)]
    for one, other in zip(together, single, strict=True):
        assert one.value == (pytest.approx(other.value) if kind == "regress" else other.value)


def test_words_are_read_once_and_the_text_has_a_start_and_an_end() -> None:
    formulation, _ = made("gpt2", "tag", FeatureTagger)
    row = TaggedSentence(("red", "Wolfgang", "cat"), ("O", "B-X", "I-X"), 1)
    (instance,) = formulation.instances(row, tokenizer())
    (example,) = instance.examples
    words, special = encode_words(tokenizer(), row.words), tokenizer().special_tokens
    assert example.input_ids.tolist() == [special.bos, *chain(*words), special.eos]
    assert example.input_ids[example.read_positions].tolist() == [word[-1] for word in words]
    formulation, _ = made("bert", "pair", FeatureClassifier)
    (instance,) = formulation.instances(rows("pair")[0], tokenizer())
    assert len(instance.examples) == 2, "each text of a pair is encoded by itself"
    for example in instance.examples:
        special_ids = example.input_ids[[0, -1]].tolist()
        assert special_ids == [tokenizer().special_tokens.cls, tokenizer().special_tokens.sep]
        assert example.read_positions.tolist() == [*range(1, len(example.input_ids) - 1)]


def test_the_mix_is_the_weighted_sum_of_the_paper() -> None:
    mix = ScalarMix(3)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
        mix.gamma.fill_(1.7)
    layers = [torch.randn(4, 5) for _ in range(3)]
    s = torch.tensor([0.3, -1.0, 2.0]).exp()
    wanted = 1.7 * sum(s[j] / s.sum() * layers[j] for j in range(3))
    torch.testing.assert_close(mix(layers), wanted)


@pytest.mark.parametrize("trained", [False, True])
def test_a_frozen_network_is_neither_changed_nor_dropped_out(trained: bool) -> None:
    formulation, model = made("bert", "tag", FeatureTagger, train_backbone=trained)
    model.train()
    assert model.task_network.training and model.backbone.training == trained
    batch = formulation.make_batch(formulation.instances(rows("tag")[0], tokenizer()))
    formulation.loss(model, batch).sums["label"].backward()
    backbone = {id(p) for p in model.backbone.layers.parameters()}
    reached = {id(p) for p in model.parameters() if p.grad is not None}
    assert backbone <= reached if trained else not backbone & reached
    assert {id(model.mix.weights), id(model.mix.gamma)} <= reached
    assert {id(p) for p in model.task_network.parameters()} <= reached


@pytest.mark.parametrize("layers", ["mixed", "last"])
def test_features_at_the_output_change_the_scores(layers: str) -> None:
    said = {"feature_layers": layers, "output_features": True}
    formulation, model = made("bert", "tag", FeatureTagger, **said)
    batch = formulation.make_batch(formulation.instances(rows("tag")[0], tokenizer()))
    formulation.loss(model, batch).sums["label"].backward()
    size = model.backbone.feature_size
    assert model.task_network.out_proj.weight.grad[:, -size:].abs().max() > 0
    assert (model.output_mix is not None) == (layers == "mixed")


@pytest.mark.parametrize(("kind", "kind_of"), [("tag", FeatureTagger), ("pair", FeatureClassifier)])
@pytest.mark.parametrize("name", ["bert", "transformer_xl"])
def test_saving_and_loading_is_exact(
    name: str, kind: str, kind_of: type[Formulation], tmp_path: Path
) -> None:
    formulation, model = made(name, kind, kind_of, output_features=True)
    model.float()
    hub.save(tmp_path, model, tokenizer())
    again: Any = hub.load_model(tmp_path)
    assert isinstance(again, ModelWithFeatures) and again.config == model.config
    state = again.state_dict()
    assert all(torch.equal(state[n], tensor) for n, tensor in model.state_dict().items())
    first, second = (predict_rows(formulation, m, rows(kind), tokenizer()) for m in (model, again))
    assert first == second


def test_tags_without_a_crf_are_scored_one_by_one() -> None:
    formulation, model = made("bert", "tag", FeatureTagger)
    alone = replace(model.config, task_network=BiLSTMTaggerConfig(crf=False)).build().eval()
    instances = formulation.instances(rows("tag")[0], tokenizer())
    batch = formulation.make_batch(instances)
    texts = formulation.texts(alone, batch)
    logs = alone.task_network(texts).log_softmax(-1)
    wanted = -logs.gather(1, batch.targets.target[:, None]).sum()
    torch.testing.assert_close(formulation.loss(alone, batch).sums["label"], wanted)
    with torch.no_grad():
        (scores,) = formulation.logits(alone, batch)
    assert scores[:, 0].tolist() == logs.argmax(-1).tolist()
    torch.testing.assert_close(torch.from_numpy(scores[:, 1:]).float(), logs.exp())


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UserError, match="set crf=True too"):
        BiLSTMTaggerConfig(crf=False, bio_constraint=True)
    formulation, model = made("bert", "tag", FeatureTagger)
    with pytest.raises(UserError, match="leaves the word vectors alone"):
        replace(model.config, feature_layers="none")
    with pytest.raises(UserError, match="--class-weights does not apply"):
        formulation.fit(rows("tag"), tokenizer(), balanced=True)
    with pytest.raises(UserError, match="predicts no tokens"):
        model.check_lm_head()
    with pytest.raises(UserError, match="does not apply to tag tasks: did you mean bilstm_tagger"):
        replace(formulation, task_network="bilstm_tager").model_config(model.config.backbone)
    classifier, _ = made("bert", "classify", FeatureClassifier)
    with pytest.raises(UserError, match="reader does not apply to classify tasks"):
        replace(classifier, task_network="reader").model_config(model.config.backbone)


def test_word_vectors_stand_beside_the_features_or_alone(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("cat 1 2 3\ndog 4 5 6\n", encoding="utf-8")
    for layers, size in (("mixed", 64 + 3), ("none", 3)):
        said = {"vectors": str(file), "feature_layers": layers}
        body = config("bert")
        built = build_formulation(
            FeatureTagger, task("tag"), family_of(body), body, tokenizer(), **said
        ).fit(rows("tag"), tokenizer())
        model = built.model_config(body).build().eval()
        (message,) = built.prepare(model, tokenizer())
        assert "vectors of 2 of" in message
        (instance,) = built.instances(TaggedSentence(("cat", "red", "dog"), None, 1), tokenizer())
        texts = built.texts(model, built.make_batch([instance]))
        assert texts.features.shape == (3, size)
        assert texts.features[:, :3].tolist() == [[1, 2, 3], [0, 0, 0], [4, 5, 6]]
        assert not model.word_vectors.weight.requires_grad
