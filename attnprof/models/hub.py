"""A hub id -> the values of its ``config.json``, when the hub library and the network are there."""

import os
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attnprof.errors import UsageError, to_install
from attnprof.models.config import read_json

TIMEOUT_S = 2.0


def fetch_config(hub_id: str) -> dict[str, Any]:
    """The configuration of a model on the hub; one fetched before is read from disk.

    Raises:
        UsageError: The hub library is missing, the hub cannot be reached within a few seconds,
            or it has no such model.
    """
    # The library reads these when it is imported; by default it retries for a minute.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "2")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "2")
    try:
        from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    except ImportError:
        raise UsageError(
            f"{hub_id!r} is no profile, and no hub library is installed to fetch it",
            f"give the path of its config.json, or: {to_install('hub')}",
        ) from None
    try:
        cached = try_to_load_from_cache(hub_id, "config.json")
    except ValueError:
        raise UsageError(
            f"{hub_id!r} is neither a profile nor an id of the hub",
            "give the path of its config.json, or the name of a profile",
        ) from None
    if isinstance(cached, str):
        return read_json(Path(cached))
    if not _reachable(constants.ENDPOINT):
        raise UsageError(
            f"{hub_id!r} is no profile, and the hub cannot be reached",
            "give the path of its config.json, or the name of a profile",
        )
    try:
        path = hf_hub_download(hub_id, "config.json")
    except Exception as error:  # noqa: BLE001 - the library raises many kinds, of its own and others
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise UsageError(
            f"cannot fetch {hub_id!r}: {reason}", "give the path of its config.json"
        ) from None
    return read_json(Path(path))


def _reachable(endpoint: str) -> bool:
    """Whether the hub (or the proxy before it) takes a connection within the time allowed."""
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    parts = urlsplit(proxy or endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connected = threading.Event()

    def connect() -> None:
        try:
            with socket.create_connection((parts.hostname or "", port), timeout=TIMEOUT_S):
                connected.set()
        except OSError:
            return

    # A thread, because looking a name up has no timeout of its own.
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(TIMEOUT_S + 1)
    return connected.is_set()
