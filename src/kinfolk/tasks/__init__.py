"""Labelled data of every kind, and the way each kind of model solves it."""
