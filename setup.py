"""What pyproject.toml cannot say yet: a C file that is compiled where a compiler exists and left out elsewhere."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("netcl.core.backend._send", ["netcl/core/backend/_send.c"], optional=True)])
