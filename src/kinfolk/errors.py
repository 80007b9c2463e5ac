"""Exceptions: mistakes that a user can correct, and signals that end the process."""


class UserError(ValueError):
    """A mistake of the user: the message names the value, the rule and what to do."""


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM or SIGHUP, whose number is `signal`; it saves and ends."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal
