"""Save and load model folders in Hugging Face's format."""

from kinfolk.hub.folder import load, load_model, save

__all__ = ["load", "load_model", "save"]
