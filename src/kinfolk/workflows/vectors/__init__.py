"""Vectors of texts: their transforms and their isotropy."""
