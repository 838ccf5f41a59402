"""Tells from measured times what limits a training, and what each remedy would bring.

Three things bound the length of a step, each computed from what was measured:

    compute = min(watched step - data_wait, plain step)
    reading = batches a step x reading of a batch in one thread / reader threads
    cpu     = CPU time of a step over all threads / cores

A step takes at least the greatest of them, and about that long as long as they go on side by side. An estimate puts the
changed quantity in its place and takes the greatest again. Without reader threads reading is added to compute instead.

On a CPU the first two hold waiting for a core. A bound may not: what competes for the cores, decoding among it, may go.
Where other programs compete, the cores are shared out by threads: more readers get more of them, but not all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

WAITING = 0.10  # share of a step spent waiting for data from which reading is what limits it
EXCHANGING = 1 / 3  # the same of the exchange of gradients and the waiting for other ranks
WORTH_IT = 0.97  # of the time now, or less, to be called a help
NOTABLE = 0.10  # share of a step or of a clip's reading that is worth a word
CROWDED = 0.75  # share of the time with a core below which other programs slow everything measured
OFF = 1.25  # factor between what the formula gives for the present settings and what was measured
FORMULAS = {
    "compute": "min(profiled_step_seconds - parts.data_wait, step_seconds)",
    "reading": "batches_per_step * batch_read_seconds / num_workers",
    "cpu": "process_cpu_seconds / cores",
    "step": "max(compute, reading, cpu) with reader threads, max(compute + reading, cpu) without, where reading is "
    "batches_per_step * batch_read_seconds",
    "feed_ratio": "step_seconds / reading",
    "data.num_workers": "step with k num_workers and cores * (k + 1) / (k + 1 + others), where others = "
    "max(0, cores / core_share - num_workers - 1), 0 with a core_share of 1; the fewest within 2 % of the best",
    "videos": "step without decode and convert in reading and cpu, compute and reading * core_share: what no "
    "preparation can better",
    "accum_steps": "step_seconds - communication / 2, for as many clips; the exchange may be hidden already",
    "augment": "step_seconds - augment: what leaving all of it out would bring",
}


@dataclass(frozen=True)
class Measured:
    """What the estimates are computed from; seconds of a step if nothing else is said.

    Attributes:
        step: A plain step.
        watched: A watched step.
        parts: Part -> of a watched step.
        cpu: CPU time of all threads; None where child processes read, whose time is not seen.
        batches: Batches of a step.
        batch_read: Wall time of reading a batch in one thread.
        pixels_wall: Of it, decoding and converting.
        pixels_cpu: CPU time of decoding and converting a batch.
        workers: Reader threads.
        cores: Cores for this rank.
        core_share: Share of its computing during which the main thread had a core; 1 where a GPU computes.
    """

    step: float
    watched: float
    parts: Mapping[str, float]
    cpu: float | None
    batches: int
    batch_read: float
    pixels_wall: float
    pixels_cpu: float
    workers: int
    cores: float
    core_share: float = 1.0

    def limits(self) -> dict[str, float]:
        """Returns the least a step takes for each of the three reasons; 0 where that is not known."""
        return {
            "compute": min(self.watched - self.parts["data_wait"], self.step),
            "reading": self.batches * self.batch_read / max(self.workers, 1),
            "cpu": self.cpu / self.cores if self.cpu is not None else 0.0,
        }

    def estimate(self, share: float = 1.0) -> float:
        """Returns the length of a step by the formula, where threads have a core for ``share`` of their time now."""
        limits = self.limits()
        compute, reading = share * limits["compute"], share * limits["reading"]
        return max(max(compute, reading) if self.workers else compute + reading, limits["cpu"])

    def with_workers(self, workers: int) -> Measured:
        """Returns the same with another number of reader threads, and the cores these and the main thread would get.

        Each of ``workers + 1`` own and of the other threads, if there are more than cores, has an equal share of them.
        """
        others = max(0.0, self.cores / self.core_share - self.workers - 1) if self.core_share < 1 else 0.0
        return replace(self, workers=workers, cores=self.cores * (workers + 1) / (workers + 1 + others))


@dataclass(frozen=True)
class Remedy:
    """Something to change.

    Attributes:
        key: Key of the config, or the tool that does it.
        value: What to give it; None where that is open.
        step_seconds: What a step (of as many clips) would take; None where the measurement does not tell.
        at_best: The step would take at least that long, not about that long.
        text: The same as a clause.
    """

    key: str
    value: Any
    step_seconds: float | None
    at_best: bool
    text: str


def judge(measured: Measured, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``bound`` ("reader", "exchange" or "compute"), shares, limits, remedies and the verdict in words.

    Args:
        measured: The times.
        settings: ``reader`` (its name), ``crop_size``, ``on_gpu``, ``amp_possible`` (a GPU computes in float32),
            ``augments`` (anything but normalisation), ``accum_steps``.
    """
    parts, limits = measured.parts, measured.limits()
    shares = {name: seconds / measured.watched for name, seconds in parts.items()}
    exchange = shares["rank_wait"] + shares["communication"]
    bound = "reader" if shares["data_wait"] >= WAITING else "exchange" if exchange >= EXCHANGING else "compute"
    feed = measured.step / limits["reading"] if limits["reading"] and measured.workers else None
    found = _for_reading(measured, settings) if bound == "reader" else _for_computing(measured, settings, shares)
    found.sort(key=lambda remedy: (remedy.step_seconds is None, remedy.at_best, remedy.step_seconds or 0.0))
    return {
        "bound": bound,
        "wait_share": shares["data_wait"],
        "feed_ratio": feed,
        "limits": limits,
        "predicted_step_seconds": measured.estimate(),
        "remedies": [vars(remedy) for remedy in found],
        "text": _say(bound, shares, feed, found, measured),
    }


