"""The one kind of error a user is meant to read."""


class UserError(ValueError):
    """Something the user can put right: the value, the rule it broke, and the way out."""
