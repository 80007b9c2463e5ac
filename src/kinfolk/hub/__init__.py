"""Model folders that Hugging Face's transformers opens, and its folders opened here."""

from kinfolk.hub.folder import load, load_model, save

__all__ = ["load", "load_model", "save"]
