"""The wheel has a C library in it and no extension module: one for every Python, and for one platform.
Its version is that of the programs of the same commit, as Python writes versions."""

import os
import re

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Platform(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", os.environ.get("SKEPKV_PLATFORM") or super().get_tag()[2]


def python(version: str) -> str:
    """A version of Go's modules as Python writes it: a commit after a release is of the next one's development."""
    pre = r"(?:-(rc|beta|alpha)\.(\d+))?"
    commit = r"(?:[-.](?:0\.)?(\d{14})-([0-9a-f]{12}))?"
    m = re.fullmatch(r"v(\d+\.\d+\.\d+)" + pre + commit + r"(\+dirty)?", version)
    if not m:
        return "0.0.0.dev0"
    release, kind, number, at, commit, dirty = m.groups()
    pre = {"rc": "rc", "beta": "b", "alpha": "a"}[kind] + number + (".post1" if at else "") if kind else ""
    local = ".".join(filter(None, (commit, "dirty" if dirty else "")))
    return release + pre + (f".dev{at}" if at else "") + (f"+{local}" if local else "")


setup(version=python(os.environ.get("SKEPKV_VERSION", "")), distclass=Platform, cmdclass={"bdist_wheel": Wheel})
