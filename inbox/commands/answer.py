"""How the result of a handler is saved, and given again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from outbox import codec


class Answer:
    """`dump` makes of a result what JSON can say; `load` makes the result of that.

    Left out, a result with a `to_dict()` is saved as that gives it and replayed as a dict; any
    other is saved as it is, and replayed as the type that the function says it returns.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        dump: Callable[[Any], Any] | None,
        load: Callable[[Any], Any] | None,
    ) -> None:
        self._function = function
        self._dump = dump
        self._load = load

    def dump(self, result: Any) -> Any:
        if self._dump is not None:
            return self._dump(result)
        return result.to_dict() if hasattr(result, "to_dict") else result

    def load(self, response: Any) -> Any:
        if self._load is not None:
            return self._load(response)
        wanted = self._wanted()
        if self._dump is not None or hasattr(wanted, "to_dict"):
            return response
        return codec.decode(msgspec.json.encode(response), codec.JSON, wanted)

    def _wanted(self) -> Any:
        try:
            # Not when decorated: the types may be defined further down.
            return get_type_hints(self._function).get("return", Any)
        except NameError:  # imported for type checkers only
            return Any
