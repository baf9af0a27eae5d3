"""Lazy imports: names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType


def load_late(package: str, home: Mapping[str, str], subpackages: tuple[str, ...] = ()) -> None:
    """Make the keys of `home` attributes of `package`, each imported at first use from the module that is its value.

    `subpackages` are also imported at first use. Python sets the attribute `match` of a package when its module `match`
    is imported; if `home` takes the name `match` from that module, the attribute is set to that name instead.
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
