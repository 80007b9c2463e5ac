"""The exception for mistakes that a user can correct."""


class UserError(ValueError):
    """A mistake of the user: the message names the value, the rule and what to do."""
