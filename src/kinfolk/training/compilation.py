"""Whether a run compiles its model, whole or layer by layer, and what it does if that fails."""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from torch import nn

from kinfolk.nn.language_model import executed_layers, has_static_shapes
from kinfolk.training.config import TrainConfig

CompileMode = Literal["model", "layers", "no"]

# Seconds of a run, as estimated below, from which it pays to compile. On an H200 the layers of
# GPT-2 124M take 5 s to compile and save a quarter of the time of an eager step; the whole model
# takes 25 s and saves 4 % more. A replayed CUDA graph of an eager step already has no gaps.
COMPILE_LAYERS_FROM = 20.0
COMPILE_LAYERS_OF_GRAPH_FROM = 60.0
COMPILE_MODEL_FROM = 600.0
STEP_FLOPS = 3.5e14  # a second, of whole steps of GPT-2 124M on an H200
MIN_STEP_SECONDS = 2e-3  # of small networks, which the host limits


@dataclass(frozen=True)
class CompilePlan:
    """What is compiled, and the reason where the run decided itself."""

    mode: CompileMode
    reason: str | None = None


def run_seconds(train: TrainConfig, parameters: int, row_length: int) -> float:
    """Estimate the seconds of a run on a fast GPU: 6 FLOPs for each parameter and token."""
    flops = 6 * parameters * train.batch_size * row_length
    return train.steps * max(flops / STEP_FLOPS, MIN_STEP_SECONDS)


def plan_compilation(
    train: TrainConfig, *, cuda: bool, row_length: int | None, parameters: int, replays: bool
) -> CompilePlan:
    """Return what a run compiles; `replays`: its step is a CUDA graph.

    `auto` decides by the length of the run, so that a short one does not wait for the compiler.
    """
    if not train.compiles(cuda=cuda, row_length=row_length):
        return CompilePlan("no")
    if train.compile != "auto":
        return CompilePlan("layers" if train.compile == "layers" else "model")
    assert row_length is not None, "auto compiles rows of one length"
    seconds = run_seconds(train, parameters, row_length)
    about = f"the run takes about {_duration(seconds)} on a fast GPU"
    if seconds >= COMPILE_MODEL_FROM:
        return CompilePlan("model", f"{about}: the whole model is compiled")
    if seconds >= (COMPILE_LAYERS_OF_GRAPH_FROM if replays else COMPILE_LAYERS_FROM):
        return CompilePlan("layers", f"{about}: each layer is compiled, which takes seconds")
    return CompilePlan("no", f"{about}: nothing is compiled, which would take longer than it saves")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.0f} h"


class CompiledModules:
    """The modules of a learner that are compiled: they can run without it if the compiler fails."""

    def __init__(self, modules: Sequence[nn.Module], *, dynamic: bool) -> None:
        warnings.filterwarnings("ignore", message=r"\s*online softmax is disabled")
        self.modules = modules
        self.seconds = 0.0  # in which something was compiled
        self._timing = False
        for module in modules:
            module.compile(dynamic=dynamic)

    @classmethod
    def of(
        cls, mode: CompileMode, learner: nn.Module, *, dynamic: bool
    ) -> "CompiledModules | None":
        """Compile a learner whole, or the layers in it; layers of one shape share their code.

        A network without such layers, or with shapes that depend on the texts, is compiled whole.
        """
        if mode == "no":
            return None
        layers = executed_layers(learner) if has_static_shapes(learner) else []
        return cls(layers if mode == "layers" and layers else [learner], dynamic=dynamic)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of the block if something is compiled in it; blocks may be nested."""
        if self._timing:
            yield
            return
        graphs, began, self._timing = compiled_graphs(), time.perf_counter(), True
        try:
            yield
        finally:
            self._timing = False
            if compiled_graphs() != graphs:
                self.seconds += time.perf_counter() - began

    def undo(self) -> None:
        """Run all modules uncompiled from now on."""
        for module in self.modules:
            module._compiled_call_impl = None
        self.modules = ()

    def failed(self, error: BaseException) -> bool:
        """Return whether an error is the compiler's, of modules that are still compiled."""
        if not self.modules:
            return False
        from torch._dynamo.exc import TorchDynamoException  # imported by the compiler before

        return isinstance(error, TorchDynamoException)


def compiled_graphs() -> int:
    """Return how many graphs this process has compiled."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def failure_message(error: BaseException) -> str:
    """Return a sentence about a compiler that failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = lines[0][:200] if lines else type(error).__name__
    return (
        f"the model could not be compiled ({what}): the run continues without, which is slower; "
        "train.compile=no does not try"
    )
