"""An exponential moving average of a model's weights."""

from __future__ import annotations

import paddle


class Ema:
    """Keeps ``average = decay * average + (1 - decay) * weights`` in a second model, ready to evaluate.

    Batch norm statistics, which are averages already, are copied. During the first updates the decay is
    ``(1 + updates) / (10 + updates)`` where that is smaller, so that the start does not dominate (TensorFlow's
    ``ExponentialMovingAverage`` with ``num_updates``).

    Args:
        model: The trained model.
        average: A model of the same architecture in float32; takes the weights of ``model`` at once.
        decay: 0..1, per optimiser step.
    """

    def __init__(self, model: paddle.nn.Layer, average: paddle.nn.Layer, decay: float):
        self.model, self.decay, self.updates = average, decay, 0
        self._source = model.state_dict(use_hook=False)  # the tensors themselves, whatever is decorated later
        self._average = average.state_dict()
        self._trained = {name for name, p in model.named_parameters() if not p.stop_gradient}
        for name, value in self._source.items():
            self._average[name].set_value(value.astype("float32"))
        for parameter in average.parameters():
            parameter.stop_gradient = True

    @paddle.no_grad()
    def update(self) -> None:
        """Takes the trained weights in; call once after each optimiser step that changed them."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name in self._trained:
            average = self._average[name]
            average.set_value(average * decay + self._source[name].astype("float32") * (1 - decay))
        self.copy_statistics()

    @paddle.no_grad()
    def copy_statistics(self) -> None:
        """Takes over what is not trained, the batch norm statistics."""
        for name, value in self._source.items():
            if name not in self._trained:
                self._average[name].set_value(value.astype("float32"))
