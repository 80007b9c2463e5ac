"""What is inside a model: what objectives make of a text, what a network computes, costs."""
