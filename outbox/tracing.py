"""The W3C trace context of the caller, if the program uses OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def trace_headers() -> Mapping[str, str]:
    """`traceparent` and `tracestate` of the current span; nothing when there is none.

    OpenTelemetry is looked for among the loaded modules, never imported: a program that has not
    loaded it has no current span, and must not pay for it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier
