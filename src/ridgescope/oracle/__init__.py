"""What can be asked. Everything here turns something callable into rows of checked numbers."""

from .base import Oracle, Repeatability, as_oracle, rowwise

__all__ = ["Oracle", "Repeatability", "as_oracle", "rowwise"]
