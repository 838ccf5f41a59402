"""Fast video understanding on PaddlePaddle: one config, one training loop, every acceleration a key."""

__version__ = "0.1.0"
