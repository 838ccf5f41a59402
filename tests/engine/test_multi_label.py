"""Training and evaluation with several labels a clip, from the list to the saved best weights."""

from __future__ import annotations

import json

import numpy as np
import paddle
import pytest
from small_runs import ALONE, TOY, build, config, lines, losses, use_toy

from paddlevideo_fast.data.annotations import AnnotationError
from paddlevideo_fast.data.augment_draws import MixDraw
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.video import VideoInfo
from paddlevideo_fast.engine import train as engine
from paddlevideo_fast.engine.build import build_augment, build_evaluation, build_task
from paddlevideo_fast.engine.evaluate import EvaluationError, evaluate

TASK = "task={name: multi_label}"


def lists(motion, folder):
    """Overrides: every clip has its own class and the next one, class 7 none at all."""
    overrides = []
    for phase in ("train", "valid"):
        rows = [line.rsplit(" ", 1) for line in (motion / f"{phase}.txt").read_text().splitlines()]
        labels = [sorted({int(label) % 7, (int(label) + 1) % 7}) for _, label in rows]
        path = folder / f"{phase}_labels.txt"
        path.write_text("".join(f"{video} {own} {other}\n" for (video, _), (own, other) in zip(rows, labels)))
        overrides.append(f"data.{phase}={{annotations: {path}, format: multi_label, root: {motion}}}")
    return overrides


def test_a_run_from_list_to_best_weights(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    mixing = ("augment.mixup_alpha=0.8", "augment.cutmix_alpha=1.0")
    options = ("data.valid.num_clips=2", "data.valid.average=max", "epochs=4", "optimizer.lr=0.5")
    run = build(motion, tmp_path / "run", *TOY, TASK, *lists(motion, tmp_path), *options, *mixing, validate=True)
    engine.train(run)
    assert losses(tmp_path / "run")[0] == pytest.approx(np.log(2), abs=0.25)  # of each class, not of all together
    rows = lines(tmp_path / "run", "valid")
    assert [row["num_samples"] for row in rows] == [8] * 4 and all(0 < row["mAP"] <= 1 for row in rows)
    best = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    assert best["metrics"]["mAP"] == run.progress.best == pytest.approx(max(row["mAP"] for row in rows), abs=1e-6)


def test_targets_mix_as_the_clips_do(motion, tmp_path):
    task = build_task(config(motion, tmp_path, TASK))
    augment = build_augment(config(motion, tmp_path, TASK, "augment.mixup_alpha=0.8"), "train")
    assert task.num_classes == 8
    target = np.array([[1, 1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0, 0]], np.float32)
    batch = {"clip": paddle.zeros([2, 1, 4, 4, 3], "uint8"), "target": paddle.to_tensor(target)}
    mixed = augment(batch, MixDraw("mixup", 0.7, np.array([1, 0])))["target"].numpy()
    np.testing.assert_allclose(mixed[0], [0.7, 1, 0, 0.3, 0, 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(mixed[1], [0.3, 1, 0, 0.7, 0, 0, 0, 0], rtol=1e-5)


def test_classification_refuses_several_labels(motion, tmp_path):
    with pytest.raises(AnnotationError, match=r"train_labels.txt:1: label \(\d, \d\): task classification takes one"):
        build(motion, tmp_path, *lists(motion, tmp_path))


def test_there_is_no_label_smoothing_of_several_labels(motion, tmp_path):
    with pytest.raises(ValueError, match=r"task.label_smoothing \(multi_label\): unknown argument 'label_smoothing'"):
        build_task(config(motion, tmp_path, "task={name: multi_label, label_smoothing: 0.1}"))


def test_without_a_single_label_there_is_no_metric(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    settings = config(motion, tmp_path, *TOY, TASK, *lists(motion, tmp_path))
    task = build_task(settings)
    data = build_evaluation(settings, "valid", "small run", task, ALONE)
    data.loader.dataset.make_target = lambda record, flipped, *_: np.zeros(8, np.float32)
    run = build(motion, tmp_path, *TOY)
    with pytest.raises(EvaluationError, match="there is no metric of these records: no class has a positive sample"):
        evaluate(run.model, run.model, task, data, ALONE, build_augment(settings, "valid"))


def test_labels_by_frame_follow_the_clip_in_training_and_the_video_in_evaluation(motion, tmp_path):
    from PIL import Image

    rows = ["original_vido_id video_id frame_id path labels"]
    for number in range(12):  # class 1 in the first half, class 2 in the second, class 3 in the last frame
        path = tmp_path / "frames" / f"v-{number + 1:06d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full([40, 48, 3], 20 * number, np.uint8)).save(path)
        labels = "1" if number < 6 else "2" if number < 11 else "2,3"
        rows.append(f'v 0 {number} frames/{path.name} "{labels}"')
    (tmp_path / "charades.csv").write_text("\n".join(rows) + "\n")
    data = f"{{annotations: {tmp_path / 'charades.csv'}, root: {tmp_path}}}"
    options = [f"data.train={data}", f"data.valid={data}", "data.reader=frames", "data.num_frames=2"]
    run = build(
        motion, tmp_path / "run", TASK, *options, "data.sampling={name: uniform, frame_stride: 2}", validate=True
    )
    seen = set()
    for epoch in range(40):
        key = SampleKey(epoch, 0, 2, 32)
        indices = run.dataset.recipe.make_plan(run.records[0], VideoInfo(12, 0.0, 48, 40, 0.0), key).view.indices
        target = run.dataset[key]["target"]
        first, last = int(indices[0]), int(indices[-1])
        assert last == first + 2
        assert target.tolist() == [0, first < 6, last >= 6, last == 11, 0, 0, 0, 0]
        seen.add(tuple(target.tolist()))
    assert len(seen) == 4
    evaluated = run.validation.loader.dataset[SampleKey(0, 0, 2, 32)]
    assert evaluated["target"].tolist() == [0, 1, 1, 1, 0, 0, 0, 0]
