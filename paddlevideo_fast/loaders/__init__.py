"""Loaders: they turn a dataset and a sampler into batches on the device."""
