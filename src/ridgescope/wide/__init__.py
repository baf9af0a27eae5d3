"""Layers with more features than a joint fit can handle."""
