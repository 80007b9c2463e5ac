"""Well-known claims about families of language models, each as a small comparison.

A claim names entrants of `compare`, what is measured, and which of two entrants it says is better.
`{size}` in an entrant is the size of the scale that the claim is tested at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError

Measure = Literal["likelihood", "task", "probe"]
# Likelihood is in bits per byte, a task in its own metric; a probe is the layer that its weights
# centre on.
TaskNeed = Literal["text", "pair", "tags"]
NEEDS: dict[TaskNeed, str] = {
    "text": "a classification of single texts",
    "pair": "a classification of pairs of texts",
    "tags": "a file of tagged words",
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the experiments are."""

    size: str  # of the networks
    tokens: float  # that each pretraining reads
    flops: float  # of each pretraining, where compute is equal
    corpus_bytes: int  # of the text, at most
    length: int = 64  # of a row
    batch_size: int = 32
    vocab_size: int = 4096
    train_rows: int = 4000  # labelled rows, at most
    test_rows: int = 1000
    task_steps: int = 200  # of a fine-tuning, at most
    max_tokens: int = 4096  # that an encoder scores
    settings: str = ""  # of all entrants


# With AdamW a small ALBERT is still near the loss of a unigram model after 2,000 steps (held-out
# loss 6.65 at best, 5.85 with Muon; docs/results.md).
ALBERT_TRAINING = "train.optimizer=muon train.matrix_lr=0.01"

