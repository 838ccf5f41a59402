"""A reader that hands the files another reader refuses to a second one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from paddlevideo_fast.data.readers.chunked import FileReader
from paddlevideo_fast.data.readers.reader import Reader, Video
from paddlevideo_fast.data.video import InexactReaderError, Source, VideoInfo, View

logger = logging.getLogger("paddlevideo_fast")


class FallbackReader(FileReader):
    """Reads with ``first``; a source it raises InexactReaderError for is read with ``second`` instead.

    Attributes:
        fallbacks: How often each reason led to the second reader, in this process.
    """

    def __init__(self, first: Reader, second: Reader):
        self.first, self.second = first, second
        self.name, self.package = first.name, first.package
        self.fallbacks: Counter[str] = Counter()

    def open_file(self, source: Source) -> Video:
        try:
            return FallbackVideo(self, self.first.open(source))
        except InexactReaderError as error:
            return self.take_over(source, error)

    def take_over(self, source: Source, error: InexactReaderError) -> Video:
        """Counts and logs a refusal, and opens the source with the second reader."""
        self.fallbacks[error.reason] += 1
        if self.fallbacks[error.reason] == 1:
            logger.warning("%s; reading this and all such files with %r", error, self.second.name)
        return self.second.open(source)


class FallbackVideo(Video):
    """A video of the first reader, exchanged for one of the second if a refusal comes while reading."""

    def __init__(self, reader: FallbackReader, video: Video):
        self._reader, self._video, self._kept = reader, video, None
        self.source, self.codec, self.container = video.source, video.codec, video.container

    @property
    def info(self) -> VideoInfo:
        return self._video.info

    @property
    def damage(self) -> str | None:
        return self._video.damage

    def keep(self, num_frames: int) -> None:
        self._kept = num_frames
        self._video.keep(num_frames)

    def read(self, views: Sequence[View], size: tuple[int, int] | None = None) -> list[np.ndarray]:
        try:
            return self._video.read(views, size)
        except InexactReaderError as error:
            self._exchange(error)
            return self._video.read(views, size)

    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        done = 0
        try:
            for index, picture in self._video.pictures(indices):
                yield index, picture
                done += 1
            return
        except InexactReaderError as error:
            self._exchange(error)
        yield from self._video.pictures(indices[done:])

    def _exchange(self, error: InexactReaderError) -> None:
        self._video.close()
        self._video = self._reader.take_over(self.source, error)
        if self._kept is not None:
            self._video.keep(self._kept)

    def close(self) -> None:
        self._video.close()
