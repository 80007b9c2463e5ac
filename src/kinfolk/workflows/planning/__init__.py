"""What a run costs and whether it fits, before anything is trained."""
