"""The command `embed`: one vector for each text of a file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kinfolk.cli.app import (
    COLUMN,
    DEVICE,
    FIELD,
    FORCE,
    JSON,
    MAX_TOKENS,
    MODEL,
    OUT,
    TOKENIZER,
    USE,
    command,
    flag,
    option,
)
from kinfolk.cli.output import note, print_facts, print_json, row_progress, saved_on_interrupt
from kinfolk.cli.translate import check_has_text, read_lines
from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.workflows.folders import (
    check_model_folder,
    check_new_file,
    check_new_folder,
)
from kinfolk.workflows.vectors.choices import check_choices, check_saved_transform

if TYPE_CHECKING:
    from kinfolk.workflows.vectors.embed import Embedder, Vectors

TEXTS_HELP = "File with one text per line, or a table (.jsonl .tsv .csv .parquet); - for stdin."
OTHER_FOLDER = "choose another folder with --save-transform DIR"
ADVICE = f"replace it with --force, apply it with --transform, or {OTHER_FOLDER}"
POOLING = option(
    "NAME", "mean, cls, last or max of the hidden states (default: mean).", "--pooling"
)
LAYERS = option(
    "LIST",
    "Layers whose mean is taken: last, all, or numbers such as 1,-1 (0: the input of the first "
    "layer; default: last).",
    "--layers",
)
MAX_LENGTH = option(
    "N",
    "Tokens of a text that are read (default: the model's maximum, 512 without one).",
    "--length",
    max=MAX_TOKENS,
)


@command("kinfolk embed runs/bert texts.txt -o vectors.npz --whiten", panel=USE)
def embed_command(
    model: Path = MODEL,
    texts: Path = typer.Argument(..., metavar="TEXTS", help=TEXTS_HELP),
    out: Path = option("FILE", "Output file: .npz or .parquet.", *OUT, default=...),
    force: bool = FORCE,
    pooling: str | None = POOLING,
    layers: str | None = LAYERS,
    standardize: bool = flag("--standardize", "Scale every dimension to mean 0 and variance 1."),
    remove_components: int | None = option(
        "K", "Remove the mean and the K leading principal components.", min=1
    ),
    whiten: bool = flag("--whiten", "Whiten: the covariance becomes the identity."),
    flow: bool = flag("--flow", "Fit a normalizing flow to a standard Gaussian."),
    fit: Path | None = option("FILE", "Texts that transforms are fitted on (default: TEXTS)."),
    save_transform: Path | None = option(
        "DIR", "Folder for the fitted transforms (default: in transforms/ of MODEL)."
    ),
    transform: Path | None = option("DIR", "Apply saved transforms in place of fitting new ones."),
    strict: bool = flag("--strict", "Refuse texts that are longer than the model's context."),
    length: int | None = MAX_LENGTH,
    field: str | None = FIELD,
    column: str | None = COLUMN,
    tokenizer: Path | None = TOKENIZER,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """Write one vector for each text, in their order.

    Hidden states of a language model point in similar directions, which makes cosines of texts
    meaningless. Four transforms correct it: `--standardize`, `--remove-components`, `--whiten` and
    `--flow`, applied in this order. They are fitted on the texts of `--fit`, saved, and applied to
    other texts by `--transform`.

    A .parquet file has the columns `text` and `vector`, an .npz file the array `vectors`.
    """
    chosen = standardize or remove_components or whiten or flow
    if transform is not None and (chosen or fit is not None or save_transform is not None):
        raise UserError(
            "--transform applies saved transforms: remove --standardize, --remove-components, "
            "--whiten, --flow, --fit and --save-transform"
        )
    if not chosen and (fit is not None or save_transform is not None):
        raise UserError(
            "--fit and --save-transform need a transform: add --standardize, --remove-components, "
            "--whiten or --flow"
        )
    if out.suffix not in (".npz", ".parquet"):
        raise UserError(f"-o {out} must end in .npz or .parquet")
    check_choices(pooling, layers)
    if transform is not None:
        check_saved_transform(transform)
    check_model_folder(model)
    check_new_file(out, (texts, model, fit, transform), force=force)
    read = read_texts(texts, field, column)
    from kinfolk.workflows.vectors.embed import Embedder
    from kinfolk.workflows.vectors.transforms import (
        TransformSpec,
        VectorTransforms,
        is_saved_transform,
    )

    saved = None if transform is None else VectorTransforms.load(transform)
    spec = TransformSpec(standardize, remove_components or 0, whiten, flow)
    place = None
    if spec.names:
        place = save_transform or beside(model, "+".join(spec.names))
        if not (force and is_saved_transform(place)):
            check_new_folder(place, ADVICE if is_saved_transform(place) else OTHER_FOLDER)
    embedder = Embedder.open(
        model,
        pooling=pooling,
        layers=layers,
        length=length,
        tokenizer=tokenizer,
        device=device,
        transform=saved,
    )
    vectors = vectors_of(embedder, read, strict=strict)
    fitted = saved
    if place is not None:
        given = vectors
        if fit is not None:
            given = vectors_of(embedder, read_texts(fit, field, column), strict=strict)
        fitted = VectorTransforms.fit(
            spec, given, embedder.pooling, embedder.layers, model=embedder.reference
        )
        source = f"{len(given):,} texts of {fit or texts}"
        note(f"fitted {', '.join(spec.names)} on {source}")
        for sentence in fitted.notes:
            note(sentence)
    if fitted is not None:
        vectors = fitted(vectors)
    if place is not None and fitted is not None:
        with writable(place):
            fitted.save(place, replace=force)
    write_vectors(out, read, vectors)
    facts = {
        "texts": len(vectors),
        "dimensions": vectors.shape[1],
        "pooling": embedder.pooling,
        "layers": list(embedder.layers),
        "transforms": [step.kind for step in fitted.steps] if fitted else [],
        "transform": place or transform,
        "vectors": out,
    }
    if json:
        print_json(facts)
        return
    print_facts(
        (name, value_text(value)) for name, value in facts.items() if value not in (None, [])
    )


def value_text(value: object) -> str:
    """Return a value of the summary as text."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def vectors_of(embedder: "Embedder", texts: list[str], *, strict: bool = False) -> "Vectors":
    """Embed texts with a progress bar, and print what was cut."""
    with (
        saved_on_interrupt(lambda: "nothing was written; run the same command again"),
        row_progress("texts", len(texts)) as progress,
    ):
        found = embedder.embed(texts, strict=strict, watch=progress)
    for sentence in found.notes(embedder.max_length):
        note(sentence)
    return found.vectors


