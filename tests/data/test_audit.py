"""An audit counts what is in files, right and wrong, and reads each of them to its end."""

import gzip
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.data import audit as audit_module
from kinfolk.data.audit import Audit, LineCounter, audit, length_histogram
from kinfolk.data.documents import ReadOptions, read_documents
from kinfolk.errors import UserError
from kinfolk.text.unicode import count_scripts, guess_language
from kinfolk.workflows.audit import findings

# The first article of the Universal Declaration of Human Rights.
ARTICLE = {
    "English": "All human beings are born free and equal in dignity and rights. They are endowed "
    "with reason and conscience and should act towards one another in a spirit of brotherhood.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit "
    "Vernunft und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "French": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont "
    "doués de raison et de conscience et doivent agir les uns envers les autres dans un esprit de "
    "fraternité.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados "
    "como están de razón y conciencia, deben comportarse fraternalmente los unos con los otros.",
    "Italian": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono "
    "dotati di ragione e di coscienza e devono agire gli uni verso gli altri in spirito di "
    "fratellanza.",
    "Portuguese": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. "
    "Dotados de razão e de consciência, devem agir uns para com os outros em espírito de "
    "fraternidade.",
    "Dutch": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn "
    "begiftigd met verstand en geweten, en behoren zich jegens elkander in een geest van "
    "broederschap te gedragen.",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. Mọi "
    "con người đều được tạo hóa ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình "
    "bằng hữu.",
    "Chinese": "人人生而自由，在尊严和权利上一律平等。",
    "Japanese": "すべての人間は、生れながらにして自由であり、尊厳と権利とについて平等である。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "Cyrillic script": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Latin, unknown": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan.",
    "no letters": "1948",
}


def of(tmp_path: Path, data: bytes, name: str = "a.txt") -> Audit:
    (tmp_path / name).write_bytes(data)
    return audit([tmp_path / name])


def test_damage_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    text = "好\n".encode() + b"a\xffb\n\nc\xe4\xb8\n" + "\ufffd\x00\x1b\t\n\nend".encode()
    found = of(tmp_path, text)
    (file,) = found.files
    assert (found.errors, file.problems.line_numbers) == (2, [2, 4])
    assert (found.documents, file.problems.lines, file.problems.blank) == (3, 7, 2)
    assert (found.control_characters, found.replacement_characters) == (2, 1)
    assert (found.errors, file.error) == (2, "")


