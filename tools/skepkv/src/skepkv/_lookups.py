"""Whether keys are there, for an engine's scheduler, which does not wait: a thread asks."""

from __future__ import annotations

import threading
import time
from typing import Callable, Iterable, Sequence

MOST_WAITING = 65536  # keys that are not asked for yet; more are misses at once


class _Verdict:
    __slots__ = ("asked", "there", "requests")

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.there: bool | None = None  # None: not known yet
        self.requests: set[str] = set()


class Lookups:
    """What is known of keys that requests asked for. They are kept until the last of these requests is finished."""

    def __init__(self, ask: Callable[[Sequence[bytes]], dict[bytes, bool]], within: float) -> None:
        self._ask, self.within = ask, within
        self._cond = threading.Condition()  # guards what follows
        self._verdicts: dict[bytes, _Verdict] = {}
        self._of: dict[str, set[bytes]] = {}
        self._step: list[bytes] = []  # keys that this step asked for first
        self._waiting: dict[bytes, None] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="skepkv-lookup")
        self._thread.start()

    def get(self, name: bytes, request: str) -> bool | None:
        """Whether a key is there; None: that will be known soon."""
        with self._cond:
            verdict = self._verdicts.get(name)
            if verdict is None:
                verdict = self._verdicts[name] = _Verdict()
                self._step.append(name)
            verdict.requests.add(request)
            self._of.setdefault(request, set()).add(name)
            if verdict.there is None and time.monotonic() - verdict.asked >= self.within:
                return False
            return verdict.there

    def flush(self) -> None:
        """Has the server asked for the step's keys."""
        with self._cond:
            step, self._step = self._step, []
            for name in step:
                verdict = self._verdicts.get(name)
                if verdict is None or verdict.there is not None:
                    continue
                if self._closed or len(self._waiting) >= MOST_WAITING:
                    verdict.there = False
                else:
                    self._waiting[name] = None
            self._cond.notify_all()

    def mark(self, names: Iterable[bytes], there: bool) -> None:
        with self._cond:
            for name in names:
                verdict = self._verdicts.get(name)
                if verdict is not None:
                    verdict.there = there

    def forget(self, request: str) -> None:
        with self._cond:
            for name in self._of.pop(request, ()):
                verdict = self._verdicts[name]
                verdict.requests.discard(request)
                if not verdict.requests:
                    del self._verdicts[name]
                    self._waiting.pop(name, None)

    def close(self) -> None:
        with self._cond:
            self._closed = True
            self._waiting.clear()
            self._cond.notify_all()

    def join(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while True:
            with self._cond:
                self._cond.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                names = list(self._waiting)
                self._waiting.clear()
            there = self._ask(names)
            with self._cond:
                for name in names:
                    verdict = self._verdicts.get(name)
                    if verdict is not None and verdict.there is None:
                        verdict.there = there.get(name, False)
