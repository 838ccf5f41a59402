"""Every record once and none made up: evaluation against a loop over single clips."""

from __future__ import annotations

import logging
import math

import numpy as np
import paddle
import pytest
from small_runs import ALONE, config, weights

from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.engine import evaluate as module
from paddlevideo_fast.engine.build import build_augment, build_evaluation, build_model, build_task
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.evaluate import EvaluationError, evaluate

MEAN, STD = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])


class GatheringRanks(Ranks):
    """Ranks played one after another in this process: gathers what the others left."""

    def __init__(self, rank, size, shares):
        super().__init__(rank, size)
        object.__setattr__(self, "shares", shares)

    def gather(self, value):
        self.shares.append(value)
        return self.shares


@pytest.fixture(scope="module")
def model():
    paddle.seed(3)
    from paddlevideo_fast.models import create_model

    model = create_model("tsm_resnet18", num_classes=8, num_segments=4, width=0.125, dropout=0.5)
    model.head.fc.weight.set_value(paddle.randn(model.head.fc.weight.shape))
    rng = np.random.default_rng(0)
    for name, value in model.state_dict().items():  # statistics that differ from those of any batch
        if name.endswith("_mean"):
            value.set_value(paddle.to_tensor(rng.normal(size=value.shape).astype(np.float32) * 0.1))
    return model


def run_evaluation(settings, model, ranks=ALONE, phase="test"):
    task = build_task(settings)
    data = build_evaluation(settings, phase, "small run", task, ranks)
    return evaluate(model, model, task, data, ranks, build_augment(settings, phase))


def by_hand(settings, model, num_views=1, average="probability", phase="test"):
    """Scores clip after clip; returns what the metrics have to be."""
    data = build_evaluation(settings, phase, "small run", build_task(settings), ALONE)
    model.eval()
    hits, top5, losses, per_class = [], [], [], {}
    for index, record in enumerate(data.records):
        views = []
        for view in range(num_views):
            clip = data.loader.dataset[SampleKey(0, index, 4, 32, view=view)]["clip"]
            clip = ((clip - MEAN) / STD).transpose(3, 0, 1, 2)[None].astype(np.float32)
            with paddle.no_grad():
                logits = model(paddle.to_tensor(clip)).numpy()[0].astype(np.float64)
            probabilities = np.exp(logits - logits.max())
            probabilities /= probabilities.sum()
            losses.append(-np.log(probabilities[record.label]))
            views.append(probabilities if average == "probability" else logits)
        order = np.argsort(-np.mean(views, axis=0))
        hits.append(order[0] == record.label)
        top5.append(record.label in order[:5])
        per_class.setdefault(record.label, []).append(hits[-1])
    return {
        "loss": np.mean(losses),
        "top1": np.mean(hits),
        "top5": np.mean(top5),
        "mean_class_accuracy": np.mean([np.mean(found) for found in per_class.values()]),
        "num_samples": len(data.records),
        "num_views": num_views,
    }


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_full_set_counts_once_whatever_the_batch(motion, tmp_path, model, batch):
    settings = config(motion, tmp_path, f"data.batch_size={batch}", "data.num_workers=0")
    model.train()
    before = weights(model)
    result = run_evaluation(settings, model)
    assert model.training  # put back
    for name, value in weights(model).items():
        np.testing.assert_array_equal(value, before[name])
    expected = by_hand(settings, model)
    assert result.metrics == pytest.approx(expected, rel=1e-5)
    assert result.failures == []
    assert result.metrics["num_samples"] == 8


@pytest.mark.parametrize("size", [2, 3, 11])  # 11 ranks for 8 records
def test_ranks_share_the_set_without_gap_or_overlap(motion, tmp_path, model, size):
    settings = config(motion, tmp_path, "data.batch_size=3", "data.test.num_clips=2")
    alone = run_evaluation(settings, model)
    shares = []
    for rank in range(size):
        ranks = GatheringRanks(rank, size, shares)
        if rank < size - 1:
            run_evaluation(settings, model, ranks)  # the shares gathered so far are enough for a result
    assert run_evaluation(settings, model, ranks).metrics == pytest.approx(alone.metrics, rel=1e-6)


