"""Rows and texts in memory: no table is taken for the list of its column names."""

from typing import Any

import datasets
import numpy as np
import pytest

import kinfolk
from kinfolk.errors import UserError
from kinfolk.tasks.dataset import task_dataset
from kinfolk.tasks.rows_in_memory import records_of, texts_of

ROWS = [{"text": "a fine film", "label": "good"}, {"text": "a dull film", "label": "bad"}]


def series(values: list[Any]) -> Any:
    return pytest.importorskip("pandas").Series(values)


def frame(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def test_a_dataset_of_hugging_face_has_its_rows() -> None:
    dataset = datasets.Dataset.from_list(ROWS * 4)
    assert [*records_of(dataset, "train")] == ROWS * 4
    assert [row.texts for row in task_dataset(dataset).rows] == [(r["text"],) for r in ROWS * 4]


def test_classes_of_a_dataset_have_their_names() -> None:
    label = datasets.ClassLabel(names=["bad", "good"])
    dataset = datasets.Dataset.from_dict(
        {"text": ["a", "b", "c"], "label": [1, 0, -1]},
        features=datasets.Features(text=datasets.Value("string"), label=label),
    )
    labels = [record["label"] for record in records_of(dataset, "train")]
    assert labels == ["good", "bad", None]  # -1 are rows without a label


def test_a_dictionary_is_no_list_of_rows() -> None:
    splits = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS))
    with pytest.raises(UserError, match=r"train is of type DatasetDict: .* give one split"):
        records_of(splits, "train")
    with pytest.raises(UserError, match="train: row 1 is of type str"):
        records_of(series(["a text"]), "train")


@pytest.mark.parametrize("kind", ["list", "tuple", "iterator", "series", "array", "dataset"])
def test_texts_come_from_lists_columns_and_iterators(kind: str) -> None:
    texts = ["a fine film", "a dull film"]
    given: dict[str, Any] = {
        "list": texts,
        "tuple": (*texts,),
        "iterator": iter(texts),
        "series": series(texts),
        "array": np.array(texts),
        "dataset": datasets.Dataset.from_list(ROWS)["text"],
    }
    assert texts_of(given[kind]) == texts


@pytest.mark.parametrize("kind", ["frame", "dataset", "dictionary"])
def test_a_table_is_no_list_of_texts(kind: str) -> None:
    tables = {"frame": frame(ROWS), "dataset": datasets.Dataset.from_list(ROWS), "dictionary": {}}
    wrong = r"is a table, of type \w+: pass one of its columns"
    for function in (kinfolk.embed, kinfolk.isotropy):
        with pytest.raises(UserError, match=wrong):
            function("no-model", tables[kind])
    with pytest.raises(UserError, match="item 2 is None: give texts"):
        kinfolk.embed("no-model", ["a", None])  # type: ignore[list-item]
    with pytest.raises(UserError, match="texts is of type int: pass a list of texts"):
        kinfolk.embed("no-model", 3)  # type: ignore[arg-type]


def test_rows_of_polars_are_read_as_those_of_pandas() -> None:
    rows = [{"text": "a fine film", "label": "good"}, {"text": "a dull one", "label": "bad"}]

    class Frame:
        """What records_of reads of a polars.DataFrame."""

        def to_dict(self, *, as_series: bool = True) -> dict[str, list[str]]:
            return {name: [row[name] for row in rows] for name in ("text", "label")}

        def to_dicts(self) -> list[dict[str, str]]:
            return rows

    assert records_of(Frame(), "the training rows") == rows
