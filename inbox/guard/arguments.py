"""Which call it is: the key of a call, from the function's name and its bound arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from inbox.claims.key import store_key
from inbox.errors import InvalidKey
from inbox.guard.canonical import Receiver, canonical

KeyFunction = Callable[..., str]

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Keys:
    """Of the calls of one function. `f(5)`, `f(x=5)` and `f(5, y=<default>)` have the same one."""

    def __init__(self, function: Callable[..., Any], name: str, key: KeyFunction | None) -> None:
        self._scope = f"function:{name}"
        self._key = key
        self._receives = _Receivers(function)
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self._simple = all(it.kind in NAMED for it in parameters)
        self._positional = tuple(it.name for it in parameters if it.kind in POSITIONAL)
        self._names = frozenset(it.name for it in parameters)
        self._defaults = {it.name: it.default for it in parameters if it.default is not it.empty}
        self._required = self._names - self._defaults.keys()

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The key in the store. TypeError if the function cannot be called like this."""
        values = self._bound(args, kwargs)
        if self._key is not None:
            return store_key(self._given(self._key, values), scope=self._scope)
        if self._positional:
            first = self._positional[0]
            if self._receives(values[first]):
                values[first] = Receiver(values[first])
        return store_key(canonical(values), scope=self._scope)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        # As `bind` does it, at a fraction of its cost; to it goes whatever is not plain and right.
        if self._simple and len(args) <= len(self._positional):
            given = dict(zip(self._positional, args, strict=False)) | kwargs
            keys = given.keys()
            if len(given) == len(args) + len(kwargs) and self._required <= keys <= self._names:
                return self._defaults | given
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def _given(self, key: KeyFunction, values: dict[str, Any]) -> str:
        bound = inspect.BoundArguments(self._signature, values)
        found = key(*bound.args, **bound.kwargs)
        if not isinstance(found, str):
            raise InvalidKey("key", f"the function given as key= must return a str, not {found!r}")
        return found


class _Receivers:
    """Tells whether a first argument is the `self` or `cls` of a method.

    By the class in whose body the function was defined, not by how it was called: `obj.f(1)`,
    `Class.f(obj, 1)` and a call from under another decorator are the same call.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._module = function.__module__
        self._class, _, self._name = function.__qualname__.rpartition(".")
        self._in_class = bool(self._class) and not self._class.endswith("<locals>")
        self._known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()

    def __call__(self, value: object) -> bool:
        if not self._in_class:
            return False
        kind = value if isinstance(value, type) else type(value)
        if kind not in self._known:
            self._known[kind] = any(map(self._defines, kind.__mro__))
        return self._known[kind]

    def _defines(self, kind: type) -> bool:
        if (kind.__module__, kind.__qualname__) != (self._module, self._class):
            return False
        return not isinstance(vars(kind).get(self._name), staticmethod)
