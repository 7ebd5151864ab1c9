"""What decides whether two processes find each other's blocks, told to the server for `skep doctor keys`.

Of each namespace that a connector uses there is a document: the engine, the model, and all that keys and bytes are by.
It is logged, and it is a block in the namespace skepkv/keys, one for each set of values, so there are as many as there
are settings and not as there are processes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from typing import Any

from . import Store, errors, key

log = logging.getLogger("skepkv")

SPACE = "skepkv/keys"
_FORMAT = 1
_WITHIN = 5.0  # seconds
_AGAIN = 10.0  # seconds, where the server is not there
_TRIES = 60
_MOST = 64 << 10  # bytes of a document


def tell(store: Store, tenant: str, space: str, about: dict[str, Any]) -> None:
    """Logs the document and puts it, beside the caller. What goes wrong is nobody's trouble."""
    values = json.dumps({"space": space, "about": about}, sort_keys=True, default=str)
    now = {"format": _FORMAT, "host": socket.gethostname(), "pid": os.getpid(), "seen": int(time.time())}
    document = json.dumps({**json.loads(values), **now}, sort_keys=True)
    if len(document) > _MOST:
        return
    log.info("skep: keys %s", document)

    def put() -> None:
        keys = store.namespace(SPACE, tenant=tenant, lazy=True)
        for _ in range(_TRIES):
            try:
                keys.put([key(b"skepkv keys", values.encode())], [document.encode()], timeout=_WITHIN)
                return
            except errors.SkepError as e:
                if e.code in (errors.CLOSED, errors.UNSUPPORTED) or not store._number:  # it was closed
                    return
                log.debug("skep: keys are not told of yet: %s", e)
            time.sleep(_AGAIN)

    threading.Thread(target=put, daemon=True, name="skepkv-keys").start()
