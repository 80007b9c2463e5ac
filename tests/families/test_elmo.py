"""ELMo: published sizes, the layers of the release, softmaxes, words by their characters."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from kinfolk import hub
from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Inputs
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset
from kinfolk.errors import UserError
from kinfolk.families.elmo import FAMILY, PUBLISHED, ELMo
from kinfolk.hub.importers import hdf5
from kinfolk.nn.embeddings import LinearLogits, SampledLogits
from kinfolk.nn.recurrent import ClippedLSTM, Recurrence, mirrored_positions
from kinfolk.objectives.bilm import BiLM
from kinfolk.tasks.formulations.choose import build_formulation
from kinfolk.tasks.formulations.features import FeatureTagger
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import TaggedSentence
from kinfolk.tasks.task import Task
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.text.tokenizer import SpecialTokens

GOLDEN = Path(__file__).parent / "golden" / "elmo.safetensors"


def golden() -> tuple[dict[str, Tensor], dict[str, Any], list[list[str]]]:
    """Return what AllenNLP has computed: tensors, options and words."""
    with safe_open(GOLDEN, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors, json.loads(metadata["options"]), json.loads(metadata["words"])


def word_tokenizer(*texts: str) -> Tokenizer:
    return train_tokenizer(texts or ("The cat sat .",), kind="word", vocab_size=400, fewer=True)


def from_release() -> ELMo:
    """Return the network of the golden weights, as the importer converts them."""
    tensors, options, _ = golden()
    weights = {n: t for n, t in tensors.items() if not n.startswith(("layer.", "mask", "charact"))}
    data, state = hdf5.convert(options, weights)
    format = hub.formats.Native(FAMILY)
    model: Any = format.from_config(data).build()
    model.load_state_dict(state, strict=False)
    return model.eval()


@pytest.mark.parametrize(
    ("size", "millions"), [("elmo-small", 13.6), ("elmo-medium", 28.0), ("elmo-original", 93.6)]
)
def test_published_sizes_have_the_published_parameters(size: str, millions: float) -> None:
    """Without the softmax, which was not released; torch has two biases for TensorFlow's one."""
    with torch.device("meta"):
        model: Any = PUBLISHED[size].build()
    counted = {n: p.numel() for n, p in model.named_parameters() if "bias_hh" not in n}
    total = sum(count for name, count in counted.items() if not name.startswith("softmax"))
    assert round(total / 1e6, 1) == millions
    assert model.softmax.weight_of(0).shape[1] == model.config.projection_size


@torch.no_grad()
def test_every_layer_equals_allennlps() -> None:
    """Texts of different lengths, in one row each and packed into one; limits that bind."""
    tensors, _, words = golden()
    model = from_release()
    begin, end = (torch.tensor([259, mark, 260, *[261] * 6]) for mark in (257, 258))
    texts = [
        torch.stack([begin, *tensors["characters"][row, : len(text)], end])
        for row, text in enumerate(words)
    ]
    packed = torch.cat(texts)[None]
    document = torch.repeat_interleave(torch.tensor([len(t) for t in texts]))[None]
    inputs = Inputs(
        input_ids=torch.zeros_like(document),
        attention_mask=AttentionMask.bidirectional(document),
        position_ids=torch.zeros_like(document),
        character_ids=packed,
    )
    layers = model.layer_outputs(inputs)
    assert len(layers) == 3 == model.num_feature_layers
    for number, layer in enumerate(layers):
        wanted = torch.cat(
            [tensors[f"layer.{number}"][row, : len(text)] for row, text in enumerate(texts)]
        )
        torch.testing.assert_close(layer[0], wanted, rtol=1e-5, atol=1e-6)
    assert tensors["layer.1"].abs().max() == pytest.approx(0.4), "a limit binds"
    assert torch.equal(layers[-1], model(inputs).hidden)


