"""Networks with a head: equal scores here and in transformers, whoever saved the folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import Inputs
from kinfolk.config import from_json, to_json
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.families.albert import AlbertConfig
from kinfolk.families.bert import BertConfig
from kinfolk.families.bilstm import BiLSTMConfig
from kinfolk.families.electra import ElectraConfig
from kinfolk.families.glm import GLMConfig
from kinfolk.families.gpt import GPTConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.gpt3 import GPT3Config
from kinfolk.families.roberta import RobertaConfig
from kinfolk.families.transformer_xl import TransformerXLConfig
from kinfolk.families.xlnet import XLNetConfig
from kinfolk.hub import load, load_model, save
from kinfolk.nn.language_model import Pooling
from kinfolk.nn.task_heads import FIXED_LABELS, ModelWithHead, ModelWithHeadConfig, pooling_of
from kinfolk.text import Tokenizer, train_tokenizer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB, LENGTH = 50, 7
PAD = 1  # RoBERTa counts its places from it
NAMES = ("negative", "positive", "中性")
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 8, "num_layers": 2, "num_heads": 2}
BODIES: dict[str, Any] = {
    "bert": BertConfig(**SIZES, max_length=16),
    "albert": AlbertConfig(**SIZES, max_length=16, embedding_size=4, sharing="attention"),
    "roberta": RobertaConfig(**SIZES, max_length=16, padding_idx=PAD),
    "electra": ElectraConfig(**SIZES, max_length=16, embedding_size=4, generator_size=0.5),
    "xlnet": XLNetConfig(**SIZES),
    "gpt2": GPT2Config(**SIZES, max_length=16),
    "openai-gpt": GPTConfig(**SIZES, max_length=16),
}
HEADS = {m.hf.model_type: m.hf.heads for m in families().values() if m.hf is not None}
CASES = [(kind, head) for kind, classes in HEADS.items() for head in classes]
AUTO = {
    "text": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    "span": transformers.AutoModelForQuestionAnswering,
    "choice": transformers.AutoModelForMultipleChoice,
}


def headed(body: Any, head: Any, **more: Any) -> ModelWithHeadConfig:
    given: dict[str, Any] = {
        "labels": FIXED_LABELS.get(head, NAMES),
        "pooling": pooling_of(body),
    } | more
    return ModelWithHeadConfig(backbone=body, head=head, **given)


@torch.no_grad()
def shaken(network: Any) -> Any:
    """Move every weight, so that no bias is zero and no two parts are alike."""
    for weight in network.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.5)
    return network.eval()


def rows(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return three texts, where they are, and their segments; XLNet has its padding first."""
    ids = torch.randint(5, VOCAB, (3, LENGTH))
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4], [6]])
    real = real.flip(1) if kind == "xlnet" else real
    two = kind in ("bert", "albert", "electra", "xlnet")
    segments = (torch.arange(LENGTH) > 2).long().expand(3, -1) * two
    return ids.where(real, PAD), real, segments


@torch.no_grad()
def ours(kind: str, model: Any, ids: Tensor, real: Tensor, segments: Tensor) -> Tensor:
    """Score texts, or the tokens that are theirs."""
    see = AttentionMask.causal if "gpt" in kind else AttentionMask.bidirectional
    places = (real.cumsum(1) - 1).clamp(0)
    attention_mask = see(torch.where(real, 0, PADDING_ID))
    hidden = model(
        Inputs(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=places,
            token_type_ids=segments,
        )
    ).hidden
    if not model.config.pools_text:
        return model.logits(hidden[real])  # type: ignore[no-any-return]
    last = model.config.pooling.token == "last"
    slots = torch.arange(LENGTH).where(real, -1 if last else LENGTH)
    slot = slots.amax(1) if last else slots.amin(1)
    return model.logits(hidden[torch.arange(3), slot])  # type: ignore[no-any-return]


