"""What a trained network computes for a text: attention, hidden states, predictions by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families.cove import CoVe
from kinfolk.families.electra import Electra
from kinfolk.families.elmo import ELMo
from kinfolk.families.transformer_xl import TransformerXL
from kinfolk.generation.prompts import eval_mode
from kinfolk.nn.language_model import EncoderDecoder, LanguageModel
from kinfolk.nn.recording import QUERY, Recording, record_layers_and_attention
from kinfolk.workflows.inspection.layouts import Labels, Layout
from kinfolk.workflows.inspection.recurrent import RecurrentStates, recurrent_states
from kinfolk.workflows.inspection.rows import RowsWithMemory, run_rows

TOP = 5  # predictions shown at each place
MASKED_ROWS = 16  # of a text with one token masked in each, which run at a time
ValueArray = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class LensPredictions:
    """What is predicted at each place of a text, after every layer (logit lens).

    The last layer is the network's own output: its values are those of `logits`.
    """

    labels: Labels
    layers: tuple[str, ...]  # embeddings, layer 1 ...
    logits: ValueArray  # (positions, vocabulary)
    probabilities: ValueArray  # (positions,): of the label; NaN where there is none
    losses: ValueArray  # (positions,): its negative log-likelihood in nats; NaN likewise
    lens_ids: ValueArray  # (layers, positions, TOP)
    lens_probabilities: ValueArray  # (layers, positions, TOP)
    lens_label_probabilities: ValueArray  # (layers, positions)
    # What is read at each place to predict there: a mask, or None for nothing; empty: the row.
    read_ids: Labels = field(default_factory=list)


@dataclass
class NetworkValues:
    """Values of one text by their names."""

    arrays: dict[str, ValueArray] = field(default_factory=dict)
    predictions: dict[str, LensPredictions] = field(
        default_factory=dict
    )  # by direction; "": the one
    traces: RecurrentStates | None = None  # of LSTM layers
    rows: RowsWithMemory | None = None  # of Transformer-XL
    notes: list[str] = field(default_factory=list)

    def add_recording(self, model: LanguageModel, recording: Recording) -> None:
        """Keep the attention and the hidden states of a single row."""
        for name, layers in recording.attention.items():
            self.arrays[array_name(name, "attention")] = to_numpy(
                torch.stack([x[0] for x in layers])
            )
        for name, states in recording.hidden.items():
            self.add_hidden(name, [x[0] for x in states])

    def add_hidden(self, name: str, states: Sequence[Tensor]) -> None:
        """Keep the hidden states of a stack and their norms; layers may differ in size."""
        norms = torch.stack([x.norm(dim=-1) for x in states])
        self.arrays[array_name(name, "norms")] = to_numpy(norms)
        title = array_name(name, "hidden_states")
        if len({x.shape for x in states}) == 1:
            self.arrays[title] = to_numpy(torch.stack(list(states)))
            return
        for number, x in enumerate(states):
            self.arrays[f"{title}_{number}"] = to_numpy(x)

    def set_last_hidden(self, name: str, hidden: Tensor) -> None:
        """Replace the last hidden states by those after the norm that follows, as networks do."""
        self.arrays[array_name(name, "hidden_states")][-1] = to_numpy(hidden)


def array_name(stream: str, what: str) -> str:
    """Return the name of an array: `attention`, or `encoder_attention` where there are several."""
    return f"{stream}_{what}" if stream else what


def to_numpy(x: Tensor) -> ValueArray:
    """Return a copy on the host, in single precision or better."""
    found: ValueArray = (
        x.detach().to(torch.promote_types(x.dtype, torch.float32)).cpu().numpy().copy()
    )
    return found


def network_values(model: LanguageModel, layout: Layout, mask_id: int | None) -> NetworkValues:
    """Return what a network computes for a text.

    `mask_id`: encoders predict each token from a text in which it is masked; None: from the text.
    """
    values, network = NetworkValues(), model.pretrained
    predicts = can_predict(model, values)
    with torch.no_grad(), eval_mode(model):
        if isinstance(network, EncoderDecoder):
            run_encoder_decoder(network, layout, values, predicts)
        elif any(isinstance(part, nn.LSTM) for part in network.modules()):
            run_recurrent(network, layout, values, predicts)
        elif network.decoding == "two-stream":
            run_two_streams(network, layout, values, predicts)
        elif network.architecture == "encoder":
            run_encoder(network, layout, values, mask_id if predicts else None, predicts)
            if isinstance(model, Electra):
                detect_replaced(model, layout, values)
        else:
            run_decoder(network, layout, values, predicts)
    return values


def can_predict(model: LanguageModel, values: NetworkValues) -> bool:
    """Return whether the network predicts tokens; else note why not."""
    if model.pretrained is not model:
        values.notes.append("The model was fine-tuned: its head predicts labels, not tokens.")
        return False
    try:
        model.check_lm_head()
    except UserError as error:
        values.notes.append(f"No tokens are predicted: {error}.")
        return False
    return not (model.architecture == "recurrent" and not is_language_model(model))


def is_language_model(model: LanguageModel) -> bool:
    """Return whether a recurrent network has an output layer: a BiLSTM has none."""
    return model.decoding is not None or isinstance(model, ELMo)


def run_decoder(
    model: LanguageModel, layout: Layout, values: NetworkValues, predicts: bool
) -> None:
    """Run a network whose hidden state at a place predicts the label there."""
    if isinstance(model, TransformerXL) and model.config.mem_len:
        read = values.rows = run_rows(model, layout.inputs)
        recording, output = read.recording, read.output
        values.notes.append(memory_note(read))
    else:
        with record_layers_and_attention(model) as recording:
            output = model(layout.inputs).hidden
    values.add_recording(model, recording)
    if not recording.hidden:  # of an n-gram model, whose states are its contexts
        values.predictions[""] = predict_by_layer(model, [output[0]], layout.labels)
        return
    (states,) = recording.hidden.values()
    values.set_last_hidden("", output[0])
    if predicts:
        rows = [x[0] for x in states]
        values.predictions[""] = predict_by_layer(model, rows, layout.labels)


def memory_note(rows: RowsWithMemory) -> str:
    """Say how a text is read with a memory."""
    if not rows.starts:
        return "The text is a single row: the memory before it is empty."
    first = rows.starts[0]
    held = "all" if first <= rows.memory else f"the last {rows.memory}"
    return (
        "The text is read in two rows. The second also attends to the memory, the hidden states "
        f"that every layer kept of the first: here of {held} of its {first} tokens."
    )


def run_encoder(
    model: LanguageModel,
    layout: Layout,
    values: NetworkValues,
    mask_id: int | None,
    predicts: bool,
) -> None:
    """Run an encoder on the text, and to predict tokens on the text with each of them masked."""
    with record_layers_and_attention(model) as recording:
        model(layout.inputs)
        if isinstance(model, Electra) and predicts:
            model.forward_lm(layout.inputs)
    values.add_recording(model, recording)
    if not predicts:
        return
    length = layout.inputs.input_ids.shape[1]
    rows = layout.inputs.input_ids.repeat(length, 1)
    for place, label in enumerate(layout.labels):
        if label is not None and mask_id is not None:
            rows[place, place] = mask_id
    found: list[list[Tensor]] = []
    for first in range(0, length, MASKED_ROWS):
        part = Inputs.from_ids(rows[first : first + MASKED_ROWS], causal=False)
        with record_layers_and_attention(model) as recording:
            model.forward_lm(part)
        (states,) = recording.hidden.values()
        positions = torch.arange(len(part.input_ids), device=rows.device)
        found.append([x[positions, first + positions] for x in states])
    states = [torch.cat(layer) for layer in zip(*found, strict=True)]
    predicted = predict_by_layer(model, states, layout.labels)
    values.predictions[""] = replace(predicted, read_ids=rows.diagonal().tolist())
    if mask_id is not None:
        values.notes.append(
            "Each token is predicted, and the logit lens taken, from the text with that token "
            "masked; attention and norms are those of the text without masks."
        )


def detect_replaced(model: Electra, layout: Layout, values: NetworkValues) -> None:
    """Keep the probability that the discriminator gives each token of having been replaced."""
    if "discriminator_head" in model.random_modules:  # of a generator that was saved alone
        values.notes.append("The model folder has no weights of the discriminator's head.")
        return
    replaced = model.discriminator_logits(model(layout.inputs).hidden)[0].sigmoid()
    values.arrays["replaced_probabilities"] = to_numpy(replaced)


def run_two_streams(
    model: LanguageModel, layout: Layout, values: NetworkValues, predicts: bool
) -> None:
    """Run XLNet's content stream, and its query stream for each token as the last of the order."""
    inputs, length = layout.inputs, layout.inputs.input_ids.shape[1]
    with record_layers_and_attention(model) as recording:
        output = model(inputs).hidden
    values.add_recording(model, recording)
    values.set_last_hidden("", output[0])
    if not predicts:
        return
    every = torch.arange(length, device=inputs.input_ids.device)
    found: list[list[Tensor]] = []
    attention: list[list[Tensor]] = []
    for positions in torch.split(every, MASKED_ROWS):
        part = last_in_order(inputs, positions)
        with record_layers_and_attention(model) as recording:
            model(part)
        found.append([x[:, 0] for x in recording.hidden[QUERY]])
        attention.append([x[:, :, 0] for x in recording.attention[QUERY]])
    layers = [torch.cat(layer) for layer in zip(*attention, strict=True)]  # (query, heads, key)
    values.arrays["query_attention"] = to_numpy(torch.stack(layers).transpose(1, 2))
    states = [torch.cat(layer) for layer in zip(*found, strict=True)]
    values.add_hidden(QUERY, states)
    predicted = predict_by_layer(model, states, layout.labels)
    values.predictions[""] = replace(predicted, read_ids=[None] * length)
    values.notes.append(
        "Each token is predicted by the query stream, as the last of the order: from all others."
    )


