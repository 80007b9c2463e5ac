"""Folders that Hugging Face opens, and the only place that knows its names."""

from kinfolk.hub.folder import load, load_model, save, template_of

__all__ = ["load", "load_model", "save", "template_of"]
