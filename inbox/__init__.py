"""One effect per event, command, request and call."""

import outbox as _outbox

if getattr(_outbox, "__distribution__", None) != "oncebox":
    raise ImportError(
        f"the module 'outbox' at {_outbox.__file__} belongs to another package: uninstall that one "
        "(pip uninstall outbox), then this one anew (pip install --force-reinstall oncebox)"
    )
