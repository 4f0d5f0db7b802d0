"""Ctrl-C and SIGTERM -> a wish to stop, heard between two steps."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stop_wishes() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM; the second interrupts at once, a third ends the process.

    Workers end with the process, whichever way it ends.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask_to_stop(number: int, frame: object) -> None:
        if stop.is_set():
            for one in earlier:
                signal.signal(one, signal.SIG_DFL)
            raise KeyboardInterrupt
        stop.set()

    earlier = {
        number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
