"""A fine-tuning run brought to life: rows, network, optimiser, and where they leave things."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinfolk import hub
from kinfolk.batch import Loss
from kinfolk.data.corpus import file_fingerprint
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.tasks.formats.base import ReadReport
from kinfolk.tasks.formulations.head import CausalHead
from kinfolk.tasks.instances import TaskBatches, mixing_weights, predict_rows
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training import checkpoint
from kinfolk.training.log import MetricsLog
from kinfolk.training.loop import TrainLoop
from kinfolk.training.regularize import FGM, GradualUnfreezing, noisy_tune
from kinfolk.training.step import Learner, TrainStep, sum_counts
from kinfolk.workflows.distill import distill
from kinfolk.workflows.finetune_recipe import FineTuneRecipe, OnMessage, epoch_steps, resolve_steps
from kinfolk.workflows.pretrain import (
    ProgressCallback,
    build_optimizer_and_schedule,
    check_weights,
    checks,
    data_loader,
    remedy,
    select_device,
    uses_bf16,
)

NO_SCORE = (-math.inf, -math.inf)  # how good a model is that was never scored


class Run:
    """A tuning brought to life.

    What a scoring is worth is the mean of its tasks' main metrics and, of two that are alike there,
    the loss; the best of all scorings is the model to keep.
    """

    def __init__(
        self,
        tuning: FineTuneRecipe,
        body: nn.Module,
        tokenizer: Tokenizer,
        out: Path,
        say: OnMessage,
        settings: Sequence[str] = (),
    ) -> None:
        self.tokenizer, self.out = tokenizer, out
        seed = tuning.train.seed
        notes = ReadReport()
        parted = [sheet.split(notes) for sheet in tuning.datasets]
        self.dev_rows = [dev for _, dev in parted]
        sets = []
        for way, (rows, _), sheet in zip(tuning.formulations, parted, tuning.datasets, strict=True):
            found = [way.instances(row, tokenizer) for row in rows]
            file = Path(sheet.train).name
            if cut := sum(any(one.truncated_tokens for one in some) for some in found):
                say(f"{cut:,} of {len(rows):,} rows of {file} are cut to {way.max_length} tokens")
            if tuning.teacher:
                found = distill(tuning.teacher, way, rows, found, tuning.train.device)
            sets.append([example for some in found for example in some])
        for sentence in notes.messages():
            say(sentence)
        self.tuning = tuning = resolve_steps(tuning, [len(some) for some in sets], settings)
        train, finetune_config = tuning.train, tuning.finetune
        self.instances = TaskBatches(
            tuning.formulations[0],
            sets,
            batch=train.batch_size // train.gradient_accumulation,
            seed=seed,
            weights=mixing_weights(
                [len(some) for some in sets], finetune_config.mixing_temperature
            ),
        )
        self.device = select_device(train.device)
        self.bfloat16 = uses_bf16(train, self.device)
        self.model = network(tuning, body).to(self.device)
        if finetune_config.noisy_tune:
            fresh = {*self.model.parameters()} - {*self.model.pretrained.parameters()}
            noisy_tune(self.model, finetune_config.noisy_tune, seed=seed, fresh=fresh)
        self.optimiser, self.factor = build_optimizer_and_schedule(
            self.model, train, shrink=finetune_config.layer_lr_decay
        )
        files = [(s.train, s.dev, s.target, s.dev_target) for s in tuning.datasets]
        self.files = [
            file_fingerprint(Path(name)) for some in files for name in some if name is not None
        ]
        cuda = self.device.type == "cuda"
        self.compiled = train.compile == "yes" or (train.compile == "auto" and cuda)
        self.captured = cuda and self.compiled and train.cuda_graph == "yes"
        if train.cuda_graph == "yes" and (
            finetune_config.gradual_unfreezing or finetune_config.adversarial_epsilon
        ):
            raise UserError(
                "train.cuda_graph=yes replays one recorded step, and --thaw and --attack change "
                "it: leave one of them out"
            )
        every = epoch_steps(train, [len(some) for some in sets])
        self.unfreezing = (
            GradualUnfreezing(self.model, every) if finetune_config.gradual_unfreezing else None
        )
        self.attack = (
            FGM(self.model, finetune_config.adversarial_epsilon)
            if finetune_config.adversarial_epsilon
            else None
        )
        self.best = NO_SCORE
        self.evals_without_improvement = 0  # scorings since the best
        self.is_best = False  # the weights are those of the best, and not saved yet

    def restore(self, folder: Path) -> None:
        """Take up the weights and the optimiser of a checkpoint."""
        saved: Any = hub.load_model(folder)
        state = checkpoint.load_training_state(folder)
        if state["files"] != self.files:
            raise UserError(
                "the labelled files are not what they were when this run began: put them back, or "
                "begin a new run"
            )
        self.model.load_state_dict(saved.state_dict())
        self.optimiser.load_state_dict(state["optimiser"])
        self.best = NO_SCORE if state["best"] is None else tuple(state["best"])
        self.evals_without_improvement = state["waited"]

    def fit(self, start: int, watch: ProgressCallback) -> None:
        """Run from update `start` to the end, or until nothing grows better."""
        train = self.tuning.train
        if self.should_stop():  # it ended before its scores were written
            return
        self.model.train()
        learner: nn.Module = Learner(self.model, self.tuning.formulations[0])
        if self.compiled:
            learner.compile(dynamic=True)
        step = TrainStep(
            learner,
            self.optimiser,
            lambda number: train.lr * self.factor(number),
            clip=train.grad_clip,
            seed=train.seed,
            device=self.device,
            bfloat16=self.bfloat16,
            captured=self.captured,
            attack=self.attack,
            unfreezing=self.unfreezing,
            checks=checks(train, self.device),
        )
        with MetricsLog.open(self.out, start) as log:
            self.log = log
            TrainLoop(
                steps=train.steps,
                step=step,
                log=log,
                log_every=10,
                evaluate=self.evaluate if any(self.dev_rows) else None,
                eval_every=train.eval_every,
                save=self.save,
                save_every=train.save_every,
                watch=watch,
                should_stop=self.should_stop,
                keep=lambda: self.is_best,
                remedy=lambda: remedy("finetune", self.out, train),
            ).run(
                start, data_loader(self.instances, train, start, pinned=self.device.type == "cuda")
            )

    def should_stop(self) -> bool:
        """Say whether the last scorings were all no better than one before them."""
        patience = self.tuning.finetune.early_stopping_patience
        return bool(patience) and self.evals_without_improvement >= patience

    def evaluate(self) -> dict[str, float]:
        """Return the loss on dev rows, and every metric of theirs."""
        values = {"eval_loss": self.eval_loss()}
        mains: list[float] = []
        for number, (way, rows) in enumerate(
            zip(self.tuning.formulations, self.dev_rows, strict=True), 1
        ):
            if not rows:
                continue
            found = way.task.evaluate(rows, predict_rows(way, self.model, rows, self.tokenizer))
            prefix = "" if len(self.dev_rows) == 1 else f"{number}_"
            values |= {f"{prefix}{name}": value for name, value in found.items()}
            mains.append(way.task.normalized(found[way.task.main_metric]))
        latest = sum(mains) / len(mains), -values["eval_loss"]
        # Nothing is greater than NaN: as a best it would stay one.
        known = not any(math.isnan(value) for value in latest)
        self.is_best = known and (self.best == NO_SCORE or latest > self.best)
        self.best, self.evals_without_improvement = (
            (latest, 0) if self.is_best else (self.best, self.evals_without_improvement + 1)
        )
        return values

    @torch.no_grad()
    def eval_loss(self) -> float:
        """Return the loss on dev rows, those whose labels can be known."""
        way, size = self.tuning.formulations[0], self.instances.batch
        most = self.tuning.train.eval_batches * size
        total = Loss({})
        counts: dict[str, int] = {}
        examples = [
            example
            for one, rows in zip(self.tuning.formulations, self.dev_rows, strict=True)
            for row in rows[:most]
            if not one.task.unseen_labels([row])
            for example in one.instances(row, self.tokenizer)
        ]
        self.model.eval()
        for start in range(0, min(len(examples), most), size):
            batch = way.make_batch(examples[start : start + size]).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                total = total + way.loss(self.model, batch)
            counts = sum_counts([counts, batch.counts])
        self.model.train()
        return float(total.mean(counts)) if counts else math.inf

    def save(self, step: int, held_out: float | None) -> None:
        """Write a checkpoint: a model folder, and what it takes to go on from it."""
        check_weights(self.model, step, lambda: remedy("finetune", self.out, self.tuning.train))
        state = {
            "step": step,
            "optimiser": self.optimiser.state_dict(),
            "best": None if self.best == NO_SCORE else list(self.best),
            "waited": self.evals_without_improvement,
            "files": self.files,
        }

        def write(folder: Path) -> None:
            frame = "line" if isinstance(self.tuning.formulations[0], CausalHead) else None
            hub.save(folder, self.model, self.tokenizer, frame=frame)
            self.tuning.write(folder / "kinfolk.json")
            checkpoint.save_training_state(folder, state)

        self.log.sync()
        best = self.is_best or self.best == NO_SCORE  # where nothing can be compared, the newest
        checkpoint.save(self.out, step, write, keep=self.tuning.train.keep_checkpoints, best=best)
        self.is_best = False


def network(tuning: FineTuneRecipe, body: nn.Module) -> LanguageModel:
    """Put the head on, drawn from the seed, where the way needs one."""
    torch.manual_seed(tuning.train.seed)
    try:
        if tuning.formulations[0].head:
            return ModelWithHead.of(body, tuning.model)
        model: LanguageModel = tuning.model.build()
        model.load_state_dict(body.state_dict())
    except RuntimeError:  # they have other shapes
        raise UserError(
            f"the weights of {tuning.init_from} do not fit the settings of the model: leave those "
            "that change its size out, or start from fresh weights with --scratch"
        ) from None
    return model
