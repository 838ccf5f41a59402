"""The one training loop and what it is built from."""
