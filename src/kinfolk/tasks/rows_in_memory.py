"""Rows and texts that are given in memory: lists, pandas frames and columns, Hugging Face datasets.

What is known of pandas and `datasets` are the protocols below: neither is imported.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from kinfolk.errors import UserError


@runtime_checkable
class DataFrame(Protocol):
    """The part of the interface of a pandas DataFrame that is used."""

    def to_dict(self, orient: Literal["records"], /) -> Any:
        """Return a dictionary for each row."""


@runtime_checkable
class HubDataset(Protocol):
    """The part of the interface of a `datasets.Dataset` that is used."""

    features: Any

    def to_list(self) -> Any:
        """Return a dictionary for each row."""


@runtime_checkable
class PolarsFrame(Protocol):
    """A table of polars."""

    def to_dicts(self) -> Any:
        """Return a dictionary for each row."""


@runtime_checkable
class ClassLabel(Protocol):
    """A feature of a dataset whose values are the indices of names."""

    names: list[str]


@runtime_checkable
class Column(Protocol):
    """A pandas Series or a NumPy array."""

    def tolist(self) -> Any:
        """Return the values."""


def is_table(value: object) -> TypeGuard[DataFrame | HubDataset]:
    """Return whether a value has named columns: iterating over it may give their names."""
    return isinstance(value, DataFrame | HubDataset) and not isinstance(value, Column)


def records_of(rows: object, name: str) -> Sequence[Mapping[str, Any]]:
    """Return a dictionary for each row of what is given as rows."""
    if isinstance(rows, Mapping):
        raise UserError(
            f"{name} is of type {type(rows).__name__}: give a list with a dictionary for each row; "
            "of a DatasetDict give one split"
        )
    records: Any = rows
    if isinstance(rows, Column):
        records = rows.tolist()
    elif isinstance(rows, PolarsFrame):
        records = rows.to_dicts()
    elif is_table(rows):
        records = (
            _dataset_records(rows) if isinstance(rows, HubDataset) else rows.to_dict("records")
        )
    if not isinstance(records, Sequence):
        raise UserError(
            f"{name} is of type {type(rows).__name__}: give a file, a list of dictionaries, a "
            "DataFrame, or a Dataset"
        )
    for number, row in enumerate(records, 1):
        if not isinstance(row, Mapping):
            raise UserError(
                f"{name}: row {number:,} is of type {type(row).__name__}: give dictionaries, like "
                '{"text": "a fine film", "label": "good"}'
            )
    return records


def _dataset_records(dataset: HubDataset) -> list[dict[str, Any]]:
    """Return the rows of a dataset, with the names of classes for their indices."""
    classes = {n: f.names for n, f in dataset.features.items() if isinstance(f, ClassLabel)}
    records: list[dict[str, Any]] = dataset.to_list()
    for record in records:
        for column, names in classes.items():
            index = record[column]
            # -1 is the label of unlabelled rows, as in the test files of GLUE
            record[column] = None if index is None or index < 0 else names[index]
    return records


def texts_of(texts: object, name: str = "texts") -> list[str]:
    """Return the texts of a list, a column or an iterator; anything else is refused."""
    if isinstance(texts, str):
        raise UserError(f"{name} must be a list of texts: pass [text]")
    if isinstance(texts, Mapping) or is_table(texts):
        raise UserError(
            f"{name} is a table, of type {type(texts).__name__}: pass one of its columns, such as "
            f"{name}['text']"
        )
    items = texts.tolist() if isinstance(texts, Column) else texts
    if not isinstance(items, Iterable):
        raise UserError(f"{name} is of type {type(texts).__name__}: pass a list of texts")
    found = [*items]
    for number, item in enumerate(found, 1):
        if not isinstance(item, str):
            raise UserError(f"{name}: item {number:,} is {item!r}: give texts")
    return found


def as_list(inputs: Any) -> Any:
    """Return columns and iterators as lists, and anything else as it is."""
    if isinstance(inputs, Column):
        return inputs.tolist()
    return [*inputs] if isinstance(inputs, Iterator) else inputs
