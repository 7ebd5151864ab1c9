"""The wheel has a C library in it and no extension module: one for every Python, and for one platform."""

import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Platform(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", os.environ.get("SKEPKV_PLATFORM") or super().get_tag()[2]


setup(distclass=Platform, cmdclass={"bdist_wheel": Wheel})
