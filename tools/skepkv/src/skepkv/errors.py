"""What a call raises: SkepError, with the code of docs/reference/errors.md and its text."""

from __future__ import annotations

__all__ = ["Forked", "Invalid", "NotReleased", "SkepError", "name_of"]

_NAMES = (
    "error",
    "invalid",
    "not found",
    "closed",
    "full",
    "over quota",
    "not admitted",
    "damaged",
    "read only",
    "store failed",
    "lease expired",
    "other format",
    "foreign device",
    "missing device",
    "locked",
    "stopped",
    "deadline passed",
    "conflict",
    "memory not released",
    "unsupported",
    "device failed",
    "evicted",
    "claimed by the caller",
    "out of memory budget",
    "unavailable",
    "overloaded",
    "denied",
)

OTHER, INVALID, NOT_FOUND, CLOSED, LEASE_EXPIRED = 0, 1, 2, 3, 10
DEADLINE, NOT_RELEASED, UNSUPPORTED, UNAVAILABLE, OVERLOADED, DENIED = 16, 18, 19, 24, 25, 26


def name_of(code: int) -> str:
    """The name of a code, as in docs/reference/errors.md."""
    return _NAMES[code] if 0 <= code < len(_NAMES) else f"error {code}"


class SkepError(Exception):
    """A call failed. `code` is the kind of error, `text` says of what."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{name_of(code)}: {text}")
        self.code, self.text = code, text

    def __reduce__(self):
        return type(self), (self.code, self.text)


class Invalid(SkepError):
    """An argument is outside its limits; nothing was changed."""


class NotReleased(SkepError):
    """A drive may still use memory that it was given. The package keeps that memory alive until the store is closed or,
    where closing fails, until the process ends."""


class Forked(SkepError):
    """This process is forked from one that had loaded the library, which loads with the first store: no call works
    here, and none will. Spawn the process, or open the first store after the fork."""


def raise_for(code: int, text: str, forked: bool) -> None:
    """Raises what a code means."""
    if forked:
        raise Forked(code, text)
    raise {1: Invalid, NOT_RELEASED: NotReleased}.get(code, SkepError)(code, text)