def write_vectors(path: Path, texts: Sequence[str], vectors: "Vectors") -> None:
    """Write an .npz file with the array `vectors`, or a .parquet file with `text` and `vector`."""
    if path.suffix == ".npz":
        import numpy as np

        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path, "wb") as file:
            np.savez(file, vectors=vectors)
        return
    try:
        import pyarrow
        from pyarrow.parquet import write_table
    except ImportError as error:
        raise UserError(
            f"{path} needs the pyarrow package: pip install 'kinfolk[parquet]', or use .npz"
        ) from error
    flat = pyarrow.array(vectors.reshape(-1), pyarrow.float32())
    columns = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, "wb") as file:
        write_table(pyarrow.table({"text": list(texts), "vector": columns}), file)


def read_texts(path: Path, field: str | None = None, column: str | None = None) -> list[str]:
    """Read the lines of a text file, blank ones too, or the rows of a table."""
    from kinfolk.data.documents import ReadOptions, is_plain_text, read_files
    from kinfolk.data.files import STDIN

    if path.is_dir():
        raise UserError(f"{path} is a folder: pass a file with one text per line")
    if path != STDIN and not path.is_file():
        raise UserError(f"{path} does not exist: pass a file with one text per line")
    if is_plain_text(path) and field is None and column is None:
        texts = list(read_lines(path))
    else:
        options = ReadOptions(field=field, column=column)
        texts = [document.text for document in read_files([path], options, named=[path])]
    check_has_text(path, texts)
    return texts


def beside(model: Path, name: str) -> Path:
    """Return the folder of a transform beside the model, for one that is a local folder."""
    if not model.is_dir():
        raise UserError(f"{model} is no folder to save the transform in: add --save-transform DIR")
    return model / "transforms" / name


@contextmanager
def writable(place: Path) -> Iterator[None]:
    """Raise a sentence where the transform cannot be saved beside the model."""
    try:
        yield
    except PermissionError:
        raise UserError(f"{place} cannot be written: {OTHER_FOLDER}") from None
