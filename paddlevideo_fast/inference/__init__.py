"""Predicting videos without labels."""
