"""What the commands that write share: how a token is chosen, and on what the model runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.generation.methods import DecodingMethod

# The methods, with the options that are theirs.
BEAM = ("beam_size", "length_penalty")
METHODS = {
    "greedy": (),
    "sample": ("temperature", "top_k", "top_p", "min_p", "typical"),
    "beam": BEAM,
    "diverse-beam": (*BEAM, "groups", "diversity"),
    "contrastive": ("top_k", "penalty"),
}
# The fields that hold what the options say, where they have other names.
FIELDS = {
    "typical": "typical_p",
    "beam_size": "num_beams",
    "groups": "num_beam_groups",
    "diversity": "diversity_penalty",
    "penalty": "penalty_alpha",
}
CHOOSING, SAYING = "How a token is chosen", "What may be said"

ModelPath = Annotated[Path, typer.Argument(help="A run, a checkpoint or a model folder.")]
MethodName = Annotated[
    str, typer.Option("--method", help=f"{', '.join(METHODS)}.", rich_help_panel=CHOOSING)
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="sample: 1, or less to dare less; 0 dares nothing.", rich_help_panel=CHOOSING
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(help="sample, contrastive: among so many tokens.", rich_help_panel=CHOOSING),
]
TopP = Annotated[
    float | None,
    typer.Option(help="sample: among so much probability.", rich_help_panel=CHOOSING),
]
MinP = Annotated[
    float | None,
    typer.Option(help="sample: at least this share of the best.", rich_help_panel=CHOOSING),
]
Typical = Annotated[
    float | None,
    typer.Option(help="sample: among so much of usual surprise.", rich_help_panel=CHOOSING),
]
BeamSize = Annotated[
    int | None, typer.Option(help="beam: beginnings that are kept.", rich_help_panel=CHOOSING)
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="beam: above 0 long texts win, below 0 short ones.", rich_help_panel=CHOOSING
    ),
]
Groups = Annotated[
    int | None,
    typer.Option(help="diverse-beam: parties of beams; a beam each.", rich_help_panel=CHOOSING),
]
Diversity = Annotated[
    float | None,
    typer.Option(help="diverse-beam: what saying the same costs.", rich_help_panel=CHOOSING),
]
Penalty = Annotated[
    float | None,
    typer.Option(help="contrastive: what likeness to the past costs.", rich_help_panel=CHOOSING),
]
Seed = Annotated[int, typer.Option(help="What chance follows from.", rich_help_panel=CHOOSING)]
Precision = Annotated[
    str, typer.Option(help="float32, bf16 or int8 (CPU); auto is bf16 on CUDA, else float32.")
]


def method(name: str, **options: float | None) -> "DecodingMethod":
    """Build a method from its name and the options that were given."""
    from kinfolk.generation.beam_search import BeamSearch
    from kinfolk.generation.contrastive_search import ContrastiveSearch
    from kinfolk.generation.sampling import GREEDY, Sampling

    if name not in METHODS:
        raise UserError(f"no method {name!r}: {did_you_mean(name, list(METHODS))}")
    said = {option: value for option, value in options.items() if value is not None}
    for option in said:
        if option not in METHODS[name]:
            owners = " and ".join(m for m, own in METHODS.items() if option in own)
            raise UserError(
                f"--{option.replace('_', '-')} means nothing to the method {name}: "
                f"it belongs to {owners}"
            )
    given = {FIELDS.get(option, option): value for option, value in said.items()}
    if name == "greedy":
        return GREEDY
    if name == "sample":
        return Sampling(**given)  # type: ignore[arg-type]  # whole numbers where they must be
    if name == "contrastive":
        return ContrastiveSearch(**given)  # type: ignore[arg-type]
    given.setdefault("num_beams", BeamSearch.num_beams)
    if name == "diverse-beam":
        # Vijayakumar et al. 2016: explores the most
        given.setdefault("num_beam_groups", given["num_beams"])
    return BeamSearch(**given)  # type: ignore[arg-type]