def _for_reading(measured: Measured, settings: Mapping[str, Any]) -> list[Remedy]:
    more = _more_workers(measured)
    found = [] if more is None else [more]
    faster = ["fused"] * (settings["reader"] in ("pyav", "decord", "opencv"))
    faster += ["dali"] * (settings["on_gpu"] and settings["reader"] not in ("dali", "frames"))
    for name in faster:
        text = f"data.reader={name} instead of {settings['reader']} (no estimate: measure it with --paced)"
        found.append(Remedy("data.reader", name, None, False, text))
    pixels = measured.batches * measured.pixels_cpu
    without = replace(
        measured,
        batch_read=measured.batch_read - measured.pixels_wall,
        cpu=None if measured.cpu is None else max(0.0, measured.cpu - pixels),
    ).estimate(measured.core_share)
    if without < WORTH_IT * measured.step:
        side = settings["crop_size"] * 8 // 7
        tool = "extract_frames" if settings["reader"] == "frames" else "prepare_videos"
        text = (
            f"smaller pictures (tools/data/{tool}.py, short side {side}) could take it to {without:.3f} s at best, if "
            "decoding and converting cost nothing"
        )
        found.append(Remedy(f"tools/data/{tool}.py", side, without, True, text))
    return found


def _more_workers(measured: Measured) -> Remedy | None:
    """More threads than cores are tried only where reading waits for something other than a core, as a disk."""
    if measured.cpu is None:
        return Remedy("data.num_workers", None, None, False, "more data.num_workers (no estimate: children read)")
    most = int(measured.cores) * (2 if measured.pixels_cpu < 0.5 * measured.pixels_wall else 1)
    steps = {k: measured.with_workers(k).estimate() for k in range(measured.workers + 1, most + 1)}
    least = min(steps.values(), default=measured.step)
    if least >= WORTH_IT * measured.step:
        return None
    number = next(k for k, seconds in steps.items() if seconds <= 1.02 * least)
    text = f"data.num_workers={number} would take it to about {steps[number]:.3f} s"
    return Remedy("data.num_workers", number, steps[number], False, text)


def _for_computing(measured: Measured, settings: Mapping[str, Any], shares: Mapping[str, float]) -> list[Remedy]:
    found = []
    if settings["amp_possible"]:
        found.append(Remedy("amp.enabled", True, None, False, "amp.enabled=true computes in half (no estimate)"))
    if shares["communication"] >= NOTABLE:
        seconds, value = measured.step - measured.parts["communication"] / 2, 2 * settings["accum_steps"]
        text = f"accum_steps={value} halves the exchanges: at best {seconds:.3f} s for as many clips"
        found.append(Remedy("accum_steps", value, seconds, True, text))
    if shares["augment"] >= NOTABLE and settings["augments"]:
        seconds = measured.step - measured.parts["augment"]
        text = f"less under augment (the hue of color_jitter is the dearest): {seconds:.3f} s without any, at best"
        found.append(Remedy("augment", None, seconds, True, text))
    return found


def _why_not_more(measured: Measured) -> str:
    limits = measured.limits()
    if max(limits["cpu"], limits["compute"]) < WORTH_IT * measured.estimate():
        return "there is a thread a core"
    return "the cores are busy" if limits["cpu"] >= limits["compute"] else "computing alone takes as long"


def _say(bound: str, shares: Mapping[str, float], feed: float | None, found: list[Remedy], measured: Measured) -> str:
    first = {
        "reader": f"reader-bound: {shares['data_wait']:.0%} of the step goes by waiting for data",
        "exchange": f"exchange-bound: {shares['communication']:.0%} of the step goes into exchanging gradients and "
        f"{shares['rank_wait']:.0%} into waiting for other ranks",
        "compute": f"compute-bound: {1 - shares['data_wait']:.0%} of the step is computing",
    }[bound]
    if bound != "reader" and feed is not None:
        first += f"; the reader could feed {feed:.1f} times as much"
    sentences = [f"{first}. A step takes {measured.step:.3f} s"]
    if bound == "reader" and not any(remedy.key == "data.num_workers" for remedy in found):
        sentences.append(f"more data.num_workers would not help: {_why_not_more(measured)}")
    sentences += [remedy.text for remedy in found]
    if not found:
        largest = max((name for name in shares if name != "data_wait"), key=shares.get)
        sentences.append(f"no key was found that would help; the largest part is {largest} ({shares[largest]:.0%})")
    if measured.core_share < CROWDED:
        share = f"computing had a core for {measured.core_share:.0%} of its time"
        sentences.append(f"{share}: other programs or threads compete, measure again on a quiet machine")
    predicted = measured.estimate()
    if any(remedy.step_seconds is not None for remedy in found) and not 1 / OFF < predicted / measured.step < OFF:
        sentences.append(
            f"take the estimates with caution: for the present settings they give {predicted:.3f} s instead of "
            f"{measured.step:.3f} s"
        )
    return "; ".join(sentences)
