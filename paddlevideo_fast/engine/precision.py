"""Mixed precision: where to compute in half, and how to scale, unscale, clip and step in the right order."""

from __future__ import annotations

import logging
from collections.abc import Callable

import paddle

from paddlevideo_fast.config import AmpConfig

logger = logging.getLogger("paddlevideo_fast")


class Precision:
    """Forward passes and optimiser steps in the precision the config asks for.

    On the CPU Paddle has no mixed precision: the setting has no effect there and says so.

    Args:
        config: The ``amp`` section.
        scaler: Loss scaler; None makes Paddle's own where float16 needs one.
    """

    def __init__(self, config: AmpConfig, scaler: paddle.amp.GradScaler | None = None):
        self.config = config
        self.active = config.enabled and paddle.device.is_compiled_with_cuda() and "gpu" in paddle.device.get_device()
        if config.enabled and not self.active:
            logger.warning("amp.enabled has no effect on %s: everything runs in float32", paddle.device.get_device())
        if scaler is None and self.active and config.dtype == "float16":
            scaler = paddle.amp.GradScaler(init_loss_scaling=config.init_loss_scaling)
        self.scaler = scaler

    @property
    def description(self) -> str:
        """What runs, for the banner."""
        if not self.active:
            return "float32"
        return f"{self.config.dtype} {self.config.level}" + (", loss scaling" if self.scaler else "")

    def prepare(self, model, optimizer):
        """Returns model and optimiser decorated for O2: half weights with float32 master copies."""
        if self.active and self.config.level == "O2":
            return paddle.amp.decorate(
                model, optimizer, level="O2", dtype=self.config.dtype, master_weight=True, save_dtype="float32"
            )
        return model, optimizer

    def wrap(self, model: Callable) -> Callable:
        """Returns a callable that runs the model in this precision and gives back float32 outputs."""
        if not self.active:
            return model

        def forward(*inputs):
            with paddle.amp.auto_cast(
                custom_white_list=self.config.white_list or None,
                custom_black_list=self.config.black_list or None,
                level=self.config.level,
                dtype=self.config.dtype,
            ):
                return model(*inputs)

        return forward

    def scale(self, loss: paddle.Tensor) -> paddle.Tensor:
        """Returns the loss to call backward on."""
        return self.scaler.scale(loss) if self.scaler else loss

    def step(self, optimizer, parameters: list[paddle.Tensor], clip_norm: float | None) -> bool:
        """Unscales, clips by global norm, steps and clears the gradients.

        Returns:
            False if the scaler found a gradient that is not finite and left the weights alone.
        """
        if self.scaler:
            self.scaler.unscale_(optimizer)
        if clip_norm is not None:
            paddle.nn.utils.clip_grad_norm_(parameters, clip_norm)
        taken = True
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
            taken = not bool(self.scaler._found_inf)  # Paddle offers no public name for it
        else:
            optimizer.step()
        optimizer.clear_grad()
        return taken
