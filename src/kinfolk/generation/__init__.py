"""Text from models: continuing a prompt and filling blanks."""
