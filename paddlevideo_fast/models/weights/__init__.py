"""Weights: reading them safely and loading them into models."""
