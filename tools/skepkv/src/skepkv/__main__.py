"""python -m skepkv doctor URL: does what an engine does, step by step, and says what works."""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import sys
import tempfile
import time

import skepkv

from ._library import socket_of
from .errors import DENIED

SIZE = 4 << 20
PIECE = 1 << 20  # of memory that is registered


def copied(store: skepkv.Store, url: str) -> str | None:
    """Why an engine's own memory, a mapping of a file in /dev/shm, is not shared with the server, and what to do; None:
    it is."""
    try:
        with tempfile.TemporaryFile(dir="/dev/shm") as f:
            f.truncate(PIECE)
            memory = mmap.mmap(f.fileno(), PIECE)
            store.register(memory, fd=f.fileno(), timeout=5.0).free(5.0)
    except OSError as e:
        return f"not tried: {e}"
    except skepkv.SkepError as e:
        do = ""
        if e.code == DENIED:
            do = f": run the server and the engine as one user. This is user {os.geteuid()}"
            with contextlib.suppress(OSError):
                do += f", the socket's is {os.stat(socket_of(url)).st_uid}"
        return f"memory that an engine has already is copied once: {e}{do}"
    return None


def doctor(url: str, token: str, tls: str | None, tenant: str) -> int:
    def say(word: str, what: str, about: object) -> None:
        print(f"{word:4}  {what:9}  {about}", flush=True)

    step = "library"
    try:
        from ._library import library

        say("ok", step, f"{library().path}, interface {skepkv.version()}, package {skepkv.__version__}")
        step = "server"
        with skepkv.connect(url, token=token, tls=tls) as store:
            say("ok", step, f"{url}, {'with a token' if token else 'without a token'}")
            step = "namespace"
            space = store.namespace("skepkv/doctor", tenant=tenant)
            say("ok", step, "skepkv/doctor")
            step = "direct"
            why = store.direct()
            say(
                "ok" if why is None else "warn",
                step,
                "drives read into this process's memory" if why is None else f"no: {why}",
            )
            if why is None:
                step = "engine's"
                why = copied(store, url)
                say(
                    "ok" if why is None else "warn",
                    step,
                    "drives read into memory that an engine has already" if why is None else why,
                )
            step = "4 MiB"
            key, block, back = [skepkv.key(os.urandom(16))], os.urandom(SIZE), bytearray(SIZE)
            began = time.perf_counter()
            stored = space.put(key, [block])
            put = time.perf_counter()
            if not stored:
                say("fail", step, f"not stored: {skepkv.errors.name_of(stored.reasons[0])}")
                return 1
            restored = space.restore(key, [back])
            got = time.perf_counter()
            if not restored or back != block:
                say("fail", step, f"not restored: {skepkv.errors.name_of(restored.codes[0])}")
                return 1
            space.delete(key)
            say("ok", step, f"there in {1000 * (put - began):.1f} ms, back in {1000 * (got - put):.1f} ms")
    except (ImportError, skepkv.SkepError) as e:
        say("fail", step, e)
        return 1
    return 0


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m skepkv", description="looks at a server as an engine would")
    p.add_argument("command", choices=["doctor"])
    p.add_argument("url", help="unix:/path or host:port, or several with commas between them")
    p.add_argument("--token-file", help="file with the token; the environment's SKEP_TOKEN does too")
    p.add_argument("--tls-ca", help="file of who signs the server's certificate, or system; not given: no TLS")
    p.add_argument("--tenant", default="", help="whose namespace to use; the credential's where it is not given")
    a = p.parse_args()
    token = os.environ.get("SKEP_TOKEN", "")
    if a.token_file:
        with open(a.token_file, encoding="utf-8") as f:
            token = f.read().strip()
    return doctor(a.url, token, a.tls_ca, a.tenant)


if __name__ == "__main__":
    sys.exit(main())
