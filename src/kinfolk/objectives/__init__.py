"""Pretraining objectives, one file each; `objective` holds their interface."""
