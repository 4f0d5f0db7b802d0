"""Ctrl-C and SIGTERM -> a wish to stop, heard between two steps."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stop_wishes() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM; the second one ends the process, and workers with it."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask_to_stop(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    earlier = {
        number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
