"""How a run uses several devices, and what a run would refuse: the checks are those of training."""

import re
from dataclasses import dataclass
from typing import Literal

from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.training.activation_checkpoint import check_recomputed
from kinfolk.training.config import Optimizer, TrainConfig

Parallel = Literal["ddp", "fsdp"]
MAX_DEVICES = 2**20
SETTING = re.compile(r"train\.(\w+)(?:=(\w+))?")  # in the sentences of training


@dataclass(frozen=True)
class Strategy:
    """How a model is trained on several devices."""

    devices: int = 1
    parallel: Parallel = "ddp"
    tensor: int = 1
    pipeline: int = 1
    checkpoint_activations: bool = False

    @property
    def replicas(self) -> int:
        """The number of shares that the rows of a step are divided into."""
        return self.devices // (self.tensor * self.pipeline)

    @property
    def words(self) -> str:
        """The strategy in words: `fsdp, tensor 8, pipeline 4`."""
        parts = [
            self.parallel if self.replicas > 1 else "",
            f"tensor {self.tensor}" if self.tensor > 1 else "",
            f"pipeline {self.pipeline}" if self.pipeline > 1 else "",
        ]
        return ", ".join(part for part in parts if part) or "one device"

    @property
    def options(self) -> str:
        """The options of `kinfolk plan` that choose it."""
        parts = [
            f"--devices {self.devices}",
            f"--parallel {self.parallel}" if self.parallel != "ddp" else "",
            f"--tensor {self.tensor}" if self.tensor > 1 else "",
            f"--pipeline {self.pipeline}" if self.pipeline > 1 else "",
            "--checkpoint-activations" if self.checkpoint_activations else "",
        ]
        return " ".join(part for part in parts if part)

    def check(self, batch_size: int, gradient_accumulation: int | None = None) -> None:
        """Refuse devices and rows that cannot be divided like this."""
        shares = {"devices": self.devices, "tensor": self.tensor, "pipeline": self.pipeline}
        for name, value in shares.items():
            if not 1 <= value <= MAX_DEVICES:
                raise UserError(f"--{name} must be from 1 to {MAX_DEVICES:,} (got {value})")
        held = self.tensor * self.pipeline
        if held > self.devices:
            raise UserError(
                f"--tensor {self.tensor} and --pipeline {self.pipeline} need {held} devices, and "
                f"there are {self.devices}: raise --devices, or lower one of them"
            )
        if self.devices % held:
            raise UserError(
                f"--devices {self.devices} is no multiple of --tensor {self.tensor} times "
                f"--pipeline {self.pipeline}: use a multiple of {held}"
            )
        if batch_size % self.replicas:
            raise UserError(
                f"--batch {batch_size} cannot be shared equally by {self.replicas} replicas of the "
                f"model: use a multiple of {self.replicas}, or other --devices"
            )
        rows = batch_size // self.replicas
        if gradient_accumulation is not None and rows % gradient_accumulation:
            raise UserError(
                f"--grad-accum {gradient_accumulation} does not divide the {rows} rows of a "
                "replica: use a divisor of them"
            )

    def check_network(self, model: LanguageModel, optimizer: Optimizer) -> None:
        """Refuse what a run with these settings refuses, in the same words."""
        try:
            train = TrainConfig(
                optimizer=optimizer,
                parallel=self.parallel,
                tensor=self.tensor,
                pipeline=self.pipeline,
                checkpoint_activations="yes" if self.checkpoint_activations else "no",
            )
            if self.tensor * self.pipeline > 1:
                from kinfolk.training.model_shard import check_shards  # takes a second

                check_shards(model, train, layer_lr_decay=1.0)
            if self.parallel == "fsdp":
                from kinfolk.training.sharding import check_sharded  # takes a second

                check_sharded(model)
            if self.checkpoint_activations:
                check_recomputed(model)
        except UserError as error:
            raise UserError(with_options(str(error))) from None

    def runs(self, model: LanguageModel, optimizer: Optimizer) -> bool:
        """Return whether a run accepts a network with these settings."""
        try:
            self.check_network(model, optimizer)
        except UserError:
            return False
        return True


def with_options(sentence: str) -> str:
    """Write the settings of a run in a sentence as options: `train.tensor=2` is `--tensor 2`."""

    def option(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), found[2]
        return f"--{name}" if value in (None, "yes") else f"--{name} {value}"

    return SETTING.sub(option, sentence)