@torch.no_grad()
def test_without_limits_the_layers_of_torch_give_the_same() -> None:
    torch.manual_seed(0)
    plain = nn.LSTM(6, 20, proj_size=6)
    limited = ClippedLSTM(6, 20, proj_size=6, cell_clip=1e3, projection_clip=1e3)
    limited.load_state_dict(plain.state_dict())
    document = torch.tensor([[0, 0, 0, 1, 1, -1], [4, 5, 5, 5, 5, 5]])
    x = torch.randn(2, 6, 6)
    for ids, packed in ((document, True), (torch.zeros_like(document), False)):
        inputs = Inputs(
            input_ids=ids, attention_mask=AttentionMask.bidirectional(ids), position_ids=ids
        )
        found = []
        for layer in (plain, limited):
            recurrence = Recurrence(inputs, [layer])
            assert (recurrence.texts.batch_sizes is not None) == packed
            out = recurrence.run(layer, recurrence.flatten(x))
            found.append((recurrence.unflatten(out), *recurrence.final))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_texts_are_mirrored_each_by_itself() -> None:
    document = torch.tensor([[0, 0, 0, 1, 1, -1], [4, 5, 5, 5, 5, 5]])
    mirrored = mirrored_positions(document)
    assert mirrored.tolist() == [[2, 1, 0, 4, 3, 5], [0, 5, 4, 3, 2, 1]]
    assert torch.equal(mirrored.gather(1, mirrored), torch.arange(6).expand(2, -1))


def small(**changes: Any) -> ELMo:
    torch.manual_seed(0)
    config: Any = replace(FAMILY.sizes["nano"], vocab_size=500, max_characters=8, **changes)
    return config.build()


def test_a_sampled_softmax_is_full_in_evaluation_and_near_it_in_training() -> None:
    model = small(num_samples=50)
    hidden, labels = torch.randn(40, 32), torch.randint(500, (40,))
    labels[3] = IGNORE_INDEX
    assert isinstance(model.train().lm_logits(hidden), SampledLogits)
    assert type(model.eval().lm_logits(hidden)) is LinearLogits
    full = model.lm_logits(hidden).nll(labels)
    sampled = model.train().lm_logits(hidden)
    torch.testing.assert_close(sampled.logits(), model.eval().lm_logits(hidden).logits())
    found = torch.stack([sampled.nll(labels) for _ in range(300)])
    # The mean over samples is somewhat below the full loss, and comes nearer with more of them.
    assert abs(found.mean() / full - 1) < 0.05
    more = SampledLogits(hidden, sampled.weight, sampled.bias, 500, 400)
    nearer = torch.stack([more.nll(labels) for _ in range(300)])
    assert abs(nearer.mean() / full - 1) < 0.01
    assert nearer.std() < found.std()
    sampled.nll(labels).backward()
    assert model.softmax.weight_of(0).grad.abs().sum() > 0


def test_a_label_that_is_drawn_is_no_wrong_answer() -> None:
    hidden, weight = torch.zeros(1, 4), torch.zeros(2, 4)
    logits = SampledLogits(hidden, weight, None, 2, 1)
    losses = {round(float(logits.nll(torch.tensor([0]))), 4) for _ in range(40)}
    assert 0.0 in losses and len(losses) == 2


