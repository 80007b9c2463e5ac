"""The datasets of a folder are discovered with tasks, splits and metrics."""

from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import read_rows
from kinfolk.tasks.suite import discover_suite

TABLE = "sentence\tlabel\na fine film\t1\nso so\t0\n"


def file(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_sets_are_folders_and_splits_are_names(tmp_path: Path) -> None:
    for name in ("train.tsv", "dev.tsv"):
        file(tmp_path, f"cola/{name}", TABLE)
    for name in ("sts-train.tsv", "sts-test.tsv"):
        file(tmp_path, f"sts/{name}", "score\ttext1\ttext2\n1.5\ta\tb\n4\tc\td\n")
    for side, text in (("en", "a cat\n"), ("de", "eine Katze\n")):
        for split in ("train", "val", "test_2016"):
            file(tmp_path, f"mt_de_en/{split}.{side}", text)
    file(tmp_path, "notes/train.txt", "plain text\n")
    file(tmp_path, "README.md", "words\n")
    found = {one.name: one for one in discover_suite(tmp_path)}
    assert found.keys() == {"cola", "sts", "mt_de_en"}
    assert (found["cola"].task, found["cola"].metrics) == ("classify", ("matthews",))
    assert [p.name for p in found["cola"].train + found["cola"].dev] == ["train.tsv", "dev.tsv"]
    assert found["cola"].test == ()
    assert (found["sts"].task, found["sts"].metrics) == ("regress", ("pearson", "spearman"))
    pair = found["mt_de_en"]
    assert [p.name for p in pair.train] == ["train.de", "train.en"]
    assert [p.name for p in pair.test] == ["test_2016.de", "test_2016.en"]
    assert len(list(read_rows(pair.dev[0], pair.file_spec, target=pair.dev[1]))) == 1


def test_several_sets_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    for name in ("en_train.tsv", "en_eval.tsv", "zh_train.tsv", "zh_eval.tsv"):
        file(tmp_path, f"story/{name}", TABLE)
    assert [one.name for one in discover_suite(tmp_path)] == ["story/en", "story/zh"]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no labelled datasets: make a folder for each"):
        discover_suite(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        discover_suite(tmp_path / "none")


# What the data's own page says: the task, what decides, and which splits there are.
REAL = """
afqmc classify accuracy  dev
ag_news classify accuracy  dev test
boolq classify accuracy  dev
c3/d choose accuracy  dev
c3/m choose accuracy  dev
chnsenticorp_htl classify accuracy  train
cmrc2018 span f1  dev test
cola classify matthews  train dev
commonsense_qa choose accuracy  train dev
conll2000 tag f1  train test
conll2003 tag f1  train dev test
copa choose accuracy  dev
fewclue/bustm classify accuracy  train dev test
fewclue/chid choose accuracy  train dev test
fewclue/cluewsc classify accuracy  train dev test
fewclue/csl classify accuracy  train dev test
fewclue/eprstmt classify accuracy  train dev test
fewclue/tnews classify accuracy  train dev test
flores200/dev/eng_Latn-deu_Latn write bleu  dev
flores200/dev/eng_Latn-fra_Latn write bleu  dev
flores200/dev/eng_Latn-vie_Latn write bleu  dev
flores200/dev/eng_Latn-zho_Hans write bleu  dev
gap_coref coref conll_f1  train dev test
hellaswag_sample choose accuracy  train
imdb classify accuracy  train test
lambada complete accuracy  test
lcsts write rouge1  train dev test
mrpc classify accuracy  train dev test
msra_ner tag f1  train dev test
multi30k_en_de write bleu  train dev test
ocnli classify accuracy  train dev
online_shopping_10_cats classify accuracy  train
peoples_daily_pos tag accuracy  train
qnli classify accuracy  dev
qqp_subset classify accuracy  train
race_middle choose accuracy  dev test
sick classify accuracy  train dev test
squad/v1.1 span f1  train dev
squad/v2.0 span f1  dev
srl_up_en_ewt tag accuracy  dev test
sst2 classify accuracy  train dev test
sst_trees classify accuracy  train dev test
sts_b regress pearson  train dev test
tatoeba_en_zh write bleu  train
triviaqa write rouge1  dev
ud_en_ewt tag accuracy  train dev test
ud_zh_gsd tag accuracy  dev test
weibo_ner tag f1  train dev test
wmt_en_de_10k write bleu  train dev test
wnli classify accuracy  train dev
xquad/xquad.de span f1  train
xquad/xquad.zh span f1  train
xstory_cloze/en choose accuracy  train test
xstory_cloze/zh choose accuracy  train test
xsum_sample write rouge1  dev
"""


@pytest.mark.real
@pytest.mark.slow
def test_the_real_folder_is_listed_as_its_page_says(real: Path) -> None:
    found = [
        f"{one.name} {one.task} {one.metrics[0]}  "
        + " ".join(split for split in ("train", "dev", "test") if getattr(one, split))
        for one in discover_suite(real)
    ]
    assert found == REAL.strip().splitlines()


def test_a_set_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    file(tmp_path, "one/train.tsv", TABLE)
    file(tmp_path, "one/b_train.txt", "EU NNP\n\nran VBD\n" * 9 + "broken\n")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "train.tsv").write_bytes(b"sentence\tlabel\n\xff\xfe\t1\n")
    found = {one.name: one for one in discover_suite(tmp_path)}
    assert found["one/b"].error.endswith("a blank line between sentences")
    assert "is not UTF-8 at byte 15 (line 2)" in found["two"].error
    assert found["one"].error == ""
