"""What a training step takes before it runs: its FLOPs, and the bytes that it keeps.

The forward and the backward pass run on the meta device, whose tensors have shapes and no content:
a network of any size takes seconds and no memory. Autograd reports every tensor that it saves. A
compiled step saves less: it computes cheap operations a second time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from kinfolk.batch import Batch, ComputesLoss, TokenTargets
from kinfolk.nn.language_model import LanguageModel, executed_layers
from kinfolk.training.config import Optimizer
from kinfolk.training.flops import FlopCounter

# What autocast runs in bfloat16, and in float32, of the operations that networks here use.
LOW_PRECISION = {
    *(F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm),
    *(torch.einsum, torch.baddbmm, torch.addmm, F.conv1d, F.bilinear),
}
FULL_PRECISION = {
    *(F.layer_norm, F.rms_norm, F.softmax, torch.softmax, Tensor.softmax, F.log_softmax),
    *(torch.log_softmax, Tensor.log_softmax, F.cross_entropy, torch.exp, Tensor.exp),
}


@dataclass(frozen=True)
class LayerTrace:
    """One call of a layer in the forward pass; sizes in bytes."""

    saved: int  # for the backward pass, by this call alone
    split: int  # of them, what tensor parallelism divides: all but copies of the hidden states
    inputs: int  # tensors that the call is given, which activation checkpointing keeps instead
    flops: int  # of the forward pass


@dataclass(frozen=True)
class StepTrace:
    """What forward, backward and update of a micro-batch take; sizes in bytes."""

    flops: int
    weights: int  # parameters and buffers
    gradients: int
    moments: int  # of the optimizer
    layers: tuple[LayerTrace, ...]
    outside: int  # saved outside of layers, or by several of them
    casts: int  # copies of the weights in bfloat16
    logits: int  # that a loss holds at a time
    layer_weights: tuple[int, ...]  # of each layer, once
    layer_matrices: int  # of all layers, the parameters with two or more axes

    @property
    def activations(self) -> int:
        """All that autograd saves, without copies of the weights."""
        return self.outside + sum(layer.saved for layer in self.layers)

    @property
    def sure(self) -> int:
        """What is in memory when the optimizer updates the weights."""
        return self.weights + self.gradients + self.moments


class DeviceKernels(TorchFunctionMode):
    """Let operations on the meta device save what those of a CPU, or of a GPU, save."""

    def __init__(self, *, cuda: bool, bfloat16: bool, save: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.cuda, self.bfloat16, self.save = cuda, bfloat16, save
        self.casts: dict[int, Tensor] = {}  # of parameters, which autocast makes once a step

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, or the kernel that a device has for it."""
        kwargs = kwargs or {}
        if self.bfloat16 and func in FULL_PRECISION:
            args = [self.cast(value, torch.float32) for value in args]
        elif self.bfloat16 and (func in LOW_PRECISION or func is F.scaled_dot_product_attention):
            args = [self.cast(value, torch.bfloat16) for value in args]
            kwargs = {name: self.cast(value, torch.bfloat16) for name, value in kwargs.items()}
        if func is F.scaled_dot_product_attention:
            return self.attention(*args[:3], **kwargs)
        if func is F.dropout and self.cuda:
            return self.dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Return a tensor of numbers in a format, and anything else as it is."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if not isinstance(value, nn.Parameter):
            return value.to(dtype)
        if id(value) not in self.casts:
            self.casts[id(value)] = value.to(dtype)
        return self.casts[id(value)]

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Run a kernel that keeps no attention probabilities, where the device has one.

        The one of a CPU has no dropout and no gradient of a bias. Compiled code on a GPU has block
        masks, whose size is small, in place of dense ones.
        """
        biased = attn_mask is not None and attn_mask.requires_grad
        if not self.cuda and (dropout_p or biased):
            return F.scaled_dot_product_attention(
                *(query, key, value, attn_mask, dropout_p, is_causal), scale=scale
            )
        mask = None if self.cuda else attn_mask
        output, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
        )
        if attn_mask is None or not biased:
            return output
        self.save(attn_mask)
        return output + 0 * attn_mask.sum()  # through which the bias has a gradient

    def dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Keep a mask of one byte for each element, as the kernel of a GPU does."""
        return torch.native_dropout(input, p, training)[0] if training and p else input


class SavedTensors:
    """The storages that autograd saves, and the calls of layers that saved them."""

    def __init__(self, model: nn.Module, hidden_size: int) -> None:
        self.hidden_size, self.call = hidden_size, -1  # outside of layers
        self.own = {id(storage_of(tensor)) for tensor in (*model.parameters(), *model.buffers())}
        # Storages are kept, so that none is freed whose identity a later one would have.
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.calls: dict[int, set[int]] = {}
        self.splits: dict[int, bool] = {}

    def save(self, tensor: Tensor) -> Tensor:
        """Note the storage of a tensor that is saved for the backward pass."""
        storage = storage_of(tensor)
        key = id(storage)
        if key not in self.own:
            self.storages[key] = storage
            self.calls.setdefault(key, set()).add(self.call)
            whole = tensor.ndim <= 3 and tensor.shape[-1:] in ((self.hidden_size,), (1,), ())
            self.splits[key] = self.splits.get(key, True) and not whole
        return tensor

    def sizes(self, leaving: Iterable[Tensor]) -> tuple[dict[int, int], dict[int, int], int]:
        """Return the bytes that each call saved alone, those that can be split, and the others.

        Tensors of `leaving` are counted elsewhere.
        """
        left = {id(storage_of(tensor)) for tensor in leaving}
        alone: dict[int, int] = {}
        split: dict[int, int] = {}
        outside = 0
        for key, storage in self.storages.items():
            if key in left:
                continue
            call, *others = self.calls[key]
            if others or call < 0:
                outside += storage.nbytes()
                continue
            alone[call] = alone.get(call, 0) + storage.nbytes()
            split[call] = split.get(call, 0) + storage.nbytes() * self.splits[key]
        return alone, split, outside


