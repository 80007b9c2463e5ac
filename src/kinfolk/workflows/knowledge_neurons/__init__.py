"""Knowledge neurons: those on which the answer of a fact depends."""
