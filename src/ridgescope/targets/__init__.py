"""Targets whose truth is known: planted sums of features, and the named standard cases."""

from .cases import CASES, Case
from .planted import KINDS, SMOOTH, Planted, planted

__all__ = ["CASES", "KINDS", "SMOOTH", "Case", "Planted", "planted"]
