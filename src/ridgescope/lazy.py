"""Names of a package that are imported when first used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType


def load_late(package: str, home: Mapping[str, str], subpackages: tuple[str, ...] = ()) -> None:
    """Give `package` the names of `home`, each from the module that stands there, and its `subpackages`, all when first
    asked for.

    Importing the module `match` sets the attribute `match` of its package; where `home` has a name `match` from that
    module, the attribute is that instead, whoever was first.
    """

    class Package(ModuleType):
        def __getattr__(self, name: str) -> object:
            if name in subpackages:
                return import_module(f".{name}", package)
            if name not in home:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            value = getattr(import_module(f".{home[name]}", package), name)
            setattr(self, name, value)
            return value

        def __setattr__(self, name: str, value: object) -> None:
            if isinstance(value, ModuleType) and home.get(name) == name:
                value = getattr(value, name)
            super().__setattr__(name, value)

        def __dir__(self) -> list[str]:
            names: list[str] = self.__dict__["__all__"]
            return sorted(names)

    sys.modules[package].__class__ = Package