@given(
    parts=st.lists(st.sampled_from([b"a", b"\xff", b"\xe4", b"\xb8\xad", b"\xef\xbf\xbd", b"\n"]))
)
def test_errors_and_replacements_are_told_apart(
    parts: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = b"x" + b"".join(parts)
    found = of(tmp_path_factory.mktemp("errors"), data)
    own = data.count(b"\xef\xbf\xbd")
    assert found.replacement_characters == own
    assert found.errors == data.decode("utf-8", "replace").count("\ufffd") - own


def test_duplicates_lengths_and_lines_are_counted(tmp_path: Path) -> None:
    blocks = ["a\nb\nb", "c", "a\nb\nb ", "C!", "", "0123456789"]
    found = of(tmp_path, "\n\n".join(blocks).encode())
    assert (found.documents, found.exact_duplicates, found.near_duplicates) == (
        5,
        1,
        1,
    )  # "C!" is nearly "c"
    assert [(e.line, e.same_as_line, e.text) for e in found.examples] == [(11, 5, "C!")]
    assert [(e.line, e.same_as_line, e.text) for e in found.exact_examples] == [(7, 1, "a\nb\nb")]
    assert (found.lines, found.repeated_lines) == (9, 4)
    assert dict(found.most_repeated_lines) == {"b": 4, "a": 2}
    assert found.most_repeated_lines[0] == ("b", 4)
    assert (found.shortest, found.median, found.longest) == (1, 5, 10)
    assert found.lengths == ((1, 1), (2, 1), (4, 2), (8, 1))
    assert found.characters == sum(map(len, blocks))


def test_near_duplicates_need_not_be_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("c\n\nC!")
    assert audit([tmp_path], near=False).near_duplicates is None


def test_empty_files_and_documents_are_counted_and_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_bytes(b" \n\n\t\n")
    (tmp_path / "c.jsonl").write_text('{"text": ""}\n{"text": " "}\n{"text": "x"}\n')
    found = audit([tmp_path])
    assert (found.documents, found.empty, found.empty_files) == (3, 2, 2)
    assert (found.blank, found.file_lines) == (3, 6)
    nothing = audit([tmp_path / "a.txt"])
    assert (nothing.documents, nothing.lengths, nothing.median, nothing.most_repeated_lines) == (
        0,
        (),
        0,
        (),
    )


def test_a_bad_file_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n\ntwo\n" * 50)[:-12])
    (tmp_path / "b.txt").write_text("three")
    found = audit([tmp_path])
    assert "a.txt.gz is corrupt" in found.files[0].error
    assert found.files[1].documents == 1
    with pytest.raises(UserError, match="is corrupt"):
        (tmp_path / "c.txt.gz").write_bytes(b"x")
        audit([tmp_path / "c.txt.gz"])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", b"caf\xe9"),
        ("a.txt", b"a\n\na\0b"),
        ("a.jsonl", b'{"text": "one"}\n{"text": null}\n'),
        ("a.jsonl", b'{"text": "one"}\n{oops\n'),
        ("a.jsonl", b'{"body": "one"}\n'),
    ],
)
def test_where_prepare_will_stop_is_said_in_its_words(
    tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as raised:
        list(read_documents([tmp_path]))
    found = audit([tmp_path])
    assert [file.problems.refusal for file in found.files] == [str(raised.value)]
    assert f"{raised.value} (prepare stops there)" in findings(found)


def test_a_short_row_of_a_column_is_where_prepare_will_stop(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x\ttext\n1\tone\n2\n")
    (file,) = audit([tmp_path], reading=ReadOptions(column="text")).files
    assert (file.documents, "line 3 of" in file.problems.refusal) == (2, True)
    (file,) = audit([tmp_path]).files
    assert file.problems.refusal == ""


def test_tables_give_every_string_or_those_of_one_field(tmp_path: Path) -> None:
    rows = [{"id": "1", "text": {"en": "one", "zh": "一"}}, {"id": "2", "n": 3}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n{oops")
    (tmp_path / "b.csv").write_text('id,body\n1,"x\ny"\n2\n')
    (tmp_path / "c.tsv").write_text('id\tbody\n1\t"q\n')
    found = audit([tmp_path])
    assert [one.documents for one in found.files] == [3, 3, 2]
    assert [one.characters for one in found.files] == [len("1\none\n一") + 1, 7 + 5 + 1, 7 + 4]
    assert found.files[0].problems.invalid_json_lines == 1
    chosen = audit([tmp_path], reading=ReadOptions(field="text.zh", column="body"))
    assert [one.documents for one in chosen.files] == [3, 2, 1]
    assert [one.characters for one in chosen.files] == [1, 3, 2]
    numbered = audit([tmp_path / "b.csv"], reading=ReadOptions(column="2"))
    assert (numbered.documents, numbered.characters) == (3, 4 + 3)
    with pytest.raises(
        UserError, match=r"the first row of .*b\.csv has no 'nothing': choose one of id, body"
    ):
        audit([tmp_path / "b.csv"], reading=ReadOptions(column="nothing"))


def test_a_file_may_be_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n\none\r\n\r\ntwo\n\n")
    found = audit([tmp_path], reading=ReadOptions(per="file"))
    assert (found.documents, found.characters) == (1, len("one\n\ntwo"))


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("some text\n\n" * 1000)
    told: list[tuple[int, int | None]] = []
    audit([tmp_path], progress=lambda read, whole: told.append((read, whole)))
    assert told == sorted(told)
    assert told[-1] == (22000, 22000)


@given(st.lists(st.sampled_from([*(f"line {i}" for i in range(20)), "line 0"]), max_size=80))
def test_the_top_lines_are_exact_however_often_they_become_numbers(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_module, "MAX_PENDING_LINES", 3)
        counted = LineCounter()
        for text in texts:
            counted.add(text + "\n\n ")
        true = Counter(texts)
        assert (counted.total, counted.distinct) == (len(texts), len(true))
        top = counted.top()
        often = sorted((n for n in true.values() if n > 1), reverse=True)
        assert [n for _, n in top] == often[:10]
        assert all(true[line] == n for line, n in top)


def test_a_line_costs_its_sixteen_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "MAX_PENDING_LINES", 1 << 10)
    counted, used = LineCounter(), []
    tracemalloc.start()
    for start in range(0, 3 << 13, 1 << 9):
        counted.add("\n".join(f"{start + i} is a line of some length" for i in range(1 << 9)))
        if counted.distinct % (1 << 13) == 0:
            used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert counted.distinct == 3 << 13
    assert (used[2] - used[1]) / (1 << 13) == pytest.approx(16, abs=1)


@given(st.lists(st.integers(0, 5000), min_size=1))
def test_every_length_is_in_one_bar(lengths: list[int]) -> None:
    bars = length_histogram(lengths)
    assert sum(count for _, count in bars) == len(lengths)
    for low, count in bars:
        assert count == sum(low <= length <= max(0, 2 * low - 1) for length in lengths)


def test_letters_are_counted_by_script() -> None:
    found = count_scripts("aＡé 世界 カナ ﾊﾝ Привет αβ 한국 שלום ๆ 12 .,!")
    assert found == {
        "Latin": 3,
        "Han": 2,
        "Katakana": 4,
        "Cyrillic": 6,
        "Greek": 2,
        "Hangul": 2,
        "Hebrew": 4,
        "Thai": 1,
    }


@pytest.mark.parametrize("name", ARTICLE)
def test_the_language_of_an_article_is_guessed(name: str) -> None:
    assert guess_language(ARTICLE[name]) == name


@pytest.mark.real
@pytest.mark.parametrize(
    ("code", "name"),
    [
        *[("eng_Latn", "English"), ("deu_Latn", "German"), ("fra_Latn", "French")],
        *[("vie_Latn", "Vietnamese"), ("zho_Hans", "Chinese")],
    ],
)
def test_single_real_sentences_are_guessed_or_left_open(real: Path, code: str, name: str) -> None:
    sentences = (real / "flores200" / "dev" / f"{code}.dev").read_text("utf-8").splitlines()
    guesses = Counter(map(guess_language, sentences))
    assert guesses[name] > 0.92 * len(sentences)
    assert guesses[name] + guesses["Latin, unknown"] > 0.98 * len(sentences)


@pytest.mark.real
def test_real_reviews_and_poems_have_plausible_numbers(real: Path) -> None:
    reviews = audit([real / "chnsenticorp_htl"], reading=ReadOptions(column="review"))
    assert reviews.documents == 7766
    assert reviews.errors == reviews.control_characters == 0
    assert reviews.scripts["Han"] > 0.95 * sum(reviews.scripts.values())
    assert reviews.languages["Chinese"] > 0.99 * reviews.documents
    assert 0 < reviews.exact_duplicates + (reviews.near_duplicates or 0) < 0.1 * reviews.documents
    assert 50 < reviews.median < 150 < reviews.longest
    poems = audit([real / "poetry_zh" / "test.jsonl"], reading=ReadOptions(field="paragraphs"))
    assert (poems.documents, poems.exact_duplicates) == (902, 0)
    assert poems.shortest <= poems.median <= poems.longest
    assert sum(count for _, count in poems.lengths) == poems.documents
