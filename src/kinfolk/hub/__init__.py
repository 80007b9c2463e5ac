"""Folders that Hugging Face opens, and the only place that knows its names."""

from kinfolk.hub.folder import frame_of, load, load_model, save

__all__ = ["frame_of", "load", "load_model", "save"]