def last_in_order(inputs: Inputs, positions: Tensor) -> Inputs:
    """Repeat a row for each place, which is predicted there after all other tokens."""
    rows, length = len(positions), inputs.input_ids.shape[1]

    def repeat(x: Tensor) -> Tensor:
        return x.expand(rows, length)

    order = (torch.arange(length, device=positions.device) == positions[:, None]).int()
    mask = AttentionMask(torch.zeros_like(order), order, order)
    types = inputs.token_type_ids
    return Inputs(
        input_ids=repeat(inputs.input_ids),
        attention_mask=mask,
        position_ids=repeat(inputs.position_ids),
        token_type_ids=None if types is None else repeat(types),
        target_positions=positions[:, None],
    )


def run_encoder_decoder(
    model: EncoderDecoder, layout: Layout, values: NetworkValues, predicts: bool
) -> None:
    """Run the encoder, and the decoder on the target."""
    assert layout.inputs.encoder_inputs is not None
    if isinstance(model, CoVe):
        run_recurrent(model, layout, values, predicts)
        return
    with record_layers_and_attention(model) as recording:
        encoded = model.encode(layout.inputs.encoder_inputs)
    values.add_recording(model, recording)
    values.set_last_hidden("encoder", encoded[0])
    with record_layers_and_attention(model) as recording:
        output = model(layout.inputs).hidden
    recording.attention.pop("encoder"), recording.hidden.pop("encoder")
    values.add_recording(model, recording)
    values.set_last_hidden("decoder", output[0])
    if predicts:
        states = [x[0] for x in recording.hidden["decoder"]]
        values.predictions[""] = predict_by_layer(model, states, layout.labels)