@torch.no_grad()
def theirs(head: str, peer: Any, ids: Tensor, real: Tensor, segments: Tensor) -> Tensor:
    read = {"input_ids": ids, "attention_mask": real.long()}
    if segments.any():
        read["token_type_ids"] = segments
    if head == "choice":
        read = {name: x[None] for name, x in read.items()}
        return peer(**read).logits.T  # type: ignore[no-any-return]
    out = peer(**read)
    if head == "span":
        return torch.stack([out.start_logits, out.end_logits], -1)[real]
    return out.logits[real] if head == "tokens" else out.logits  # type: ignore[no-any-return]


def peer_of(kind: str, head: str, **more: Any) -> Any:
    """Make a network of transformers as one who never heard of kinfolk would."""
    make = getattr(transformers, HEADS[kind][head].name)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    inner = {"d_inner": 20, "d_head": 4} if kind == "xlnet" else {"intermediate_size": 20}
    tokens = {"pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 3}
    narrow = {"embedding_size": 4} if kind in ("albert", "electra") else {}
    inner = {} if "gpt" in kind else inner
    return shaken(
        make(make.config_class(vocab_size=VOCAB, **sizes, **inner, **narrow, **tokens, **more))
    )


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "head"), CASES)
def test_a_folder_from_elsewhere_scores_here_as_there(kind: str, head: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    more = {"id2label": dict(enumerate(NAMES))} if head in ("text", "tokens") else {}
    peer = peer_of(kind, head, **more)
    peer.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert isinstance(model, ModelWithHead) and not model.training
    assert (model.config.head, model.config.labels) == (head, FIXED_LABELS.get(head, NAMES))
    texts = rows(kind)
    expected = theirs(head, peer, *texts)
    assert expected.std() > 0.01  # far above the tolerance
    assert (ours(kind, model, *texts) - expected).abs().max() < 1e-5


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "head"), CASES)
def test_a_folder_from_here_scores_there_as_here(kind: str, head: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = headed(BODIES[kind], head, dropout=0.3)
    model = shaken(config.build())
    save(tmp_path, model, None)
    peer, told = AUTO[head].from_pretrained(tmp_path, pad_token_id=PAD, output_loading_info=True)
    assert type(peer).__name__ == HEADS[kind][head].name
    assert not any(told.values()), told
    assert tuple(peer.config.id2label.values()) == config.labels
    assert peer.config.label2id == {label: i for i, label in enumerate(config.labels)}
    texts = rows(kind)
    expected = ours(kind, model, *texts)
    assert expected.std() > 0.01  # far above the tolerance
    assert (expected - theirs(head, peer.eval(), *texts)).abs().max() < 1e-5
    again = load_model(tmp_path)
    assert again.config == config
    assert torch.equal(ours(kind, again, *texts), expected)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("bert", "text"),
        ("albert", "choice"),
        ("roberta", "tokens"),
        ("electra", "text"),
        ("electra", "choice"),
        ("xlnet", "text"),
        ("gpt2", "tokens"),
    ],
)
def test_what_is_dropped_before_the_last_matrix_is_dropped_there_too(
    kind: str, head: str, tmp_path: Path
) -> None:
    save(tmp_path, headed(BODIES[kind], head, dropout=0.3).build(), None)
    peer = AUTO[head].from_pretrained(tmp_path)
    assert [x.p for x in peer.modules() if isinstance(x, nn.Dropout)].count(0.3) == 1


OWN = [
    (GLMConfig(**SIZES, max_length=16), "text", {}),
    (TransformerXLConfig(**SIZES, cutoffs=(20,), mem_len=8), "tokens", {}),
    (GPT3Config(**SIZES, max_length=16, attention_window=3), "span", {}),
    (GPTConfig(**SIZES, max_length=16), "tokens", {}),
    (GPT2Config(**SIZES, max_length=16), "choice", {}),
    (GPT3Config(**SIZES, max_length=16), "text", {"labels": ("score",), "regression": True}),
    (BiLSTMConfig(vocab_size=VOCAB, hidden_size=8), "text", {}),
    (
        BertConfig(**SIZES, max_length=16),
        "text",
        {"pooling": Pooling(token="last", activation="gelu")},
    ),
]


