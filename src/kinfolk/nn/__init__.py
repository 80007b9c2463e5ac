"""The parts networks are made of."""
