"""Save and load model folders in Hugging Face's format."""

from kinfolk.hub.folder import bind_tokenizer, load, load_model, save

__all__ = ["bind_tokenizer", "load", "load_model", "save"]
