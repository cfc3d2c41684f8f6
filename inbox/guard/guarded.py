"""What `@idempotent` makes of a function: something that is called like it, and can be asked."""

from __future__ import annotations

from functools import update_wrapper
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from inbox.guard.call import call, call_sync
from inbox.guard.guard import Guard
from inbox.guard.outcome import CallRecord

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class Wrapper:
    """Stands for the function in all that `call`, `inspect` and `forget` do not cover: its name,
    its signature, whether it is async, how it is pickled."""

    def __init__(self, guard: Guard) -> None:
        update_wrapper(self, guard.function)  # type: ignore[arg-type]  # called by subclasses
        self._guard = guard
        self._receiver: tuple[Any, ...] = ()

    def bound_to(self, receiver: object) -> Self:
        """The same for the method of an object: whoever calls it leaves the object out."""
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._receiver = (receiver,)
        bound.__wrapped__ = MethodType(self._guard.function, receiver)  # type: ignore[attr-defined]
        return bound

    def __getattr__(self, name: str) -> Any:
        # Its code too: that is how `inspect.iscoroutinefunction` knows.
        if name == "_guard":  # not made yet, by `copy`
            raise AttributeError(name)
        return getattr(self._guard.function, name)

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._receiver:
            return getattr, (*self._receiver, self._guard.function.__name__)
        return self._guard.function.__qualname__

    def __repr__(self) -> str:
        return f"<idempotent {self._guard.name}>"

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self._guard.key_of(self._receiver + args, kwargs)


class Guarded(Wrapper, Generic[P, R]):
    """A guarded function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = call_sync(self._guard, self._receiver + args, kwargs)
        return result

    def inspect(self, /, *args: P.args, **kwargs: P.kwargs) -> CallRecord | None:
        """What is known of the call with these arguments; None if nothing is, or not any more."""
        record = self._guard.store.sync.peek(self._key(args, kwargs))
        return None if record is None else self._guard.results.show(record)

    def forget(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Let the call with these arguments run again, whatever came of it, or runs. False if
        nothing was known of it."""
        return self._guard.store.sync.forget(self._key(args, kwargs))


class AsyncGuarded(Wrapper, Generic[P, R]):
    """A guarded async function."""

    async def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await call(self._guard, self._receiver + args, kwargs)
        return result

    async def inspect(self, /, *args: P.args, **kwargs: P.kwargs) -> CallRecord | None:
        """What is known of the call with these arguments; None if nothing is, or not any more."""
        record = await self._guard.store.peek(self._key(args, kwargs))
        return None if record is None else self._guard.results.show(record)

    async def forget(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Let the call with these arguments run again, whatever came of it, or runs. False if
        nothing was known of it."""
        return await self._guard.store.forget(self._key(args, kwargs))


# Functions bind to the object that they are asked from. mypy takes static and class methods for
# plain functions here: it is right about static ones asked from the class, and about class methods
# asked from an object.


class GuardedFunction(Guarded[P, R]):
    @overload
    def __get__(self, instance: None, owner: Any, /) -> Self: ...
    @overload
    def __get__(
        self: GuardedFunction[Concatenate[Any, Q], R], instance: object, owner: Any, /
    ) -> Guarded[Q, R]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Any:
        return self if instance is None else self.bound_to(instance)


class AsyncGuardedFunction(AsyncGuarded[P, R]):
    @overload
    def __get__(self, instance: None, owner: Any, /) -> Self: ...
    @overload
    def __get__(
        self: AsyncGuardedFunction[Concatenate[Any, Q], R], instance: object, owner: Any, /
    ) -> AsyncGuarded[Q, R]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Any:
        return self if instance is None else self.bound_to(instance)


class PerClass:
    """A guarded class method: bound to whichever class it is asked from."""

    def __init__(self, guarded: Wrapper) -> None:
        self._guarded = guarded

    def __get__(self, instance: object, owner: Any = None, /) -> Any:
        return self._guarded.bound_to(type(instance) if owner is None else owner)
