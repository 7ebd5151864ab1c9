"""What happens to a store's blocks."""

from __future__ import annotations

import ctypes as c
from typing import Iterator, NamedTuple

from ._library import EventStruct, array, library

KINDS = (
    "",
    "accepted",
    "committed",
    "evicted",
    "moved",
    "damaged",
    "deleted",
    "purged",
    "gap",
    "stored",
    "device",
)


class Event(NamedTuple):
    """One thing that happened to one block. `kind` is one of `accepted`, `committed`, `evicted`, `moved`, `damaged`,
    `deleted`, `purged` (of `namespace`, 0: of several), `stored` (of a snapshot), `gap` (this reader was too slow for
    `lost` events: take a snapshot) and `device` (of the drive `depth`). `tier` is where the block is from now on, as of
    Space.exists."""

    epoch: int
    seq: int
    time: float
    kind: str
    namespace: int
    key: bytes
    parent: bytes | None
    depth: int
    tier: int
    reason: int
    salted: bool
    lost: int


class Events:
    """A stream of events, which iterates without an end, and is a context manager."""

    def __init__(self, store: int, after: tuple[int, int] | None, snapshot: bool) -> None:
        number = c.c_uint64()
        epoch, seq = (after[0], after[1] + 1) if after is not None else (0, 0)
        library().call("events_open", store, epoch, seq, snapshot, c.byref(number))
        self._number, self._room = number.value, array(EventStruct, 256)()

    def next(self, timeout: float = 1.0) -> list[Event]:
        """Waits for events, so many seconds at most, and takes some; none where none came."""
        got = c.c_uint32()
        ms = max(1, int(timeout * 1000))
        library().call("events_next", self._number, ms, self._room, len(self._room), c.byref(got))
        return [_event(self._room[i]) for i in range(got.value)]

    def __iter__(self) -> Iterator[Event]:
        while True:
            yield from self.next()

    def close(self) -> None:
        number, self._number = self._number, 0
        if number and not library().forked():
            library().call("events_close", number)

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _event(e: EventStruct) -> Event:
    return Event(
        e.epoch,
        e.seq,
        e.unix_ns / 1e9,
        KINDS[e.kind] if e.kind < len(KINDS) else "event",
        e.namespace,
        bytes(e.key),
        bytes(e.parent) if e.has_parent else None,
        e.depth,
        e.tier,
        e.reason,
        e.salted != 0,
        e.lost,
    )