@pytest.mark.parametrize("average", ["probability", "logit"])
def test_views_are_averaged_before_they_are_ranked(motion, tmp_path, model, average):
    settings = config(
        motion, tmp_path, f"data.test.average={average}", "data.test.num_clips=2", "data.test.num_crops=3",
        "data.test.batch_size=4",
    )  # fmt: skip  # 6 views a record in batches of 4: batches cut through records
    result = run_evaluation(settings, model)
    assert result.metrics == pytest.approx(by_hand(settings, model, 6, average), rel=1e-5)
    assert result.metrics["num_views"] == 6


def test_its_own_batch_and_crop_sizes(motion, tmp_path, model):
    plain = run_evaluation(config(motion, tmp_path, "data.crop_size=32", "data.test.short_side=40"), model)
    other = config(motion, tmp_path, "data.crop_size=16", "data.test={annotations: %s, short_side: 40, crop_size: 32, "
                   "batch_size: 5}" % (motion / "test.txt"))  # fmt: skip
    assert run_evaluation(other, model).metrics == pytest.approx(plain.metrics, rel=1e-6)


def test_what_cannot_be_read_is_named_and_never_replaced(motion, tmp_path, model):
    rows = (motion / "test.txt").read_text().splitlines()
    listing = tmp_path / "holes.txt"
    (tmp_path / "noise.mp4").write_bytes(b"this is no video" * 10)
    listing.write_text("\n".join([rows[0], "gone.mp4 3", *rows[1:3], f"{tmp_path / 'noise.mp4'} 0", *rows[3:]]))
    holes = config(
        motion, tmp_path, f"data.test.annotations={listing}", f"data.test.root={motion}", "data.batch_size=3"
    )
    result = run_evaluation(holes, model)
    whole = run_evaluation(config(motion, tmp_path, f"data.test.root={motion}"), model)
    assert result.metrics == pytest.approx(whole.metrics, rel=1e-5)
    assert len(result.failures) == 2
    assert "holes.txt:2: " in result.failures[0] and "gone.mp4: does not exist" in result.failures[0]
    assert "holes.txt:5: " in result.failures[1] and "noise.mp4: not a video file" in result.failures[1]


def test_nothing_readable_is_an_error(motion, tmp_path, model):
    listing = tmp_path / "none.txt"
    listing.write_text("a.mp4 0\nb.mp4 1\n")
    with pytest.raises(EvaluationError, match=r"none of the 2 records .*none.txt:1: .*a.mp4"):
        run_evaluation(config(motion, tmp_path, f"data.test.annotations={listing}"), model)


def test_scores_that_are_not_finite_are_an_error(motion, tmp_path):
    settings = config(motion, tmp_path)
    broken = build_model(settings)
    broken.head.fc.bias.set_value(paddle.full([8], math.nan))
    with pytest.raises(EvaluationError, match="not finite for 8 of 8 clips"):
        run_evaluation(settings, broken)


def test_fewer_than_five_classes(motion, tmp_path):
    listing = tmp_path / "two.txt"
    rows = [row.split(" ") for row in (motion / "test.txt").read_text().splitlines()]
    listing.write_text("".join(f"{motion / name} {int(label) % 2}\n" for name, label in rows))
    settings = config(
        motion, tmp_path, f"data.test.annotations={listing}", "model.num_classes=2", "data.class_names=null"
    )
    two = build_model(settings)
    result = run_evaluation(settings, two)
    assert result.metrics["top5"] == 1.0
    assert result.metrics == pytest.approx(by_hand(settings, two), rel=1e-5)


def test_a_long_evaluation_says_how_long(motion, tmp_path, model, monkeypatch, caplog):
    monkeypatch.setattr(module, "_SAY_EVERY_SECONDS", -1.0)
    monkeypatch.setattr(module.logger, "propagate", True)
    with caplog.at_level(logging.INFO):
        run_evaluation(config(motion, tmp_path, "data.batch_size=3"), model)
    assert [text for text in caplog.messages if "evaluating" in text][0].startswith("evaluating: batch 1/3, eta 0:00:0")
