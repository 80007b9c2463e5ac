"""Text to ids and back, and where sentences end."""

from kinfolk.text.sentences import boundaries
from kinfolk.text.tokenizer import Specials, Tokenizer
from kinfolk.text.vocabulary import KINDS, train

__all__ = ["KINDS", "Specials", "Tokenizer", "boundaries", "train"]
