"""What a model scored, and the lines it has to beat."""
