"""What a user starts: pretraining, fine-tuning, evaluation, prediction, generation."""
