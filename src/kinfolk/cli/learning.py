"""What is told about labelled rows: to `finetune`, and to `evaluate --test`."""

from pathlib import Path
from typing import Annotated

import typer

FILES, SOLVING, LEARNING = "The labelled files", "How the task is solved", "How it is learned"
ROWS = "On labelled rows"

Model = Annotated[
    str | None,
    typer.Argument(help="A run, a model folder, or a network by its name: bert/tiny, bilstm."),
]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="The run folder.")]
Resume = Annotated[Path | None, typer.Option(help="Go on with this run.")]
DeviceName = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")]
Train = Annotated[
    list[Path] | None,
    typer.Option(
        help="Tables, .jsonl, CoNLL columns, SQuAD ...; several are learned together.",
        rich_help_panel=FILES,
    ),
]
Dev = Annotated[
    list[Path] | None,
    typer.Option(
        help="What the best model is chosen by; else a tenth of the rows.", rich_help_panel=FILES
    ),
]
Target = Annotated[
    list[Path] | None,
    typer.Option(help="What to write about each line of --train.", rich_help_panel=FILES),
]
DevTarget = Annotated[
    list[Path] | None,
    typer.Option(help="What to write about each line of --dev.", rich_help_panel=FILES),
]
Kind = Annotated[
    str,
    typer.Option(
        help="auto, classify, regress, choose, tag, span, write, complete, lm or coref.",
        rich_help_panel=FILES,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        help="The texts and then the label, by name or number: a,b,label.", rich_help_panel=FILES
    ),
]
Suite = Annotated[
    tuple[str, Path] | None,
    typer.Option(
        metavar="NAME DIR",
        help="Learn and score every labelled set of a folder, in turn.",
        rich_help_panel=FILES,
    ),
]
Only = Annotated[
    str | None, typer.Option(help="suite: these sets, as in sst2,mrpc.", rich_help_panel=FILES)
]
Limit = Annotated[
    int | None,
    typer.Option(help="suite: so many rows of each file, at most.", rich_help_panel=FILES),
]

WayName = Annotated[
    str | None,
    typer.Option(
        "--way",
        help="head, transformed, text or cloze; else the member's own.",
        rich_help_panel=SOLVING,
    ),
]
Metric = Annotated[
    str | None, typer.Option(help="What the best is best by.", rich_help_panel=SOLVING)
]
Positive = Annotated[
    str | None, typer.Option(help="The class that F1 is about.", rich_help_panel=SOLVING)
]
Prefix = Annotated[
    list[str] | None,
    typer.Option(help="text: what stands before every text.", rich_help_panel=SOLVING),
]
Pattern = Annotated[
    str | None,
    typer.Option(help="cloze: '{text} It was {answer}.'", rich_help_panel=SOLVING),
]
Words = Annotated[
    str | None,
    typer.Option(help="cloze: a word for each class, as in bad,good.", rich_help_panel=SOLVING),
]
Length = Annotated[
    int | None, typer.Option(help="Tokens read at a time, at most.", rich_help_panel=SOLVING)
]

Scratch = Annotated[
    bool,
    typer.Option("--scratch", help="Start from fresh weights.", rich_help_panel=LEARNING),
]
TokenizerPath = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="For a network by its name; else one is learned from the rows.",
        rich_help_panel=LEARNING,
    ),
]
Epochs = Annotated[
    float, typer.Option(help="How often all rows are seen.", rich_help_panel=LEARNING)
]
Batch = Annotated[int | None, typer.Option(help="Rows in an update.", rich_help_panel=LEARNING)]
Rate = Annotated[float | None, typer.Option(help="The highest rate.", rich_help_panel=LEARNING)]
Schedule = Annotated[
    str | None,
    typer.Option(help="linear, slanted, cosine, constant ...", rich_help_panel=LEARNING),
]
Accumulate = Annotated[
    int | None,
    typer.Option(help="Parts that an update is made in, to save memory.", rich_help_panel=LEARNING),
]
Patience = Annotated[
    int,
    typer.Option(
        help="End after so many epochs that are no better; 0 never.", rich_help_panel=LEARNING
    ),
]
ClassWeights = Annotated[
    str,
    typer.Option(help="none, or balanced: rare classes weigh more.", rich_help_panel=LEARNING),
]
LayerDecay = Annotated[
    float,
    typer.Option(help="The rate of each layer against the one above it.", rich_help_panel=LEARNING),
]
Thawing = Annotated[
    bool,
    typer.Option(
        "--thaw",
        "--gradual-unfreezing",
        help="Unfreeze one layer at a time, the top layer first.",
        rich_help_panel=LEARNING,
    ),
]
Noise = Annotated[
    float,
    typer.Option(help="Added to the weights, against their spread.", rich_help_panel=LEARNING),
]
Dropout = Annotated[
    float | None,
    typer.Option(
        help="The share of units to drop; else the model's own.", rich_help_panel=LEARNING
    ),
]
Attack = Annotated[
    float,
    typer.Option(help="How far tokens are moved against the model.", rich_help_panel=LEARNING),
]
Teacher = Annotated[
    Path | None,
    typer.Option(help="A fine-tuned run to learn from, too.", rich_help_panel=LEARNING),
]
Teaching = Annotated[
    float | None,
    typer.Option(help="The teacher's share of the loss; else 0.5.", rich_help_panel=LEARNING),
]
Temperature = Annotated[
    float,
    typer.Option(
        help="Of several files: 1 by their sizes, a high one alike.", rich_help_panel=LEARNING
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="What all chance follows from.", rich_help_panel=LEARNING)
]
Seeds = Annotated[
    int | None,
    typer.Option(
        help="Run by seeds 0, 1, 2 ..., and give mean and spread.", rich_help_panel=LEARNING
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FIELD.PATH=VALUE...", help="Any other setting, as in train.grad_clip=0.5."
    ),
]

Test = Annotated[
    Path | None, typer.Option(help="Labelled rows, for a fine-tuned model.", rich_help_panel=ROWS)
]
TestColumns = Annotated[
    str | None,
    typer.Option(help="test: its texts and then its label: a,b,label.", rich_help_panel=ROWS),
]
TaskNumber = Annotated[
    int, typer.Option(help="Of a model that learned several tasks: which, from 1.")
]
PageOut = Annotated[
    Path | None,
    typer.Option(
        "-o", "--out", help="test: the page to write; else in the run.", rich_help_panel=ROWS
    ),
]
TestWay = Annotated[
    str | None,
    typer.Option("--way", help="test: prompt, where no task was learned.", rich_help_panel=ROWS),
]
Shots = Annotated[
    int | None, typer.Option(help="prompt: solved rows that it shows.", rich_help_panel=ROWS)
]
ShotsFrom = Annotated[
    Path | None,
    typer.Option("--train", help="prompt: the file that they are from.", rich_help_panel=ROWS),
]
TestKind = Annotated[
    str | None, typer.Option("--task", help="prompt: classify, choose ...", rich_help_panel=ROWS)
]
TestPattern = Annotated[
    str | None,
    typer.Option("--pattern", help="prompt: '{text} It was {answer}.'", rich_help_panel=ROWS),
]
TestWords = Annotated[
    str | None,
    typer.Option("--words", help="prompt: a word a class, as in bad,good.", rich_help_panel=ROWS),
]
ShotsSeed = Annotated[
    int | None,
    typer.Option("--seed", help="prompt: what the draw follows from.", rich_help_panel=ROWS),
]
