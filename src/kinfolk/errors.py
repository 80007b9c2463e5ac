"""Exceptions: mistakes that a user can correct, and signals that end the process."""


class UserError(ValueError):
    """A mistake of the user: the message names the value, the rule and what to do."""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP ended a run, which was saved; the exit code is 128 + the signal."""

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)
        self.signal = signal
