"""The Python interface: what it shows, what it accepts, and what it answers to a wrong argument."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

import kinfolk
from kinfolk import Corpus, UserError
from kinfolk.nn.language_model import LanguageModel
from support.runs import Home

ROWS = [
    {"text": f"the {noun} was {adjective}", "label": label}
    for label, adjective in (("good", "lovely"), ("bad", "awful"))
    for noun in ("film", "story", "music", "end", "cast", "sound")
]
TINY = {"epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Make a tokenizer and a corpus."""
    return Home.make(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def run(home: Home) -> Path:
    """Pretrain a small GPT-2."""
    return home.run("gpt2")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fine-tune a small BERT on rows in memory."""
    return kinfolk.finetune("bert/nano", ROWS, tmp_path_factory.mktemp("tuned") / "run", **TINY)


# What is shown


def test_dir_and_help_show_the_interface() -> None:
    assert dir(kinfolk) == sorted([*kinfolk.__all__, "__version__"])
    words = set((kinfolk.__doc__ or "").replace(",", " ").replace(".", " ").split())
    assert {*kinfolk.__all__} <= words


def test_every_public_name_is_there_and_documented() -> None:
    for name in kinfolk.__all__:
        value = getattr(kinfolk, name)
        assert inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="no attribute 'continue_text'"):
        _ = kinfolk.continue_text


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = "import sys, kinfolk; dir(kinfolk); kinfolk.UserError; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "numpy", "typer", "tokenizers"}.isdisjoint(shown.stdout.split())


def test_a_system_without_fcntl_is_told_in_one_sentence() -> None:
    for statement in ("import kinfolk", "import kinfolk.cli"):
        code = f"import sys; sys.modules['fcntl'] = None; {statement}"
        shown = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert shown.returncode == 1
        assert shown.stderr.splitlines()[-1] == (
            "ImportError: kinfolk runs on Linux and macOS, and this system has no fcntl, which "
            "locks folders: on Windows install it in WSL 2 (the Windows Subsystem for Linux)"
        )
        assert "ModuleNotFoundError" not in shown.stderr


def test_load_is_typed() -> None:
    assert get_type_hints(kinfolk.load)["return"] == tuple[LanguageModel, kinfolk.Tokenizer]


def test_families_are_listed() -> None:
    families = kinfolk.families.families()
    assert {"gpt2", "bert", "t5", "glm"} <= families.keys()
    assert families["gpt2"].architecture == "decoder"


# What is accepted


def test_text_becomes_a_tokenizer_a_corpus_and_a_recipe(home: Home, tmp_path: Path) -> None:
    tokenizer = kinfolk.train_tokenizer(str(home.text), vocab_size=400)
    assert repr(tokenizer) == "Tokenizer(bpe, vocab_size=400)"
    assert tokenizer("a b") == tokenizer.encode("a b")
    tokenizer.save(tmp_path / "tok")
    corpus = kinfolk.prepare(str(home.text), tmp_path / "tok", str(tmp_path / "corpus"))
    assert corpus.tokenizer_hash == tokenizer.fingerprint
    recipe = kinfolk.recipe("gpt2/nano", corpus, length=16)
    assert recipe.corpus == str((tmp_path / "corpus").resolve())


@pytest.mark.parametrize(
    "settings",
    [
        {"model.dropout": 0.1, "train.betas": (0.9, 0.95)},
        ["model.dropout=0.1", "train.betas=0.9,0.95"],
    ],
)
def test_settings_are_a_dictionary_or_a_list(home: Home, settings: Any) -> None:
    recipe = kinfolk.recipe("gpt2/nano", home.corpus, length=16, lr=1e-3, settings=settings)
    assert (recipe.train.lr, recipe.train.betas, recipe.model.dropout) == (1e-3, (0.9, 0.95), 0.1)


def test_settings_may_be_one_string(home: Home) -> None:
    recipe = kinfolk.recipe("gpt2/nano", home.corpus, length=16, settings="train.steps=5")
    assert recipe.train.steps == 5


def test_corpora_have_weights(home: Home) -> None:
    holdout = home.corpus / "holdout"
    recipe = kinfolk.recipe("gpt2/nano", {home.corpus: 0.7, str(holdout): 0.3}, length=16)
    assert [share.weight for share in recipe.corpora] == [0.7, 0.3]
    recipe = kinfolk.recipe("gpt2/nano", [home.corpus, holdout], length=16)
    assert [share.weight for share in recipe.corpora] == [1.0, 1.0]


def test_a_folder_is_continued_from(home: Home, run: Path) -> None:
    recipe = kinfolk.recipe(run, home.corpus, steps=3)
    assert recipe.init_from.startswith(str(run.resolve()))
    assert recipe.train.steps == 3


def test_a_recipe_file_is_run(home: Home, tmp_path: Path) -> None:
    recipe = home.recipe("gpt2")
    recipe.write(tmp_path / "recipe.json")
    run = kinfolk.pretrain(tmp_path / "recipe.json", tmp_path / "run")
    assert kinfolk.Recipe.read(run / "recipe.json") == recipe


def test_likelihood_is_one_object(home: Home, run: Path, tmp_path: Path) -> None:
    text = "the cat sat on the mat and looked at the dog"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    scores = kinfolk.evaluate(run, text=text)
    assert scores == kinfolk.evaluate(run, file=tmp_path / "text.txt")
    assert (scores.bytes, scores.kind) == (len(text), "likelihood, left to right")
    assert scores.perplexity > 1
    assert scores.loss > 0
    assert scores.bits_per_byte > 0
    assert kinfolk.evaluate(run, corpus=home.corpus / "holdout").tokens > scores.tokens


def test_a_file_is_fine_tuned_on(tmp_path: Path) -> None:
    lines = [f"{row['text']}\t{row['label']}" for row in ROWS]
    train = tmp_path / "train.tsv"
    train.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    run = kinfolk.finetune("bert/nano", str(train), tmp_path / "run", dev=ROWS[:4], **TINY)
    assert {p.value for p in kinfolk.predict(run, train)} <= {"good", "bad"}
    again = kinfolk.finetune("bert/nano", kinfolk.task_dataset(train), tmp_path / "again", **TINY)
    assert (again / "scores.json").is_file()


def test_keywords_and_settings_of_fine_tuning_are_one(tmp_path: Path) -> None:
    chosen = {"finetune.epochs": 1, "finetune.class_weights": "balanced", "train.device": "cpu"}
    first = kinfolk.finetune("bert/nano", ROWS[:8], tmp_path / "a", settings=chosen)
    second = kinfolk.finetune(
        "bert/nano", ROWS[:8], tmp_path / "b", class_weights="balanced", **TINY
    )
    logs = [(run / "log.jsonl").read_text(encoding="utf-8") for run in (first, second)]
    assert logs[0] == logs[1]
    plain = kinfolk.finetune("bert/nano", ROWS[:8], tmp_path / "c", **TINY)
    assert (plain / "log.jsonl").read_text(encoding="utf-8") != logs[0]


def test_every_form_of_input_has_the_same_predictions(tuned: Path, tmp_path: Path) -> None:
    texts = [row["text"] for row in ROWS]
    predictions = kinfolk.predict(tuned, texts)
    assert kinfolk.predict(tuned, ROWS) == predictions
    assert kinfolk.predict(tuned, [{"text": text} for text in texts]) == predictions
    file = tmp_path / "new.tsv"
    file.write_text("text\n" + "\n".join(texts) + "\n", encoding="utf-8")
    assert kinfolk.predict(tuned, file) == kinfolk.predict(tuned, str(file)) == predictions
    predictor = kinfolk.load_predictor(tuned)
    assert kinfolk.predict(predictor, texts) == predictions
    assert kinfolk.predict(predictor, texts[0])[0].value == predictions[0].value
    assert kinfolk.predict(predictor, []) == []


def test_a_data_frame_is_trained_on_predicted_and_scored(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS)
    run = kinfolk.finetune("bert/nano", frame, tmp_path / "run", dev=frame, **TINY)
    assert kinfolk.predict(run, frame) == kinfolk.predict(run, ROWS)
    scores = kinfolk.evaluate(run, test=frame).scores
    assert scores == kinfolk.evaluate(kinfolk.load_predictor(run), test=ROWS).scores
    assert 0 <= scores["accuracy"] <= 1


def test_pairs_are_tuples(tmp_path: Path) -> None:
    rows = [{"text_a": r["text"], "text_b": "it is a film", "label": r["label"]} for r in ROWS]
    run = kinfolk.load_predictor(kinfolk.finetune("bert/nano", rows, tmp_path / "run", **TINY))
    pairs = [(row["text_a"], row["text_b"]) for row in rows]
    assert kinfolk.predict(run, pairs) == kinfolk.predict(run, rows)
    with pytest.raises(UserError, match="1 texts are too few to classify: give 2"):
        kinfolk.predict(run, "one text")


def test_ids_may_be_a_tensor_of_one_sequence(run: Path) -> None:
    model, tokenizer = kinfolk.load(run)
    ids = tokenizer("the cat")
    assert kinfolk.logits(model, torch.tensor(ids)).equal(kinfolk.logits(model, ids))
    with pytest.raises(UserError, match="ids must be token ids"):
        kinfolk.logits(model, torch.tensor([ids]))


def test_a_model_is_saved_where_it_is_wanted(run: Path, tmp_path: Path) -> None:
    model, tokenizer = kinfolk.load(run)
    copy, _ = kinfolk.load(kinfolk.save(model, tokenizer, tmp_path / "copy"))
    ids = tokenizer("the cat")
    assert kinfolk.logits(copy, ids).equal(kinfolk.logits(model, ids))


# What is answered to a wrong argument


def wrong_calls(home: Home, run: Path, tuned: Path, out: Path) -> dict[str, Callable[[], Any]]:
    """Return calls with a wrong argument, by the sentence that answers them."""
    model, tokenizer = kinfolk.load(run)
    any_value: Any = object()
    recipe = home.recipe("gpt2")
    corpus = home.corpus
    return {
        "the tokenizer is missing: call kinfolk.stream(model, tokenizer, text)": lambda: (
            kinfolk.stream(model, "Once")
        ),
        "ids must be token ids: call kinfolk.logits(model, tokenizer(text))": lambda: (
            kinfolk.logits(model, untyped("text"))
        ),
        "the model is of type GPT2: give its folder": lambda: kinfolk.load(untyped(model)),
        "the tokenizer is of type object: give its folder": lambda: kinfolk.load(run, any_value),
        "callbacks is of type Callback: give a list": lambda: kinfolk.pretrain(
            recipe, out, callbacks=untyped(kinfolk.Callback())
        ),
        "is not an object of a subclass of kinfolk.Callback": lambda: kinfolk.finetune(
            "bert/nano", ROWS, out, callbacks=[untyped(kinfolk.Callback)]
        ),
        "length='16' must be a whole number": lambda: kinfolk.recipe(
            "gpt2/nano", corpus, length=untyped("16")
        ),
        "recipe is 'gpt2/tiny', which is not a file: give what kinfolk.recipe": lambda: (
            kinfolk.pretrain("gpt2/tiny", out)
        ),
        "recipe is of type object: give what kinfolk.recipe": lambda: kinfolk.pretrain(
            any_value, out
        ),
        "already exists: choose another folder, or continue that run with resume": lambda: (
            kinfolk.pretrain(recipe, run)
        ),
        "'t' is not a setting: write field.path=value": lambda: kinfolk.recipe(
            "gpt2/nano", corpus, length=16, settings="t"
        ),
        "unknown keyword 'learning_rate': did you mean lr?": lambda: kinfolk.recipe(
            "gpt2/nano", corpus, length=16, learning_rate=1e-3
        ),
        "train.steps=many: it must be a whole number": lambda: kinfolk.recipe(
            "gpt2/nano", corpus, length=16, steps="many"
        ),
        "model is of type GPT2: give FAMILY/SIZE": lambda: kinfolk.recipe(untyped(model), corpus),
        "corpus is of type int: give the folder of a corpus": lambda: kinfolk.recipe(
            "gpt2/nano", [untyped(3)], length=16
        ),
        "give one of the parameters text, file, corpus, test": lambda: kinfolk.evaluate(run),
        "model is of type GPT2: give the folder of a run": lambda: kinfolk.evaluate(
            untyped(model), text="a text"
        ),
        "is the name of a file: use file=": lambda: kinfolk.evaluate(run, text=str(home.text)),
        "task_index=2: ": lambda: kinfolk.predict(tuned, "a text", task_index=2),
        "task_index=0: ": lambda: kinfolk.load_predictor(tuned, task_index=0),
        "the model was fine-tuned: its task head predicts labels": lambda: kinfolk.fill(
            tuned, "a [MASK]"
        ),
        "text is empty": lambda: kinfolk.evaluate(run, text=" "),
        "length 3 is too short": lambda: kinfolk.evaluate(run, text="a text", length=3),
        "do not apply to test": lambda: untyped(kinfolk.evaluate)(tuned, test=ROWS, length=16),
        "columns applies to test only": lambda: untyped(kinfolk.evaluate)(
            run, text="a text", columns="a,b"
        ),
        "no such file: ": lambda: kinfolk.finetune("bert/nano", "train.tsv", out),
        "train is of type int: give a file, a list of dictionaries": lambda: kinfolk.finetune(
            "bert/nano", untyped(3), out
        ),
        "train: row 1 is of type str: give dictionaries": lambda: kinfolk.finetune(
            "bert/nano", ["a text"], out
        ),
        "unknown keyword 'epoch': did you mean epochs?": lambda: kinfolk.finetune(
            "bert/nano", ROWS, out, epoch=2
        ),
        "dev, task and columns are part of a task_dataset": lambda: kinfolk.finetune(
            "bert/nano", kinfolk.task_dataset(ROWS), out, dev=ROWS
        ),
        "model is of type GPT2: give the folder of a model": lambda: kinfolk.finetune(
            untyped(model), ROWS, out
        ),
        "was not fine-tuned": lambda: kinfolk.predict(run, "a text"),
        "model is of type GPT2: give the folder of a fine-tuned model": lambda: kinfolk.predict(
            untyped(model), "a text"
        ),
        "inputs: item 1 is 3: give texts, or dictionaries": lambda: kinfolk.predict(tuned, [3]),
        "inputs is of type int: give a file": lambda: kinfolk.predict(tuned, untyped(3)),
        "no such folder: nowhere": lambda: kinfolk.resume("nowhere"),
        "call kinfolk.save(model, tokenizer, out)": lambda: kinfolk.save(
            model, untyped(out), untyped(tokenizer)
        ),
        "files holds a value of type int: give paths": lambda: kinfolk.train_tokenizer(
            [untyped(3)]
        ),
        "holdout 2: it must be a fraction": lambda: kinfolk.prepare(
            home.text, tokenizer, out, holdout=2
        ),
    }


def untyped(value: Any) -> Any:
    """Hide the type of a value from the type checker."""
    return value


def test_a_wrong_argument_gets_a_sentence_about_parameters(
    home: Home, run: Path, tuned: Path, tmp_path: Path
) -> None:
    for sentence, call in wrong_calls(home, run, tuned, tmp_path / "new").items():
        with pytest.raises(UserError) as error:
            call()
        message = str(error.value)
        assert sentence in message
        assert " --" not in message, "a parameter, not an option of the command line"
        assert "\n" not in message
        assert not (tmp_path / "new").exists()


def test_prepare_takes_one_file_to_decontaminate_with_and_a_percentage(
    home: Home, tmp_path: Path
) -> None:
    documents = home.text.read_text(encoding="utf-8").split("\n\n")
    longest = max(documents, key=len)
    (tmp_path / "test.txt").write_text(longest, encoding="utf-8")
    whole, clean = (
        kinfolk.prepare(home.text, home.tokenizer, tmp_path / name, holdout="10%", **more)
        for name, more in (("a", {}), ("b", {"decontaminate": str(tmp_path / "test.txt")}))
    )
    assert (tmp_path / "a" / "holdout").is_dir()
    count = [
        corpus.documents + Corpus.open(corpus.folder / "holdout").documents
        for corpus in (whole, clean)
    ]
    assert count[1] < count[0] == len(documents)
