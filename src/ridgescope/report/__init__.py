"""The figures of a result, and the report as one HTML page."""

from .page import page, write_report
from .plots import Plots

__all__ = ["Plots", "page", "write_report"]