def trace_step(
    model: LanguageModel,
    objective: ComputesLoss,
    batch: Batch[Any],
    *,
    cuda: bool,
    bfloat16: bool,
    optimizer: Optimizer,
    logits: Callable[[int], int],
    backward: bool = True,
) -> StepTrace:
    """Run forward and backward on a micro-batch and return what they take.

    Model and batch are on the meta device. Networks whose shapes depend on the texts have to be on
    the CPU; what they save is counted in float32. Without `backward`, only what is saved is known.
    `logits` returns the bytes that a loss holds at a time for so many predictions.
    """
    model.train()
    saved = SavedTensors(model, model.feature_size)
    calls: list[tuple[int, int]] = []  # bytes of the inputs and FLOPs of each call of a layer
    with FlopCounter() as counter, saved_tensors_hooks(saved.save, lambda tensor: tensor):
        kernels = DeviceKernels(cuda=cuda, bfloat16=bfloat16, save=saved.save)
        with recorded_calls(model, saved, calls, counter), ExitStack() as stack:
            if batch.inputs.input_ids.is_meta:
                stack.enter_context(kernels)
            mean = objective.loss(model, batch).mean(batch.counts)
        if backward:
            torch.autograd.backward(mean)
    casts = [*kernels.casts.values()]
    alone, split, outside = saved.sizes(leaving=casts)
    trained = [p for p in model.parameters() if p.grad is not None]
    layers = executed_layers(model)
    predictions = max((part.labels.numel() for part in token_targets(batch.targets)), default=0)
    trace = StepTrace(
        flops=counter.total,
        weights=tensor_bytes([*model.parameters(), *model.buffers()]),
        gradients=tensor_bytes(trained),
        moments=sum(moment_bytes(optimizer, p) for p in trained),
        layers=tuple(
            LayerTrace(alone.get(call, 0), split.get(call, 0), *recorded)
            for call, recorded in enumerate(calls)
        ),
        outside=outside,
        casts=tensor_bytes(casts),
        logits=logits(predictions),
        layer_weights=tuple(tensor_bytes(layer.parameters()) for layer in layers),
        layer_matrices=tensor_bytes(p for m in layers for p in m.parameters() if p.ndim > 1),
    )
    model.zero_grad(set_to_none=True)
    return trace


@contextmanager
def recorded_calls(
    model: nn.Module,
    saved: SavedTensors,
    calls: list[tuple[int, int]],
    counter: FlopCounter,
) -> Iterator[None]:
    """Record the inputs and the FLOPs of each call of a layer in the forward pass."""
    begun = 0

    def before(_: nn.Module, arguments: Any, named: Any) -> None:
        nonlocal begun
        tensors = [a for a in (*arguments, *named.values()) if isinstance(a, Tensor)]
        calls.append((tensor_bytes(tensors), 0))
        saved.call, begun = len(calls) - 1, counter.total

    def after(_: nn.Module, arguments: Any, output: Any) -> None:
        calls[saved.call] = calls[saved.call][0], counter.total - begun
        saved.call = -1

    with ExitStack() as stack:
        for layer in executed_layers(model):
            for hook in (
                layer.register_forward_pre_hook(before, with_kwargs=True),
                layer.register_forward_hook(after),
            ):
                stack.callback(hook.remove)
        yield


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """Return the storage of a tensor, which views share."""
    return tensor.untyped_storage()


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def moment_bytes(optimizer: Optimizer, parameter: Tensor) -> int:
    """Return the size of what an optimizer keeps for a parameter, with its number of steps."""
    size = parameter.element_size()
    if optimizer != "adafactor":
        # Muon keeps one moment of a matrix of a layer, and two of other parameters. Which a matrix
        # is cannot be seen here: at least one.
        moments = 1 if optimizer == "muon" and parameter.ndim > 1 else 2
        return moments * parameter.numel() * size + 4
    if parameter.ndim < 2:
        return parameter.numel() * size + 4
    rows, columns = parameter.shape[-2:]  # Shazeer and Stern 2018: means of rows and of columns
    return parameter.numel() // (rows * columns) * (rows + columns) * size + 4


def token_targets(value: Any) -> Iterator[TokenTargets]:
    """Yield the tokens that are predicted, among whatever else the targets of a batch hold."""
    if isinstance(value, TokenTargets):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from token_targets(vars(value)[field.name])
