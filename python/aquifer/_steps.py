"""Counters of functions that run in steps: generators, ``async`` functions and ``async`` generators."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar

from aquifer import mr as _mr
from aquifer._statistics import Statistics

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Call:
    """One call, whose steps have a scope each."""

    def __init__(self, add: Callable[[Statistics], None]) -> None:
        self._add = add
        self._counted: Statistics | None = None

    def step(self, run: Callable[[Any], Any], argument: Any) -> Any:
        """Runs a step in a scope, where the current resource is counted."""
        resource = _mr.get_current_device_resource()
        is_counted = resource._push_counters() is not None
        try:
            return run(argument)
        finally:
            # A traceback keeps this frame, and an exception that was thrown in would be a cycle with it.
            del run, argument
            popped = resource._pop_counters() if is_counted else None
            if popped is not None:
                self._fold(Statistics(*popped))

    def _fold(self, later: Statistics) -> None:
        """Adds a later step, as a scope is added to the one around it."""
        so_far = self._counted or Statistics(0, 0, 0, 0, 0, 0)
        self._counted = Statistics(
            current_bytes=so_far.current_bytes + later.current_bytes,
            current_count=so_far.current_count + later.current_count,
            peak_bytes=max(so_far.peak_bytes, so_far.current_bytes + later.peak_bytes),
            peak_count=max(so_far.peak_count, so_far.current_count + later.peak_count),
            total_bytes=so_far.total_bytes + later.total_bytes,
            total_count=so_far.total_count + later.total_count,
        )

    def end(self) -> None:
        """Adds the record."""
        if self._counted is not None:
            self._add(self._counted)

    def steps(self, body: Any) -> Generator[Any, Any, Any]:
        """The steps of a generator or a coroutine, as ``yield from`` has them."""
        run: Any = body.send
        argument: Any = None
        try:
            while True:
                try:
                    yielded = self.step(run, argument)
                except StopIteration as stop:
                    return stop.value
                finally:
                    run = argument = None
                try:
                    run, argument = body.send, (yield yielded)
                except BaseException as error:  # GeneratorExit, too.
                    run, argument = body.throw, error
        finally:
            # As in `step`: what the body holds goes when its caller lets go.
            del body, run, argument


class _Awaited:
    """An awaitable, whose steps are a call's."""

    def __init__(self, call: _Call, body: Any) -> None:
        self._call = call
        self._body = body

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._call.steps(self._body)


def counted_by_steps(function: _Function, add: Callable[[Statistics], None]) -> _Function | None:
    """A function of the same kind, each call of which adds what its body counted. None of a plain function."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            call = _Call(add)
            try:
                return (yield from call.steps(function(*args, **kwargs)))
            finally:
                call.end()

        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE:
            # Of `types.coroutine`, which can be awaited.
            return types.coroutine(generator)  # type: ignore[no-any-return]
        return generator  # type: ignore[return-value]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            call = _Call(add)
            try:
                return await _Awaited(call, function(*args, **kwargs))
            finally:
                call.end()

        return coroutine  # type: ignore[return-value]
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            call, body = _Call(add), function(*args, **kwargs)
            step: Any = body.asend(None)
            try:
                while True:
                    try:
                        yielded = await _Awaited(call, step)
                    except StopAsyncIteration:
                        return
                    finally:
                        step = None
                    try:
                        step = body.asend((yield yielded))
                    except BaseException as error:  # GeneratorExit, too.
                        step = body.athrow(error)
            finally:
                call.end()

        return async_generator  # type: ignore[return-value]
    return None
