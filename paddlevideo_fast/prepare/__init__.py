"""Preparing data sets: frames, lists and the embedded demo videos."""
