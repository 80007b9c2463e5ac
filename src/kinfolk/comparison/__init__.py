"""The models side by side: their curves, their scores and the page that shows them."""
