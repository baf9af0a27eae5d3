"""`found.plot`: the figures of the report, one at a time."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from ..errors import InvalidInput
from ..result import Extraction
from . import gains, geometry, queries, responses, star


@dataclass(frozen=True)
class Plots:
    """The figures of a result, as `found.plot`. Each method returns a Plotly figure, which a notebook displays.

    Examples
    --------
    >>> found.plot.responses().show()
    >>> found.plot.star().write_html("star.html")
    """

    found: Extraction
    """The result that is drawn."""

    def star(self) -> go.Figure:
        """Return the Fourier power in planes with the recovered rays over it, and a slider over the planes.

        Raises
        ------
        InvalidInput
            If the result has no features, or one input dimension.
        """
        planes = star.shown_planes(self.found)
        if not planes:
            raise InvalidInput(
                f"a star needs a feature and a plane; this result has {len(self.found.features)} features in "
                f"{self.found.dim} dimensions"
            )
        return star.star(self.found, planes)

    def responses(self) -> go.Figure:
        """Return the strongest responses, at most 48, with bands of two standard errors and their kinks."""
        return responses.responses(self.found)

    def gains(self) -> go.Figure:
        """Return the gains t of the strongest gated features, at most 48, with bands of two standard errors.

        Those of features that write to several outputs are drawn along their output vectors.

        Raises
        ------
        InvalidInput
            If no feature is gated.
        """
        return gains.gains(self.found)

    def geometry(self) -> go.Figure:
        """Return |cos| between directions, the angles between pairs, and the numbers of features and dimensions."""
        return geometry.geometry(self.found)

    def errors(self) -> go.Figure:
        """Return the errors of the certificate's queries: by radius, along each feature, and model against answers.

        Raises
        ------
        InvalidInput
            If the result was saved without the certificate's queries.
        """
        if self.found.checks is None:
            raise InvalidInput("this result was saved without its certificate's queries; extract or verify it again")
        return queries.errors(self.found)