def run_recurrent(
    model: LanguageModel, layout: Layout, values: NetworkValues, predicts: bool
) -> None:
    """Run LSTM layers, and compute their gates."""
    found = values.traces = recurrent_states(model, layout.inputs)
    for name, states in found.hidden.items():
        values.add_hidden(name, states)
    for trace in found.traces:
        title = trace.name.replace(" ", "_")
        values.arrays[f"{title}_gates"] = to_numpy(trace.gates)
        values.arrays[f"{title}_cell"] = to_numpy(trace.cell)
        values.arrays[f"{title}_hidden"] = to_numpy(trace.hidden)
    if found.cross_attention is not None:
        values.arrays["cross_attention"] = to_numpy(found.cross_attention[None, None])
    if not predicts:
        return
    if isinstance(model, ELMo):
        for direction, labels in (("forward", layout.labels), ("backward", layout.backward_labels)):
            states = found.hidden[direction]
            values.predictions[direction] = predict_by_layer(model, states, labels or [])
        return
    # CoVe predicts from the attentional state alone, which is the last.
    stack = [found.hidden["decoder"][-1]] if isinstance(model, CoVe) else found.hidden[""]
    values.predictions[""] = predict_by_layer(model, stack, layout.labels)


def predict_by_layer(
    model: LanguageModel, states: Sequence[Tensor], labels: Labels
) -> LensPredictions:
    """Return the prediction that the output layer makes from each layer: the logit lens.

    Layers of another size than the last are left out.
    """
    names = ["embeddings", *(f"layer {n}" for n in range(1, len(states)))]
    if len(states) == 1:
        names = ["output"]
    pairs = [(n, x) for n, x in zip(names, states, strict=True) if x.shape == states[-1].shape]
    wanted = torch.tensor([0 if i is None else i for i in labels], device=states[-1].device)
    missing = np.array([i is None for i in labels])
    ids, best, of_labels = [], [], []
    logits = log_probabilities = states[-1]
    for _, hidden in pairs:
        logits = layer_logits(model, hidden)
        log_probabilities = logits.double().log_softmax(-1)
        probabilities = log_probabilities.exp()
        top = probabilities.topk(min(TOP, probabilities.shape[-1]))
        own = to_numpy(probabilities.gather(1, wanted[:, None])[:, 0])
        own[missing] = np.nan
        ids.append(top.indices.cpu().numpy())
        best.append(to_numpy(top.values))
        of_labels.append(own)
    losses = np.abs(to_numpy(log_probabilities.gather(1, wanted[:, None])[:, 0]))  # no -0.0
    losses[missing] = np.nan
    return LensPredictions(
        labels=labels,
        layers=tuple(name for name, _ in pairs),
        logits=to_numpy(logits),
        probabilities=of_labels[-1],
        losses=losses,
        lens_ids=np.stack(ids),
        lens_probabilities=np.stack(best),
        lens_label_probabilities=np.stack(of_labels),
    )


def layer_logits(model: LanguageModel, hidden: Tensor) -> Tensor:
    """Return the logits from the output of a layer, as if it were the last: (positions, vocab)."""
    if hidden.dtype.is_floating_point:
        hidden = model.apply_final_norm(hidden)
    return model.lm_logits(hidden).logits()


def prediction_arrays(predictions: Mapping[str, LensPredictions]) -> dict[str, ValueArray]:
    """Return the arrays of predictions by their names."""
    found: dict[str, ValueArray] = {}
    for direction, one in predictions.items():
        parts = {
            "logits": one.logits,
            "probabilities": one.probabilities,
            "losses": one.losses,
            "lens_ids": one.lens_ids,
            "lens_probabilities": one.lens_probabilities,
            "lens_label_probabilities": one.lens_label_probabilities,
        }
        prefix = direction if len(predictions) > 1 else ""
        found |= {array_name(prefix, name): value for name, value in parts.items()}
    return found
