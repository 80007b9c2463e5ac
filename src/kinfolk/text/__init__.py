"""Tokenizers and sentence segmentation."""

from kinfolk.text.segment import sentence_ends
from kinfolk.text.tokenizer import SpecialTokens, Tokenizer
from kinfolk.text.train import KINDS, train_tokenizer

__all__ = ["KINDS", "SpecialTokens", "Tokenizer", "sentence_ends", "train_tokenizer"]
