"""`found.plot`: the figures of the report, one at a time."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from ..errors import InvalidInput
from ..result import Extraction
from . import errors, geometry, responses, star


@dataclass(frozen=True)
class Plots:
    """Plotly figures of a result; in a notebook they show themselves."""

    found: Extraction

    def star(self) -> go.Figure:
        """The planar Fourier power with the recovered rays over it, and a slider over planes."""
        planes = star.shown_planes(self.found)
        if not planes:
            raise InvalidInput(
                f"a star needs a feature and a plane; this result has {len(self.found.features)} features in "
                f"{self.found.dim} dimensions"
            )
        return star.star(self.found, planes)

    def responses(self) -> go.Figure:
        """The strongest responses, with bands of two standard errors and their kinks."""
        return responses.responses(self.found)

    def geometry(self) -> go.Figure:
        """|cos| between directions, the angles between them, their number against the dimensions."""
        return geometry.geometry(self.found)

    def errors(self) -> go.Figure:
        """The certificate's queries: error against radius, along each ray, predicted against asked."""
        if self.found.checks is None:
            raise InvalidInput("this result was saved without its certificate's queries; extract or verify it again")
        return errors.errors(self.found)
