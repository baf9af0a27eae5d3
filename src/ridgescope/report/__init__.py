"""Figures and the single-file page."""

from .page import page, write_report
from .plots import Plots

__all__ = ["Plots", "page", "write_report"]