@pytest.mark.parametrize(("body", "head", "more"), OWN)
def test_a_head_that_transformers_does_not_have_keeps_our_names(
    body: Any, head: str, more: dict[str, Any], tmp_path: Path
) -> None:
    config = headed(body, head, **more)
    model = shaken(config.build())
    save(tmp_path, model, None)
    said = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert said["model_type"] == f"kinfolk_{body.family_name}"
    assert said["head"]["labels"] == list(config.labels)
    again = load_model(tmp_path)
    assert again.config == config
    inputs = Inputs.from_ids(torch.arange(9)[None], causal=True)
    assert torch.equal(
        again.logits(again(inputs).hidden),  # type: ignore[attr-defined]
        model.logits(model(inputs).hidden),
    )


def test_every_config_comes_back_from_json() -> None:
    configs = [headed(BODIES[kind], head) for kind, head in CASES]
    assert [from_json(json.loads(json.dumps(to_json(config)))) for config in configs] == configs


def test_what_only_pretraining_needs_is_gone() -> None:
    for body in BODIES.values():
        for head in ("text", "tokens"):
            model = headed(body, head).build()
            ids = torch.arange(9)[None]
            inputs = replace(
                Inputs.from_ids(ids, causal=False), token_type_ids=torch.zeros_like(ids)
            )
            model.logits(model(inputs).hidden).sum().backward()
            idle = [name for name, weight in model.named_parameters() if weight.grad is None]
            # XLNet's guesses start from a vector that transformers keeps in every class.
            assert idle == (["backbone.mask_embedding"] if isinstance(body, XLNetConfig) else [])


def test_a_head_fits_on_what_was_pretrained() -> None:
    body = shaken(BODIES["bert"].build())
    torch.manual_seed(3)
    first = ModelWithHead.of(body, headed(body.config, "text"))
    torch.manual_seed(3)
    second = ModelWithHead.of(body, headed(body.config, "text"))
    known = body.state_dict()
    assert all(torch.equal(x, known[name]) for name, x in first.backbone.state_dict().items())
    assert not {*first.parameters()} & {*body.parameters()}
    assert torch.equal(first.head.out_proj.weight, second.head.out_proj.weight)
    assert not first.head.out_proj.bias.any()
    assert 0.01 < first.head.out_proj.weight.std() < 0.03  # the body's std is 0.02
    assert hasattr(body, "seq_relationship")


def test_what_a_tagger_lost_starts_fresh_and_is_told() -> None:
    tagger = headed(BODIES["bert"], "tokens").build()
    with pytest.warns(UserWarning, match="no weights of pooler: they start from random values"):
        ModelWithHead.of(tagger.backbone, headed(BODIES["bert"], "text"))


def test_decoders_still_predict_and_bounds_are_those_of_the_body() -> None:
    model = headed(BODIES["gpt2"], "text").build()
    assert model.lm_logits(torch.zeros(2, 8)).logits().shape == (2, VOCAB)
    assert (model.config.vocab_size, model.config.hidden_size, model.config.max_length) == (
        VOCAB,
        8,
        16,
    )
    assert headed(BODIES["xlnet"], "text").max_length is None


@pytest.mark.parity
def test_a_number_comes_back_as_a_number(tmp_path: Path) -> None:
    config = headed(BODIES["bert"], "text", labels=("score",), regression=True)
    save(tmp_path, config.build(), None)
    assert load_model(tmp_path).config == config
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert (peer.config.problem_type, peer.config.num_labels) == ("regression", 1)
    peer_of("bert", "text", num_labels=1).save_pretrained(tmp_path)
    assert load_model(tmp_path).config.regression


@pytest.mark.parity
def test_labels_without_names_have_the_names_that_transformers_gives(tmp_path: Path) -> None:
    peer_of("bert", "text").save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    for name in ("id2label", "label2id"):
        said.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert load_model(tmp_path).config.labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parity
def test_taggers_that_older_versions_saved_with_a_pooler_open(tmp_path: Path) -> None:
    peer_of("bert", "tokens").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights |= {
        "bert.pooler.dense.weight": torch.ones(8, 8),
        "bert.pooler.dense.bias": torch.ones(8),
    }
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model: Any = load_model(tmp_path)
    assert not hasattr(model.backbone, "pooler")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["what a fine and lovely film it is", "who would want such a dull film"] * 9
    return train_tokenizer(texts, kind="wordpiece", vocab_size=150)


