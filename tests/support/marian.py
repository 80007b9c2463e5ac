"""Small Marian models of transformers with random weights, and the files of their tokenizers."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from support.peers import ids, inputs, ragged, shake
from support.runs import text

VOCAB, END, PAD = 70, 0, 69
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "eos_token_id": END,
    "forced_eos_token_id": END,
    "max_position_embeddings": 32,
}


@torch.no_grad()
def marian(**fields: Any) -> Any:
    """Build a network of transformers with random weights and a random bias of the logits."""
    torch.manual_seed(1)
    config = transformers.MarianConfig(**SIZES | fields)
    model: Any = shake(transformers.MarianMTModel(config))
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    model.final_logits_bias += torch.randn(
        config.vocab_size, generator=torch.Generator().manual_seed(3)
    )
    return model


@torch.no_grad()
def both_logits(
    ours: Any, theirs: Any, *, sources: tuple[int, ...] = (12, 3, 8)
) -> tuple[Tensor, Tensor]:
    """Return the logits of padded sources and targets, without padding."""
    source, document = ragged(sources), ragged()
    tokens, read = ids(VOCAB), ids(VOCAB, length=max(sources))
    pair = inputs(
        tokens,
        AttentionMask.causal(document),
        encoder_inputs=inputs(read, AttentionMask.bidirectional(source)),
    )
    expected = theirs(
        input_ids=read,
        attention_mask=(source == 0).long(),
        decoder_input_ids=tokens,
        decoder_attention_mask=(document == 0).long(),
    ).logits
    return ours.lm_logits(ours(pair).hidden).logits()[document == 0], expected[document == 0]


ENGLISH = text(seed=1).split("\n\n")
GERMAN = [
    "Die Katze sah den Garten am Morgen.",
    "Ein Hund folgte dem Fluß ohne ein Wort.",
    "Meine Schwester malte zufällig ein Lied und der Kaiser vergaß den Brief.",
    "Der alte Mann trug wieder einen Apfel und fand den Ball.",
] * 9


def marian_files(folder: Path, kind: str, *, missing: int = 0) -> Path:
    """Write the files of a tokenizer: two SentencePiece models, and the ids of both."""
    tokens = ["</s>", "<unk>"]
    for name, texts in (("source", ENGLISH), ("target", GERMAN)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(folder / name),
            vocab_size=150,
            model_type=kind,
            hard_vocab_limit=False,
            num_threads=1,
            minloglevel=2,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        tokens += [model.IdToPiece(i) for i in range(3, len(model) - missing)]
    names = dict.fromkeys([*tokens, ">>deu<<", "<pad>"])
    (folder / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "eng", "target_lang": "deu"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
