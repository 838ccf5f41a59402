"""Which inputs are found, and that a prediction is what the test's model says."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from PIL import Image
from small_runs import ALONE, config

from paddlevideo_fast.config import ReaderConfig
from paddlevideo_fast.data.readers import build_reader
from paddlevideo_fast.data.video import VideoError
from paddlevideo_fast.engine.build import build_augment, build_evaluation, build_model, build_task
from paddlevideo_fast.inference.predictor import Predictor, find_inputs


@pytest.fixture(scope="module")
def trained(motion, tmp_path_factory):
    """Settings with three views a video, and weights that tell classes apart."""
    folder = tmp_path_factory.mktemp("trained")
    settings = config(motion, folder, "data.test.num_crops=3")
    paddle.seed(1)
    model = build_model(settings)
    model.head.fc.weight.set_value(paddle.randn(model.head.fc.weight.shape))
    paddle.save(model.state_dict(), str(folder / "w.pdparams"))
    return settings, folder / "w.pdparams", model


def test_inputs_are_found(tmp_path):
    for name in ("b.mp4", "a.MKV", "notes.txt", "sub/c.webm", "sub/deep/d.avi", "frames/1.jpg", "other/x.unknown"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = list(find_inputs([str(tmp_path), str(tmp_path / "other/x.unknown"), str(tmp_path / "frames"), "gone.mp4"]))
    names = ["a.MKV", "b.mp4", "sub/c.webm", "sub/deep/d.avi", "other/x.unknown", "frames"]
    assert found == [*(str(tmp_path / name) for name in names), "gone.mp4"]


def test_folders_of_frames_are_found_where_there_are_no_videos(tmp_path):
    for name in (
        "walk/b/2.jpg",
        "walk/b/1.jpg",
        "walk/a/img_1.PNG",
        "run/c/1.jpeg",
        "run/readme.txt",
        "run/d/cover.jpg",
    ):
        (tmp_path / "classes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "classes" / name).touch()
    folders = [str(tmp_path / "classes" / name) for name in ("run/c", "walk/a", "walk/b")]
    assert list(find_inputs([str(tmp_path / "classes")])) == folders
    (tmp_path / "none").mkdir()
    assert list(find_inputs([str(tmp_path / "none")])) == [str(tmp_path / "none")]
    (tmp_path / "classes" / "walk.mp4").touch()
    assert list(find_inputs([str(tmp_path / "classes")])) == [str(tmp_path / "classes" / "walk.mp4")]


def test_an_input_is_named_as_it_was_written():
    assert list(find_inputs(["http://a.b//c.mp4", "./x//y.mp4"])) == ["http://a.b//c.mp4", "./x//y.mp4"]


def test_a_model_of_frames_says_how_it_reads_videos(motion, trained):
    settings, path, _ = trained
    data = settings.data.model_copy(update={"reader": ReaderConfig(name="frames")})
    predictor = Predictor(settings.model_copy(update={"data": data}), "small run", path)
    video = motion / (motion / "test.txt").read_text().split(" ")[0]
    with pytest.raises(VideoError, match="is a file, but data.reader is 'frames': -o data.reader=pyav reads videos"):
        predictor.scores(video)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("average", ["probability", "logit"])
def test_scores_are_those_of_the_test(motion, trained, batch, average):
    settings, path, model = trained
    settings = settings.model_copy(
        update={
            "data": settings.data.model_copy(
                update={"batch_size": batch, "test": settings.data.test.model_copy(update={"average": average})}
            )
        }
    )
    predictor = Predictor(settings, "small run", path)
    data = build_evaluation(settings, "test", "small run", build_task(settings), ALONE)
    augment = build_augment(settings, "test")
    model.eval()
    with paddle.no_grad():
        parts = [(model(augment(b)["clip"]).numpy(), b["index"].numpy()) for b in data.loader]
    logits, index = (np.concatenate(part) for part in zip(*parts))
    for number, record in enumerate(data.records):
        rows = logits[index == number].astype(np.float64)
        if average == "probability":
            expected = (np.exp(rows) / np.exp(rows).sum(1, keepdims=True)).mean(0)
        else:
            expected = np.exp(rows.mean(0)) / np.exp(rows.mean(0)).sum()
        np.testing.assert_allclose(predictor.scores(record.source), expected, rtol=2e-4, atol=1e-6)


def test_the_best_classes_come_first_with_their_names(motion, trained):
    settings, path, _ = trained
    predictor = Predictor(settings, "small run", path)
    video = motion / (motion / "test.txt").read_text().split(" ")[0]
    scores = predictor.scores(video)
    best = predictor.topk(video, 3)
    names = (motion / "classes.txt").read_text().split()
    assert [row["label"] for row in best] == np.argsort(-scores)[:3].tolist()
    assert [row["name"] for row in best] == [names[row["label"]] for row in best]
    assert [row["score"] for row in best] == pytest.approx(np.sort(scores)[::-1][:3], abs=1e-6)
    assert sum(row["score"] for row in predictor.topk(video, 99)) == pytest.approx(1, abs=1e-5)
    assert len(predictor.topk(video, 99)) == 8


def test_a_folder_of_pictures_is_a_video(motion, trained, tmp_path):
    settings, path, _ = trained
    # pyav scales whole pictures, as the reader of folders does; fused scales the planes before they are RGB
    data = settings.data.model_copy(update={"reader": ReaderConfig(name="pyav", threads=2, max_frames=1000)})
    predictor = Predictor(settings.model_copy(update={"data": data}), "small run", path)
    name = (motion / "test.txt").read_text().split(" ")[0]
    folder = tmp_path / "pictures"
    folder.mkdir()
    with build_reader("pyav").open(motion / name) as video:
        for number, picture in enumerate(video.frames(), 1):
            Image.fromarray(picture).save(folder / f"{number:05d}.png")
    np.testing.assert_allclose(predictor.scores(folder), predictor.scores(motion / name), rtol=1e-6)
    (tmp_path / "empty").mkdir()
    with pytest.raises(VideoError, match="empty"):
        predictor.scores(tmp_path / "empty")