def test_an_adaptive_softmax_sums_to_one() -> None:
    model = small(cutoffs=(100, 300)).eval()
    logits = model.lm_logits(torch.randn(7, 32)).logits()
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(7))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 65}, "must be even"),
        ({"lstm_size": 32}, "must be more than half"),
        ({"cell_clip": 3.0}, "set both, or none"),
        ({"filters": (1,) * 9}, "wider than a word"),
        ({"cutoffs": (10,), "num_samples": 5}, "not both"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(**changes)


def test_unknown_words_have_features_of_their_own() -> None:
    """Two words that the vocabulary lacks have one id, and different features."""
    known = word_tokenizer()
    model = small()
    hub.bind_tokenizer(model, known)
    assert model.token_embeddings.table[known.token_to_id("cat"), :5].tolist() == [
        259,
        *(ord(c) + 1 for c in "cat"),
        260,
    ]
    formulation = build_formulation(
        FeatureTagger, Task(kind="tag", labels=("O", "B-X")), FAMILY, model.config, known
    )
    row = TaggedSentence(("The", "zebra", "Zanzibar"), None, 1)
    (instance,) = formulation.instances(row, known)
    batch = formulation.make_batch([instance])
    unknown = known.special_tokens.unk
    assert batch.inputs.input_ids[0, 1:4].tolist() == [known.token_to_id("The"), unknown, unknown]
    assert batch.inputs.input_ids[0, 0] == known.special_tokens.bos
    with torch.no_grad():
        words = model.layer_outputs(batch.inputs)[0][0]
    assert not torch.allclose(words[2], words[3])
    alone = replace(batch.inputs, character_ids=None)
    with torch.no_grad():
        by_id = model.layer_outputs(alone)[0][0]
    assert torch.allclose(by_id[1], words[1]) and not torch.allclose(by_id[2], words[2])


def write_release(folder: Path) -> Path:
    """Write the golden weights as the release has them."""
    h5py = pytest.importorskip("h5py")
    tensors, options, _ = golden()
    (folder / "elmo_options.json").write_text(json.dumps(options), encoding="utf-8")
    with h5py.File(folder / "elmo_weights.hdf5", "w") as file:
        for name, tensor in tensors.items():
            if not name.startswith(("layer.", "mask", "charact")):
                file[name] = tensor.numpy()
    return folder


def test_a_release_opens_with_any_tokenizer(tmp_path: Path) -> None:
    folder, known = write_release(tmp_path), word_tokenizer()
    for path in (folder, folder / "elmo_weights.hdf5"):
        model: Any
        model, _ = hub.load(path, known)
        assert model.config.vocab_size == known.vocab_size
        assert model.random_modules == ("softmax",)
        state, wanted = model.state_dict(), from_release().state_dict()
        for name, tensor in wanted.items():
            if not name.startswith("softmax") and not name.endswith("table"):
                assert torch.equal(state[name], tensor), name
        with pytest.raises(UserError, match="has no weights of softmax"):
            model.check_lm_head()
        out = tmp_path / f"saved-{path.name}"
        with pytest.warns(UserWarning, match="no trained weights of softmax"):
            hub.save(out, model, known)
        again, _ = hub.load(out)
        ids = torch.tensor([known.encode("The cat sat .")])
        inputs = Inputs.from_ids(ids, causal=False)
        assert torch.equal(again(inputs).hidden, model(inputs).hidden)


def test_a_release_without_a_part_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, options, _ = golden()
    (tmp_path / "options.json").write_text(json.dumps(options), encoding="utf-8")
    with pytest.raises(UserError, match=r"options\.json has no weights beside it"):
        hub.load_model(tmp_path)
    weights = tmp_path / "elmo_weights.hdf5"
    weights.write_bytes(b"not HDF5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"needs the h5py package: pip install 'kinfolk\[elmo\]'"):
        hub.load_model(tmp_path)
    (tmp_path / "options.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="must hold a JSON object"):
        hub.load_model(tmp_path)
    (tmp_path / "options.json").unlink()
    with pytest.raises(UserError, match=r"has no options\.json beside it"):
        hub.load_model(tmp_path)
    for broken, message in (
        ({**options, "lstm": {}}, "lacks 'projection_dim'"),
        ({**options, "lstm": {**options["lstm"], "use_skip_connections": False}}, "must be True"),
        (
            {**options, "char_cnn": {**options["char_cnn"], "filters": [[2, 4]]}},
            "widths .2. are not supported",
        ),
    ):
        with pytest.raises(UserError, match=message):
            hdf5.convert(broken, tensors)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_both_directions_and_a_tagger_give_the_same_on_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Carried states over packed rows, and a CRF over features of unknown words."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # the default of convolutions
    specials = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=2, sep=3, mask=1)
    objective = BiLM(special_tokens=specials, vocab_size=500, max_length=16)
    text = InMemoryDocuments.from_lists(
        [[torch.randint(5, 500, (size,)).tolist()] for size in (40, 9, 30, 3, 61)]
    )
    feed = ContiguousDataset(objective, text, batch_size=3)
    known, rows = word_tokenizer(), [TaggedSentence(("The", "zebra", "sat"), ("O", "B-X", "O"), 1)]
    found: dict[str, list[Tensor]] = {}
    for device in ("cpu", "cuda"):
        model = small().to(device)
        memory, losses = model.init_memory(3), []
        for number in range(3):
            loss = objective.loss(model, feed[number].to(device).with_memory(memory))
            assert loss.memory is not None
            memory = loss.memory
            losses += [*loss.sums.values()]
        torch.stack(losses).sum().backward()
        found[device] = [*losses, *(p.grad for p in model.parameters() if p.grad is not None)]
        task = Task(kind="tag", labels=("O", "B-X"))
        formulation = build_formulation(FeatureTagger, task, FAMILY, model.config, known)
        torch.manual_seed(1)
        tagger = replace(formulation.model_config(model.config), dropout=0.0).build_on(small())
        hub.bind_tokenizer(tagger, known)
        tagger.to(device)
        batch = formulation.make_batch(formulation.instances(rows[0], known)).to(device)
        loss = formulation.loss(tagger, batch)
        loss.sums["label"].backward()
        found[device] += [loss.sums["label"], tagger.task_network.crf.transitions.grad]
        (answer,) = predict_rows(formulation, tagger, rows, known)
        found[device].append(torch.tensor(answer.probabilities))
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(other.cpu().detach(), one.detach(), rtol=1e-3, atol=1e-4)
