"""Alarms about a run that does not learn as it should, in words, while it runs.

A watch reads the numbers that the log gets and changes nothing. An alarm is one sentence with the
number and what to do; each cause is raised once in a run.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any

from kinfolk.training.config import TrainConfig
from kinfolk.training.log import token_loss

HISTORY = 50  # earlier steps that the newest are compared with
RECENT = 5  # newest steps, whose median is compared: two odd batches among them raise nothing

# Steps after the warm-up. BERT of hidden size 256 with lr 5e-4 and a warm-up of a tenth of the
# steps leaves the unigram loss after about 500 steps; with lr 1e-3 it stays there for thousands.
UNIGRAM_STEPS = 1000
# Below this fraction of the unigram entropy a model reads the context. Masked language models are
# a little below 1 without it, because a tenth of the tokens that they predict is visible. As far
# above it, a model does not know yet how frequent tokens are.
UNIGRAM_RATIO = 0.98

# Nats. Losses of batches of 2,000 tokens have a standard deviation of 0.1 (GPT-2, novels).
SPIKE_RISE = 0.5
SPIKE_SPREADS = 2.0  # of the distance from the median to the 90th percentile of earlier losses

# Norms of the nano sizes are 0.2 to 50. Below 1e-6, Adam's epsilon of 1e-8 for each of many weights
# is no longer small beside the gradient.
DEAD_NORM = 1e-6
DEAD_STEPS = 10
DEAD_LOSS = 0.01  # a task that is learned by heart has neither loss nor gradient

# A norm falls or stays in a healthy run. By default, norms of 10 are clipped to a tenth.
EXPLODING_RATIO = 10.0
EXPLODING_NORM = 10.0
EXPLODED_NORM = 1e4  # in the first steps; those of ELECTRA, with a loss times 50, are up to 900

# Nats. In the first epoch, held-out text is within 0.1 of training text (GPT-2, novels).
OVERFIT_GAP = 0.5
OVERFIT_RISE = 0.05  # of the held-out loss over its lowest value, more than noise

# Weights of size 0.02 are 2e-9 apart in float32: smaller updates are rounded away.
ZERO_LR = 1e-9
ZERO_LR_STEPS = 10
LAST_STEPS = 0.1  # fraction of the steps in which a learning rate may end at zero

SLOW_LOADER = 0.5  # fraction of the time: waiting takes longer than the step itself
LOADER_START = 10  # steps that are not timed: processes start, and a step is compiled

# Deduplicated web text loses 3 to 14 % (Lee et al. 2022); tokens in equal documents.
MAX_DUPLICATES = 0.2


@dataclass(frozen=True)
class Alarm:
    """Something that is wrong with a run, and what to do."""

    cause: str
    step: int
    message: str


@dataclass(frozen=True)
class LossBaseline:
    """A loss that a run should fall below, of the same tokens; computed when it is next."""

    name: str
    compute: Callable[[], float | None]  # None where there is none


class Watch:
    """Compare each step with those before it; report alarms, and baselines that are passed."""

    def __init__(
        self,
        train: TrainConfig,
        *,
        baselines: Sequence[LossBaseline] = (),  # from the highest to the lowest
        has_eval_data: bool = False,
        selects_by_loss: bool = True,  # the held-out loss, not another metric, is to be low
        on_alarm: Callable[[Alarm], None] = lambda alarm: None,
        on_message: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.train, self.has_eval_data, self.selects_by_loss = train, has_eval_data, selects_by_loss
        self.on_alarm, self.on_message = on_alarm, on_message
        self.raised: set[str] = set()  # causes
        self.baseline: tuple[str, float] | None = None  # the highest that is not passed
        self.unigram: float | None = None
        self._waiting = list(baselines)  # those below
        self._losses: deque[float] = deque(maxlen=HISTORY + RECENT)
        self._norms: deque[float] = deque(maxlen=HISTORY + RECENT)
        self._timed: deque[tuple[float, float]] = deque(maxlen=HISTORY)
        self._untimed = LOADER_START
        self._dead = self._still = 0  # steps in a row
        self._eval: float | None = None  # of the newest step
        self._compared: float | None = None  # the newest loss that was compared with baselines
        self._lowest: tuple[int, float] | None = None  # evaluation
        self._checks: dict[str, Callable[[int, Mapping[str, Any]], str | None]] = {
            "unigram": self._at_unigram,
            "spike": self._spike,
            "dead_gradient": self._dead_gradient,
            "exploding_gradient": self._exploding_gradient,
            "overfitting": self._overfitting,
            "zero_lr": self._zero_lr,
            "slow_loader": self._slow_loader,
        }

    def restore(self, lines: Sequence[Mapping[str, Any]], raised: Iterable[str]) -> None:
        """Continue after these lines of a log, in which these causes were raised."""
        self.raised |= set(raised)
        recent = len(lines) - HISTORY - RECENT
        for index, line in enumerate(lines):
            if index >= recent or "eval_loss" in line:
                self._read(line["step"], line, recent=index >= recent)
        self._eval, loss = None, self._mean_loss()
        if self.has_eval_data:
            loss = None if self._lowest is None else self._lowest[1]
        if loss is not None:
            list(self._pass_baselines(loss))  # reported before

    def start(self, duplicates: Mapping[str, float]) -> None:
        """Check the data: the fraction of each corpus in documents that equal an earlier one."""
        corpus = max(duplicates, key=duplicates.__getitem__, default="")
        if duplicates.get(corpus, 0.0) > MAX_DUPLICATES:
            self._raise(
                "duplicates",
                0,
                f"{duplicates[corpus]:.0%} of the tokens in {corpus} are in documents that equal "
                "an earlier one, which a model learns by heart: prepare the text again with "
                "--dedup exact, or near",
            )

    def observe(
        self, step: int, line: Mapping[str, Any], timed: Mapping[str, float] | None = None
    ) -> None:
        """Read a line of the log and its timing; report what is wrong."""
        self._read(step, line)
        if timed is not None:
            self._read_time(timed)
        loss = self._eval if self.has_eval_data else self._mean_loss()
        self._next_baseline()
        if loss is not None:
            self._compared = loss
            for name, value in self._pass_baselines(loss):
                self.on_message(
                    f"below {name} at step {step:,}: {self._kind} loss {loss:.3f}, "
                    f"{name} {value:.3f}"
                )
        for cause, check in self._checks.items():
            if cause not in self.raised and (message := check(step, line)) is not None:
                self._raise(cause, step, message)

    def finish(self) -> None:
        """Say after the last step that the loss is not below the unigram entropy, if it is not."""
        if self._compared is None or self.baseline is None or self.baseline[1] != self.unigram:
            return
        name, value = self.baseline
        advice = ""
        if "unigram" not in self.raised:
            advice = f": the model reads no context yet; {self._longer}"
        self.on_message(
            f"not below {name} after the last step: {self._kind} loss {self._compared:.3f}, "
            f"{name} {value:.3f}{advice}"
        )

    @property
    def _kind(self) -> str:
        return "held-out" if self.has_eval_data else "training"

    @property
    def _longer(self) -> str:
        return f"train longer, or with a higher train.lr (now {self.train.lr:g})"

    def _raise(self, cause: str, step: int, message: str) -> None:
        self.raised.add(cause)
        self.on_alarm(Alarm(cause, step, message))

    def _read(self, step: int, line: Mapping[str, Any], *, recent: bool = True) -> None:
        norm, lr = line.get("grad_norm"), line.get("lr")
        if recent:
            self._losses.append(token_loss(line))
            if norm is not None:
                self._norms.append(norm)
        dead = norm is not None and norm < DEAD_NORM and line["loss"] > DEAD_LOSS
        self._dead = self._dead + 1 if dead else 0
        still = lr is not None and lr < ZERO_LR and step > self.train.warmup
        self._still = self._still + 1 if still else 0
        self._eval = None
        if line.get("eval_loss") is not None and math.isfinite(line["eval_loss"]):
            self._eval = token_loss(line, "eval_loss")
            if self._lowest is None or self._eval < self._lowest[1]:
                self._lowest = step, self._eval

    def _read_time(self, timed: Mapping[str, float]) -> None:
        if self._untimed:
            self._untimed -= 1
        else:
            self._timed.append((timed["wait_seconds"], timed["seconds"]))

    def _mean_loss(self) -> float | None:
        """Return the mean training loss of the last steps, None after too few."""
        losses = self._losses
        return fmean(losses) if len(losses) == losses.maxlen else None

    def _next_baseline(self) -> None:
        """Compute the next baseline, if there is one."""
        while self.baseline is None and self._waiting:
            following = self._waiting.pop(0)
            try:
                value = following.compute()
            except OSError as error:  # no space for counts: the run can do without them
                self.on_message(f"{following.name} could not be computed ({error})")
                value = None
            if value is not None:
                self.baseline = following.name, value
                self.unigram = value if self.unigram is None else self.unigram

    def _pass_baselines(self, loss: float) -> Iterator[tuple[str, float]]:
        """Yield the baselines that a loss is below; the next is computed after each."""
        self._next_baseline()
        while self.baseline is not None and loss < self.baseline[1]:
            passed, self.baseline = self.baseline, None
            yield passed
            self._next_baseline()

    def _at_unigram(self, step: int, line: Mapping[str, Any]) -> str | None:
        loss = self._eval if self.has_eval_data else self._mean_loss()
        if loss is None or self.unigram is None or step < self.train.warmup + UNIGRAM_STEPS:
            return None
        if loss < UNIGRAM_RATIO * self.unigram:
            return None
        train, tenth = self.train, self.train.steps // 10
        found = f"{self._kind} loss {loss:.3f} after {step:,} steps"
        if loss > self.unigram / UNIGRAM_RATIO and self._falls(step):
            return (
                f"{found} is above the unigram entropy {self.unigram:.3f}, which needs no context, "
                f"and still falls: {self._longer}"
            )
        warm_up = (
            f" and warm up for a tenth of the steps (train.warmup={tenth}, now {train.warmup})"
        )
        return (
            f"{found} is not {1 - UNIGRAM_RATIO:.0%} below the unigram entropy "
            f"{self.unigram:.3f}, which needs no context: halve train.lr (now {train.lr:g})"
            f"{warm_up if train.warmup < tenth else ''}"
        )

    def _falls(self, step: int) -> bool:
        """Return whether the loss is lower than before."""
        if self.has_eval_data:
            return self._lowest is not None and self._lowest[0] == step
        split = recent_and_earlier(self._losses)
        return split is not None and split[0] < median(split[1])

    def _spike(self, step: int, line: Mapping[str, Any]) -> str | None:
        split = recent_and_earlier(self._losses)
        if split is None:
            return None
        now, earlier = split
        middle, high = median(earlier), quantiles(earlier, n=10)[-1]
        if now < high + max(SPIKE_RISE, SPIKE_SPREADS * (high - middle)):
            return None
        return (
            f"loss rose from {middle:.3f} to {now:.3f} by step {step:,}: if it does not fall "
            f"again, lower train.lr (now {self.train.lr:g}) or train.grad_clip (now "
            f"{self.train.grad_clip:g}) in recipe.json and resume from a checkpoint before it"
        )

    def _dead_gradient(self, step: int, line: Mapping[str, Any]) -> str | None:
        if self._dead < DEAD_STEPS:
            return None
        return (
            f"gradient norm is {line['grad_norm']:.1g} at step {step:,} and was below "
            f"{DEAD_NORM:g} for {DEAD_STEPS} steps, with a loss of {line['loss']:.3f}: no weight "
            f"learns; start again with a lower train.lr (now {self.train.lr:g}), and check that no "
            "layer is frozen"
        )

    def _exploding_gradient(self, step: int, line: Mapping[str, Any]) -> str | None:
        if len(self._norms) < RECENT:
            return None
        now, before = median(list(self._norms)[-RECENT:]), None
        if (split := recent_and_earlier(self._norms)) is not None:
            before = median(split[1])
        grown = before is not None and now > max(EXPLODING_RATIO * before, EXPLODING_NORM)
        if not grown and now < EXPLODED_NORM:
            return None
        change = f"rose from {before:.3g} to {now:.3g}" if grown else f"is {now:.3g}"
        train = self.train
        clip = ", or set train.grad_clip=1 (now 0, which does not clip)"
        return (
            f"gradient norm {change} by step {step:,}: lower train.lr (now {train.lr:g}) or raise "
            f"train.warmup (now {train.warmup}){'' if train.grad_clip else clip}"
        )

    def _overfitting(self, step: int, line: Mapping[str, Any]) -> str | None:
        loss = self._mean_loss()
        if not self.selects_by_loss or self._eval is None or loss is None or self._lowest is None:
            return None
        best, lowest = self._lowest
        loss = max(loss, median(list(self._losses)[-RECENT:]))  # one that just rose is no gap
        if self._eval - loss < OVERFIT_GAP or self._eval - lowest < OVERFIT_RISE:
            return None
        return (
            f"training loss {loss:.3f} is far below held-out loss {self._eval:.3f} at step "
            f"{step:,}, which was lowest ({lowest:.3f}) at step {best:,}: take checkpoints/best, "
            "and train on more text, for fewer steps or with more dropout"
        )

    def _zero_lr(self, step: int, line: Mapping[str, Any]) -> str | None:
        train = self.train
        if self._still < ZERO_LR_STEPS or step > (1 - LAST_STEPS) * train.steps:
            return None
        return (
            f"learning rate is {line['lr']:.1g} at step {step:,} of {train.steps:,}, too small to "
            f"change the weights: raise train.lr (now {train.lr:g}) or train.min_lr_ratio (now "
            f"{train.min_lr_ratio:g}), or train for fewer steps"
        )

    def _slow_loader(self, step: int, line: Mapping[str, Any]) -> str | None:
        if len(self._timed) < HISTORY:
            return None
        waited, total = (fmean(part) for part in zip(*self._timed, strict=True))
        if waited < SLOW_LOADER * total:
            return None
        workers = "the default" if self.train.workers is None else self.train.workers
        return (
            f"{waited / total:.0%} of the time is spent waiting for batches at step {step:,}, "
            f"{1000 * waited:,.1f} ms of {1000 * total:,.1f} ms a step: raise train.workers (now "
            f"{workers})"
        )


def recent_and_earlier(values: deque[float]) -> tuple[float, list[float]] | None:
    """Return the median of the newest values and those before, None where these are few."""
    if len(values) < HISTORY // 2 + RECENT:
        return None
    earlier = list(values)
    return median(earlier[-RECENT:]), earlier[:-RECENT]
