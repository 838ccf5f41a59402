"""Frame choice: published numbers, properties over many lengths, and the distribution of the random choices."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest

from paddlevideo_fast.data.sampling import SAMPLINGS, DenseSampling, SegmentSampling, UniformSampling

ALL = [
    SegmentSampling(),
    SegmentSampling(num_clips=2),
    SegmentSampling(num_clips=5),
    DenseSampling(),
    DenseSampling(window=64, num_clips=10),
    DenseSampling(window=7, num_clips=3),
    UniformSampling(),
    UniformSampling(frame_stride=2, num_clips=10),
    UniformSampling(frame_stride=8, num_clips=3),
]


def ids(sampling):
    return str(sampling)


# Numbers of the functions in TSM's ops/dataset.py (test, and the second half of twice_sample).
TSM_TEST = {
    (1, 8): [0] * 8,
    (5, 8): [0, 0, 1, 2, 2, 3, 4, 4],
    (8, 8): [0, 1, 2, 3, 4, 5, 6, 7],
    (29, 8): [1, 5, 9, 12, 16, 19, 23, 27],
    (100, 8): [6, 18, 31, 43, 56, 68, 81, 93],
    (250, 16): [7, 23, 39, 54, 70, 85, 101, 117, 132, 148, 164, 179, 195, 210, 226, 242],
}
TSM_TWICE = {
    (5, 8): [0, 0, 1, 1, 2, 3, 3, 4],
    (29, 8): [0, 3, 7, 10, 14, 18, 21, 25],
    (100, 8): [0, 12, 25, 37, 50, 62, 75, 87],
    (250, 16): [0, 15, 31, 46, 62, 78, 93, 109, 125, 140, 156, 171, 187, 203, 218, 234],
}


@pytest.mark.parametrize("length, num_frames", TSM_TEST)
def test_segment_evaluation_is_tsm(length, num_frames):
    expected = TSM_TEST[length, num_frames]
    assert SegmentSampling()(length, num_frames).tolist() == expected
    assert SegmentSampling(num_clips=2)(length, num_frames, 0).tolist() == expected


@pytest.mark.parametrize("length, num_frames", TSM_TWICE)
def test_second_clip_is_tsm_twice_sample(length, num_frames):
    assert SegmentSampling(num_clips=2)(length, num_frames, 1).tolist() == TSM_TWICE[length, num_frames]


def digest(sampling, frames, lengths=range(1, 301)):
    total = hashlib.sha256()
    for length in lengths:
        for num_frames in frames:
            for clip in range(sampling.num_clips):
                total.update(sampling(length, num_frames, clip).astype("<i8").tobytes())
    return total.hexdigest()


def test_segment_and_dense_equal_tsm_for_every_length_to_300():
    # Digests of all the indices TSM's own functions return, taken from its code.
    segment = "5f910ef813c218ce566a80c689b8b455beb7e992116ffef4fe3054ae6fa0ff52"
    dense = "24ced04c7979b255c11941a3333306775be1cb5b6dcabdb2028f117c00236b93"
    assert digest(SegmentSampling(num_clips=2), (1, 2, 3, 5, 7, 8, 16, 32)) == segment
    assert digest(DenseSampling(num_clips=10), (1, 2, 3, 5, 7, 8, 16, 32, 64)) == dense


def test_dense_evaluation_by_hand():
    sampling = DenseSampling(num_clips=10)
    assert sampling(300, 8, 1).tolist() == [26, 34, 42, 50, 58, 66, 74, 82]
    assert sampling(300, 8, 9).tolist() == [236, 244, 252, 260, 268, 276, 284, 292]
    assert sampling(40, 8, 5).tolist() == [0, 8, 16, 24, 32, 0, 8, 16]
    assert DenseSampling()(300, 8).tolist() == [118, 126, 134, 142, 150, 158, 166, 174]


def test_dense_takes_neighbours_when_more_frames_than_window():
    assert DenseSampling(window=4)(100, 6).tolist() == [48, 49, 50, 51, 52, 53]


def test_segment_three_clips_cover_each_segment_evenly():
    # Segments of 12 frames: 1/2, 5/6 and 1/6 of each.
    sampling = SegmentSampling(num_clips=3)
    assert sampling(36, 3, 0).tolist() == [6, 18, 30]
    assert sampling(36, 3, 1).tolist() == [10, 22, 34]
    assert sampling(36, 3, 2).tolist() == [2, 14, 26]


def test_uniform_evaluation_by_hand():
    sampling = UniformSampling(frame_stride=8, num_clips=3)  # 8 x 8 spans 57 frames: starts 0..243
    starts = [sampling(300, 8, clip)[0] for clip in range(3)]
    assert starts == [0, 121, 243]
    assert sampling(300, 8, 2).tolist() == [243, 251, 259, 267, 275, 283, 291, 299]
    assert UniformSampling(frame_stride=2)(100, 4).tolist() == [46, 48, 50, 52]  # spans 7, starts 0..93


def test_uniform_repeats_the_last_frame_of_a_short_video():
    assert UniformSampling(frame_stride=4)(10, 5).tolist() == [0, 4, 8, 9, 9]
    rng = np.random.default_rng(0)
    assert UniformSampling(frame_stride=4)(10, 5, 0, rng).tolist() == [0, 4, 8, 9, 9]


@pytest.mark.parametrize("sampling", ALL, ids=ids)
def test_every_index_is_a_frame(sampling):
    rng = np.random.default_rng(0)
    for length in range(1, 101):
        for num_frames in range(1, 33):
            clips = [sampling(length, num_frames, clip) for clip in range(sampling.num_clips)]
            for indices in [*clips, sampling(length, num_frames, 0, rng)]:
                assert indices.dtype == np.int64 and indices.shape == (num_frames,)
                assert indices.min() >= 0 and indices.max() < length
                if not isinstance(sampling, DenseSampling) or length >= sampling.window >= num_frames:
                    assert (np.diff(indices) >= 0).all()


def test_segments_reach_both_ends():
    rng = np.random.default_rng(0)
    for length in range(1, 101):
        for num_frames in range(1, 33):
            segment = length / num_frames
            for indices in (SegmentSampling()(length, num_frames), SegmentSampling()(length, num_frames, 0, rng)):
                assert indices[0] < max(1, segment)
                # Training leaves out the frames that do not fill a whole segment: fewer than num_frames.
                assert indices[-1] >= length - max(1, segment) - num_frames
            assert length > num_frames or set(SegmentSampling()(length, num_frames)) == set(range(length))


def test_a_short_video_is_repeated_evenly_and_in_order():
    for rng in (None, np.random.default_rng(0)):
        counts = np.bincount(SegmentSampling()(3, 12, 0, rng))
        assert counts.tolist() == [4, 4, 4]
        assert SegmentSampling()(1, 5, 0, rng).tolist() == [0] * 5


@pytest.mark.parametrize("sampling", ALL, ids=ids)
def test_evaluation_is_deterministic_and_training_is_seeded(sampling):
    assert sampling(97, 8, 0).tolist() == sampling(97, 8, 0).tolist()
    draws = [sampling(997, 8, 0, np.random.default_rng(seed)).tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2 / expected).sum()


def test_training_frames_are_uniform_within_segments():
    rng = np.random.default_rng(0)
    draws = np.stack([SegmentSampling()(100, 8, 0, rng) for _ in range(6000)])
    for segment in range(8):  # 12 whole frames a segment, as in TSM; 11 degrees of freedom: 31.3 is p = 0.001
        counts = np.bincount(draws[:, segment] - 12 * segment, minlength=12)
        assert len(counts) == 12 and chi_square(counts) < 31.3
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.05


@pytest.mark.parametrize("sampling, num_starts", [(DenseSampling(), 17), (UniformSampling(frame_stride=8), 24)])
def test_training_starts_are_uniform_and_include_the_last(sampling, num_starts):
    rng = np.random.default_rng(0)  # 80 frames: 80 - 64 + 1 starts; 80 - 57 + 1
    counts = np.bincount([sampling(80, 8, 0, rng)[0] for _ in range(6000)])
    assert len(counts) == num_starts and chi_square(counts) < 50  # 23 degrees of freedom: 49.7 is p = 0.001


@pytest.mark.parametrize("sampling", ALL, ids=ids)
def test_pickles_and_is_frozen(sampling):
    assert pickle.loads(pickle.dumps(sampling)) == sampling
    with pytest.raises(AttributeError):
        sampling.num_clips = 3


def test_table_and_errors():
    assert SAMPLINGS["dense"](num_clips=10)(300, 8, 0).tolist()[:2] == [0, 8]
    with pytest.raises(ValueError, match="clip must be in 0..1, got 2"):
        SegmentSampling(num_clips=2)(10, 2, 2)
    with pytest.raises(ValueError, match="length=0"):
        SegmentSampling()(0, 8)
    with pytest.raises(ValueError, match="frame_stride must be an integer of at least 1, got 0"):
        UniformSampling(frame_stride=0)
    with pytest.raises(ValueError, match="num_clips"):
        SegmentSampling(num_clips=1.5)


def test_the_stride_of_shorter_clips_is_drawn_so_that_they_span_as_much():
    """Of 32 frames at stride 2: 8 frames have 2 to 8, 16 have 2 to 4, 32 the one; each as often as the others."""
    sampling, rng = UniformSampling(frame_stride=2, base_frames=32), np.random.default_rng(0)
    for num_frames, strides in ((8, range(2, 9)), (16, range(2, 5)), (32, [2])):
        found = [int(np.diff(sampling(1000, num_frames, 0, rng))[0]) for _ in range(1400)]
        counts = [found.count(stride) for stride in strides]
        assert sum(counts) == 1400
        assert min(counts) > 0.8 * 1400 / len(strides)
    indices = sampling(1000, 8, 0, np.random.default_rng(1))
    assert indices.tolist() == sampling(1000, 8, 0, np.random.default_rng(1)).tolist()
    assert len(set(np.diff(indices))) == 1


def test_the_stride_is_the_same_where_a_clip_is_full_or_evaluated():
    full, plain = UniformSampling(frame_stride=2, base_frames=8), UniformSampling(frame_stride=2)
    for length in (3, 20, 200):
        draws = [sampling(length, 8, 0, np.random.default_rng(3)).tolist() for sampling in (full, plain)]
        assert draws[0] == draws[1]
        assert full(length, 4).tolist() == plain(length, 4).tolist()
    with pytest.raises(ValueError, match="base_frames must be an integer of at least 1, got 0"):
        UniformSampling(base_frames=0)
