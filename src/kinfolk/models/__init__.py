"""The family: one file a member."""
