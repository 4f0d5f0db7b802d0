"""One mapping's values, each taken once and checked, and named in what goes wrong."""

import math
from collections.abc import Mapping
from typing import Any

from attnprof.errors import UsageError, nearest


class Fields:
    """Takes the values of a mapping that came from ``origin``; every refusal names both."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self._values = values
        self._origin = origin
        self._taken: list[str] = []

    def _take(self, key: str) -> Any:
        self._taken.append(key)
        return self._values.get(key)

    def wrong(self, key: str, wanted: str) -> UsageError:
        value = self._values.get(key)
        what = f"{key} is missing" if key not in self._values else f"{key} is {value!r}"
        return UsageError(f"{self._origin}: {what}", f"write {wanted}")

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "a text")
        return value.strip()

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of texts")
        return tuple(value)

    def one_of(self, key: str, known: tuple[str, ...], *, default: str | None = None) -> str:
        value = self.text(key, default=default)
        if value not in known:
            raise UsageError(f"{self._origin}: {key} is {value!r}", nearest(value, known))
        return value

    def number(
        self, key: str, *, low: float = 0.0, high: float = math.inf, needed: bool = True
    ) -> float | None:
        value = self._take(key)
        if value is None and key not in self._values and not needed:
            return None
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not low <= value <= high or not math.isfinite(value):
            bound = f" to {high:g}" if math.isfinite(high) else " or more, such as 3.35e+12"
            raise self.wrong(key, f"a number of {low:g}{bound}")
        return float(value)

    def count(
        self, key: str, *, low: int = 1, high: int = 2**60, needed: bool = True
    ) -> int | None:
        value = self._take(key)
        if value is None and key not in self._values and not needed:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return value

    def table(self, key: str) -> dict[str, Any]:
        value = self._take(key)
        if value is None and key not in self._values:
            return {}
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, "a mapping")
        return value

    def tables(self, key: str) -> list[dict[str, Any]]:
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "a list of mappings")
        return value

    def done(self) -> None:
        """Refuse the keys that nothing asked for: a misspelt key would be a silent default."""
        for key in self._values:
            if key not in self._taken:
                raise UsageError(
                    f"{self._origin}: unknown key {key!r}", nearest(str(key), self._taken)
                )