SCALES = {
    "nano": Scale(
        size="nano",
        tokens=2e5,
        flops=2e11,
        corpus_bytes=2_000_000,
        batch_size=16,
        vocab_size=2048,
        train_rows=2000,
        task_steps=120,
        max_tokens=1024,
    ),
    "tiny": Scale(size="tiny", tokens=2e6, flops=6e12, corpus_bytes=8_000_000),
    "mini": Scale(
        size="mini",
        tokens=1.6e7,
        flops=5e14,
        corpus_bytes=20_000_000,
        length=128,
        batch_size=64,
        vocab_size=8192,
        train_rows=10_000,
        test_rows=5000,
        task_steps=400,
        max_tokens=8192,
        settings="train.compile=no",  # which takes longer than these runs
    ),
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A difference that a claim predicts: the first is better than the second."""

    first: str  # entrant; of a probe, the kind of task
    second: str
    margin: float = 0.0  # by which the first may be worse, in the unit of the measure
    stage: str = ""  # name of the comparison, where a claim has several
    budget: float = 1.0  # of that comparison, relative to the scale's
    secondary: bool = False  # reported, without a say in the verdict


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a paper as an experiment."""

    name: str
    sentence: str
    source: str
    entrants: tuple[str, ...]
    measure: Measure
    budget_kind: Literal["tokens", "flops"]
    parts: tuple[Part, ...]
    effect: float  # the smallest that would matter, in the unit of the measure
    tasks: tuple[TaskNeed, ...] = ()
    setting: str = ""  # what a reader must know about the experiment
    corpus_share: float = 1.0  # of the scale's text; less text is read in more epochs
    options: Mapping[str, Any] = field(default_factory=dict)  # of `compare`

    @property
    def stages(self) -> dict[str, float]:
        """The comparisons of the claim, with their budgets relative to the scale's."""
        return {part.stage: part.budget for part in self.parts}

    def entrants_at(self, scale: Scale) -> list[str]:
        """Return the entrants at a scale."""
        return [f"{e.format(size=scale.size)} {scale.settings}".strip() for e in self.entrants]


CLAIMS = (
    Claim(
        name="electra",
        sentence="ELECTRA is better than BERT at equal compute",
        source="Clark et al. 2020",
        entrants=("electra=electra/{size}", "bert=bert/{size} objective=mlm"),
        measure="task",
        budget_kind="flops",
        parts=(Part(first="electra", second="bert"),),
        effect=1.0,
        tasks=("text",),
        setting="BERT without next-sentence prediction; FLOPs include ELECTRA's generator",
    ),
    Claim(
        name="nsp",
        sentence="next-sentence prediction helps tasks on pairs of texts",
        source="Devlin et al. 2018; Liu et al. 2019 found the opposite",
        entrants=("nsp=bert/{size} objective=nsp", "mlm=bert/{size} objective=mlm"),
        measure="task",
        budget_kind="tokens",
        parts=(Part(first="nsp", second="mlm"),),
        effect=1.0,
        tasks=("pair",),
        setting="BERT with and without the second loss",
    ),
    Claim(
        name="sop",
        sentence="sentence-order prediction helps tasks on pairs more than NSP does",
        source="Lan et al. 2019",
        entrants=(
            "sop=albert/{size} objective=sop objective.max_ngram=1 " + ALBERT_TRAINING,
            "nsp=albert/{size} objective=nsp " + ALBERT_TRAINING,
        ),
        measure="task",
        budget_kind="tokens",
        parts=(Part(first="sop", second="nsp"),),
        effect=1.0,
        tasks=("pair",),
        setting="ALBERT, trained with Muon; both mask single tokens",
    ),
    Claim(
        name="fresh-masks",
        sentence="new masks in every epoch are better than masks that are drawn once",
        source="Liu et al. 2019",
        entrants=(
            "fresh=bert/{size} objective=mlm",
            "fixed=bert/{size} objective=mlm objective.fixed_masks=true",
        ),
        measure="likelihood",
        budget_kind="tokens",
        parts=(Part(first="fresh", second="fixed"),),
        effect=0.02,
        corpus_share=0.1,
        options={"holdout": 0.5},
        setting="BERT, pseudo-likelihood of held-out text after many epochs of little text",
    ),
    Claim(
        name="mlm",
        sentence="masked LM learns slower than left-to-right LM, and ends better for understanding",
        source="Devlin et al. 2018, section C.1",
        entrants=("bert=bert/{size} objective=mlm", "gpt2=gpt2/{size}"),
        measure="task",
        budget_kind="tokens",
        parts=(
            Part(first="gpt2", second="bert", stage="early", budget=0.3),
            Part(first="bert", second="gpt2", stage="late"),
        ),
        effect=1.0,
        tasks=("text",),
        setting="BERT and GPT-2, whose layers differ too; early is 30 % of the tokens",
    ),
    Claim(
        name="weight-tying",
        sentence="an output layer that shares the input embeddings lowers perplexity",
        source="Press and Wolf 2017",
        entrants=(
            "tied=ulmfit/{size} objective=stream",
            "untied=ulmfit/{size} objective=stream model.tie_word_embeddings=false",
        ),
        measure="likelihood",
        budget_kind="tokens",
        parts=(Part(first="tied", second="untied"),),
        effect=0.02,
        setting="LSTM language model, at equal tokens",
    ),
    Claim(
        name="memory",
        sentence="Transformer-XL's memory of earlier segments lowers perplexity",
        source="Dai et al. 2019",
        entrants=(
            "memory=transformer_xl/{size} model.mem_len=128",
            "none=transformer_xl/{size} model.mem_len=0",
        ),
        measure="likelihood",
        budget_kind="tokens",
        parts=(Part(first="memory", second="none"),),
        effect=0.02,
        options={"length": 32, "batch_size": 64},
        setting="segments of 32 tokens and a memory of 128, in training and evaluation, or of none",
    ),
    Claim(
        name="sharing",
        sentence="sharing the weights of all layers costs little",
        source="Lan et al. 2019",
        entrants=(
            "shared=albert/{size} objective=mlm model.num_layers=4 " + ALBERT_TRAINING,
            "own=albert/{size} objective=mlm model.num_layers=4 model.sharing=none "
            + ALBERT_TRAINING,
        ),
        measure="likelihood",
        budget_kind="tokens",
        parts=(Part(first="shared", second="own", margin=0.05),),
        effect=0.05,
        setting="ALBERT of four layers, trained with Muon; little is less than 0.05 bits per byte",
    ),
    Claim(
        name="auxiliary-lm",
        sentence="language modelling as an auxiliary loss helps fine-tuning",
        source="Radford et al. 2018",
        entrants=(
            "auxiliary=gpt/{size} task.lm_loss_weight=0.5",
            "none=gpt/{size} task.lm_loss_weight=0",
        ),
        measure="task",
        budget_kind="tokens",
        parts=(Part(first="auxiliary", second="none"),),
        effect=1.0,
        tasks=("text",),
        setting="GPT, weight 0.5 or 0 in fine-tuning; pretraining is the same",
    ),
    Claim(
        name="ulmfit",
        sentence="gradual unfreezing, discriminative and slanted triangular rates help fine-tuning",
        source="Howard and Ruder 2018",
        entrants=(
            "all=ulmfit/{size}",
            "none=ulmfit/{size} task.gradual_unfreezing=false task.layer_lr_decay=1 "
            "task.schedule=constant",
            "unfrozen=ulmfit/{size} task.gradual_unfreezing=false",
            "one-rate=ulmfit/{size} task.layer_lr_decay=1",
            "constant=ulmfit/{size} task.schedule=constant",
        ),
        measure="task",
        budget_kind="tokens",
        parts=(
            Part(first="all", second="none"),
            Part(first="all", second="unfrozen", secondary=True),
            Part(first="all", second="one-rate", secondary=True),
            Part(first="all", second="constant", secondary=True),
        ),
        effect=1.0,
        tasks=("text",),
        setting="ULMFiT's classifier with all three and with none of them; then without one each",
    ),
    Claim(
        name="vocabulary",
        sentence="a larger vocabulary compresses text better",
        source="Tao et al. 2024",
        entrants=(
            "8192=gpt2/{size} tokenizer=bpe:8192",
            "1024=gpt2/{size} tokenizer=bpe:1024",
        ),
        measure="likelihood",
        budget_kind="flops",
        parts=(Part(first="8192", second="1024"),),
        effect=0.02,
        setting="GPT-2 with BPE of 8,192 or 1,024 tokens, at equal compute",
    ),
    Claim(
        name="layers",
        sentence="lower layers carry syntax and higher ones meaning",
        source="Tenney et al. 2019",
        entrants=("bert=bert/{size} objective=mlm model.num_layers=6",),
        measure="probe",
        budget_kind="tokens",
        parts=(Part(first="tags", second="text"),),
        effect=0.5,
        tasks=("tags", "text"),
        options={"probes": True, "probe_seeds": True},
        setting="BERT of six layers; centre of gravity of probes, above that with random weights",
    ),
    Claim(
        name="glm-positions",
        sentence="GLM needs the position inside a blank beside that of the blank",
        source="Du et al. 2021",
        entrants=(
            "two=glm/{size}",
            "one=glm/{size} model.two_dimensional_positions=false",
        ),
        measure="likelihood",
        budget_kind="tokens",
        parts=(Part(first="two", second="one"),),
        effect=0.02,
        setting="GLM with both positions or that of the blank alone; pseudo-likelihood of spans",
    ),
    Claim(
        name="t5-spans",
        sentence="corrupting spans is better than corrupting single tokens",
        source="Raffel et al. 2020",
        entrants=(
            "spans=t5/{size} objective.mean_span_length=3",
            "tokens=t5/{size} objective.mean_span_length=1",
        ),
        measure="task",
        budget_kind="flops",
        parts=(Part(first="spans", second="tokens"),),
        effect=1.0,
        tasks=("text",),
        setting="T5, spans of three tokens on average or of one; 15 % of the tokens in both",
    ),
)


def select_claims(names: Sequence[str] = ()) -> list[Claim]:
    """Return claims by their names; all without names."""
    by_name = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in by_name:
            raise UserError(f"unknown claim {name!r}: {did_you_mean(name, [*by_name])}")
    return [by_name[name] for name in dict.fromkeys(names)] if names else [*CLAIMS]


def scale_of(name: str) -> Scale:
    """Return a scale by its name."""
    if name not in SCALES:
        raise UserError(f"--scale {name}: {did_you_mean(name, [*SCALES])}")
    return SCALES[name]
