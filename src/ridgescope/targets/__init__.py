"""Targets whose truth is known: planted sums of features, and the named standard cases."""

from .planted import CASES, KINDS, SMOOTH, Case, Planted, planted

__all__ = ["CASES", "KINDS", "SMOOTH", "Case", "Planted", "planted"]
