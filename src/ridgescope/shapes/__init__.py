"""Closed forms of responses: families, fitting, naming."""
