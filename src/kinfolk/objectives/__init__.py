"""Ways of learning: one file each."""