@pytest.mark.parity
def test_a_pipeline_answers_with_readable_labels(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(4)
    body = replace(BODIES["bert"], vocab_size=tokenizer.vocab_size)
    model = shaken(headed(body, "text").build())
    save(tmp_path, model, tokenizer)
    text = "what a fine film"
    answers = transformers.pipeline("text-classification", str(tmp_path))(text, top_k=None)
    again, mine = load(tmp_path)
    hidden = again(Inputs.from_ids(torch.tensor([mine.encode(text)]), causal=False)).hidden
    expected = again.logits(hidden[0, 0]).softmax(-1).tolist()  # type: ignore[attr-defined]
    found = {answer["label"]: answer["score"] for answer in answers}
    assert [found[label] for label in NAMES] == pytest.approx(expected, abs=1e-5)

    model = shaken(headed(body, "tokens", labels=("O", "B-PER", "I-PER", "B-地")).build())
    save(tmp_path, model, tokenizer)
    tags = transformers.pipeline("token-classification", str(tmp_path))(text)
    hidden = model(Inputs.from_ids(torch.tensor([mine.encode(text)]), causal=False)).hidden
    best = [model.config.labels[i] for i in model.logits(hidden[0, 1:-1]).argmax(-1)]
    assert [x["entity"] for x in tags] == [label for label in best if label != "O"]


@pytest.mark.parity
def test_a_span_is_found_through_the_saved_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(5)
    body = replace(BODIES["bert"], vocab_size=tokenizer.vocab_size)
    model = shaken(headed(body, "span").build())
    save(tmp_path, model, tokenizer)
    peer = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        "dull", "fine film", return_tensors="pt"
    )
    expected = theirs(
        "span", peer, read["input_ids"], read["attention_mask"].bool(), read["token_type_ids"]
    )
    inputs = replace(
        Inputs.from_ids(read["input_ids"], causal=False), token_type_ids=read["token_type_ids"]
    )
    assert (model.logits(model(inputs).hidden)[0] - expected).abs().max() < 1e-5


def test_bad_heads_are_told_in_a_sentence(tmp_path: Path) -> None:
    save(tmp_path, headed(BODIES["bert"], "text").build(), None)
    said = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))

    def refused(match: str, **changes: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(said | changes), encoding="utf-8")
        with pytest.raises(UserError, match=match) as told:
            load_model(tmp_path)
        assert "\n" not in str(told.value)

    refused("id2label are 0, 2; .*without gaps", id2label={"0": "no", "2": "yes"})
    refused("each with another name", id2label={"0": "yes", "1": "yes"})
    refused(r"classifier\.weight is \(3, 8\) and should be \(2, 8\)", id2label={"0": "a", "1": "b"})
    refused("multi_label", problem_type="multi_label_classification")
    refused("missing weights in .*: qa_outputs", architectures=["BertForQuestionAnswering"])
    save(tmp_path, headed(BODIES["xlnet"], "text").build(), None)
    said = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    refused("summary_type='mean'", summary_type="mean")


def test_bad_configs_are_told() -> None:
    body = BODIES["bert"]
    with pytest.raises(UserError, match=r"model.head='poem': it must be text, tokens, span"):
        headed(body, "poem")
    with pytest.raises(UserError, match="each with another name"):
        headed(body, "text", labels=("a", "a"))
    with pytest.raises(UserError, match="at least one"):
        headed(body, "tokens", labels=())
    with pytest.raises(UserError, match="classification needs at least two labels"):
        headed(body, "text", labels=("a",))
    with pytest.raises(UserError, match=r"head 'span': its scores are \('start', 'end'\)"):
        headed(body, "span", labels=("a", "b"))
    for head, labels in (("text", ("a", "b")), ("tokens", ("a",))):
        with pytest.raises(UserError, match="regression=True needs head='text' with one label"):
            headed(body, head, labels=labels, regression=True)
    with pytest.raises(UserError, match="ModelWithHead takes no task head"):
        pooling_of(headed(body, "text"))
