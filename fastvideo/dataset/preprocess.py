"""From video files and captions to a data set of latents and text embeddings.

A clip that cannot be used is skipped and reported by name with the reason; it never ends the run.
Runs can be killed and started again at any time, see :mod:`fastvideo.dataset.sample_store`.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch

from fastvideo.dataset.captions import AUTO, load_captions, match_captions
from fastvideo.dataset.encoders import TextEncoder, encode_video, load_vae
from fastvideo.dataset.model_files import model_fingerprint, resolve_model_path
from fastvideo.dataset.records import (
    VideoBatch,
    basic_t2v_record_creator,
    records_to_table,
    text_only_record_creator,
)
from fastvideo.dataset.sample_store import (
    DATASET_FOLDER,
    SampleStore,
    open_store,
    write_json_atomically,
)
from fastvideo.dataset.schema import pyarrow_schema_t2v, pyarrow_schema_text_only
from fastvideo.dataset.video import (
    VIDEO_SUFFIXES,
    FrameSpec,
    VideoError,
    Window,
    find_videos,
    frames_to_tensor,
    probe_video,
    read_windows,
)
from fastvideo.errors import ConfigError, DataError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fastvideo.dataset.arrow import pa

logger = init_logger(__name__)

T = TypeVar("T")

REPORT_NAME = "preprocess_report.json"
"""File in the output directory with the counts and every skipped clip of the last run."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Names of the types the encoders can run in."""

_CAPTIONS_PER_BATCH = 32
_WINDOWS_AHEAD = 2
_SLOWER = 0.95  # of the wanted rate; rounding in a file's header is less than this


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessConfig:
    """What to preprocess, and how.

    Attributes:
        model: Model directory, hub id or ``tiny-random:wan2.1``.
        out: Output directory; the data set is in ``combined_parquet_dataset/`` below it.
        videos: Folder of video files. Text-only data needs none if ``captions`` is a file.
        captions: Path of a caption file, or ``auto``.
        spec: Size and rate of the windows; not used for text-only data.
        max_windows: Most windows per clip; None takes all that fit.
        samples_per_file: Rows per parquet file.
        device: Where the encoders run, such as ``cuda`` or ``cpu``.
        dtype: One of :data:`DTYPES`.
        text_len: Most tokens of a text embedding.
    """

    model: str
    out: Path
    videos: Path | None = None
    captions: str = AUTO
    spec: FrameSpec | None = None
    max_windows: int | None = 1
    samples_per_file: int = 64
    device: str = "cpu"
    dtype: str = "fp32"
    text_len: int = 512

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            message = f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}"
            raise ConfigError(message)
        for name in ("max_windows", "samples_per_file", "text_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                message = f"{name} is {value}; expected a whole number of at least 1"
                raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class Skip:
    """A clip or caption that was left out.

    Attributes:
        name: The clip, relative to the folder of videos; or the place of the caption.
        kind: One or two words for counting.
        reason: What is wrong.
    """

    name: str
    kind: str
    reason: str


@dataclass(slots=True)
class PreprocessReport:
    """What a run did. Clips are counted in text-only data too: there, one is a caption.

    Attributes:
        dataset: Folder of the parquet files.
        clips: Clips that were found.
        finished_before: Clips that an earlier run had finished.
        finished_now: Clips that this run finished.
        samples: Rows in the data set after the run.
        skipped: Every clip that was left out.
        repeated_frames: Clips with a lower frame rate than asked for, whose frames repeat.
        shortened_captions: Captions with more tokens than ``text_len``, which were cut.
        changed_captions: Finished clips whose caption is another one now; the old one stays.
        unused_captions: Places of captions that name no clip.
        duplicate_captions: Captions of text-only data that occur more than once; one is kept.
        elapsed_s: Seconds.
        complete: Whether the run came to its end.
    """

    dataset: str
    clips: int = 0
    finished_before: int = 0
    finished_now: int = 0
    samples: int = 0
    skipped: list[Skip] = field(default_factory=list)
    repeated_frames: list[str] = field(default_factory=list)
    shortened_captions: list[str] = field(default_factory=list)
    changed_captions: list[str] = field(default_factory=list)
    unused_captions: list[str] = field(default_factory=list)
    duplicate_captions: int = 0
    elapsed_s: float = 0.0
    complete: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether any clip is in the data set."""
        return self.finished_before + self.finished_now > 0

    def skip(self, name: str, kind: str, reason: str) -> None:
        """Notes a clip that is left out, here and in the log."""
        self.skipped.append(Skip(name, kind, reason))
        logger.warning("skipped %s: %s", name, reason)


class Progress(Protocol):
    """Is told how far a run is."""

    def begin(self, total: int, finished: int) -> None:
        """Says how many clips there are, and how many of them need no work."""

    def advance(self, count: int) -> None:
        """Says that so many more clips were finished or skipped."""


class _Silent:
    def begin(self, total: int, finished: int) -> None:
        """Does nothing."""

    def advance(self, count: int) -> None:
        """Does nothing."""


def preprocess_videos(
    config: PreprocessConfig, *, progress: Progress | None = None
) -> PreprocessReport:
    """Writes a text-to-video data set: latents and text embeddings of every usable clip.

    The id of a row is the clip's path relative to the folder of videos; further windows of the
    same clip carry ``#1``, ``#2``, … behind it.

    Args:
        config: What to do. ``videos`` and ``spec`` are needed.
        progress: Is told how far the run is.

    Returns:
        The report, which is also written to :data:`REPORT_NAME` in the output directory.

    Raises:
        ConfigError: A setting cannot be used, or the output directory belongs to other settings.
        DataError: The model, the caption file or an existing parquet file cannot be read, or
            there is no video at all.
    """
    if config.videos is None or config.spec is None:
        message = "preprocessing videos needs a folder of videos and a frame size and rate"
        raise ConfigError(message)
    run = _Run(config, progress or _Silent(), ("vae", "text_encoder"))
    settings = run.settings(
        task="t2v",
        videos=str(config.videos.resolve()),
        max_windows=config.max_windows,
        **asdict(config.spec),
    )
    root = config.videos
    clips = _videos_in(root)
    matched = match_captions(clips, config.captions, root)
    run.report.clips = len(clips)
    run.report.unused_captions = matched.unused
    with run.store(pyarrow_schema_t2v, settings) as store:
        todo = []
        for clip in clips:
            name, caption = clip.relative_to(root).as_posix(), matched.captions.get(clip)
            if name in store:
                run.note_finished(name, caption, store)
            elif caption is None:
                run.report.skip(name, "no caption", matched.problems[clip])
            else:
                todo.append(_Clip(clip, name, caption))
        run.progress.begin(len(clips), len(clips) - len(todo))
        _encode_clips(todo, config.spec, run, store)
    return run.report


def preprocess_captions(
    config: PreprocessConfig, *, progress: Progress | None = None
) -> PreprocessReport:
    """Writes a text-only data set: the text embedding of every caption.

    A row's id is ``text_`` and the name its caption file gives it, or a hash of the caption.

    Args:
        config: What to do. ``captions`` is a file, or ``auto`` with a folder of ``videos``.
        progress: Is told how far the run is.

    Returns:
        The report, which is also written to :data:`REPORT_NAME` in the output directory.

    Raises:
        ConfigError: A setting cannot be used, or the output directory belongs to other settings.
        DataError: The model, the caption file or an existing parquet file cannot be read, or
            there is no caption at all.
    """
    run = _Run(config, progress or _Silent(), ("text_encoder",))
    named = _named_captions(config, run.report)
    with run.store(pyarrow_schema_text_only, run.settings(task="text_only")) as store:
        todo = []
        for name, caption in named.items():
            if f"text_{name}" in store:
                run.note_finished(f"text_{name}", caption, store)
            else:
                todo.append((name, caption))
        run.progress.begin(run.report.clips, run.report.clips - len(todo))
        for start in range(0, len(todo), _CAPTIONS_PER_BATCH):
            batch = todo[start : start + _CAPTIONS_PER_BATCH]
            for name, caption in batch:
                run.note_length(name, caption)
            embeddings = run.text_encoder.encode([caption for _, caption in batch])
            records = [
                text_only_record_creator(name, embedding, caption)
                for (name, caption), embedding in zip(batch, embeddings, strict=True)
            ]
            store.add(records_to_table(records, pyarrow_schema_text_only))
            run.finished(len(batch))
    return run.report


@dataclass(frozen=True, slots=True)
class _Clip:
    path: Path
    name: str
    caption: str


@dataclass(frozen=True, slots=True)
class _ClipEnd:
    """Follows a clip's last window; ``fps`` is the rate its file names, if any."""

    fps: float | None


class _Run:
    """One run: its encoders, loaded when first needed, and its report."""

    def __init__(
        self, config: PreprocessConfig, progress: Progress, components: tuple[str, ...]
    ) -> None:
        self.config = config
        self.progress = progress
        self.report = PreprocessReport(dataset=str(config.out / DATASET_FOLDER))
        self._began = time.monotonic()
        self._model_dir = resolve_model_path(config.model, option="--model")
        self._fingerprint = model_fingerprint(self._model_dir, components)
        self._embed_cached = lru_cache(maxsize=256)(self._embed)

    @cached_property
    def text_encoder(self) -> TextEncoder:
        return TextEncoder.from_model_dir(
            self._model_dir,
            device=self.config.device,
            text_len=self.config.text_len,
            dtype=DTYPES[self.config.dtype],
        )

    @cached_property
    def _vae(self) -> Any:  # noqa: ANN401 - diffusers is untyped
        return load_vae(self._model_dir, device=self.config.device, dtype=DTYPES[self.config.dtype])

    def settings(self, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON values
        """Returns what decides the content of the samples."""
        return {
            **more,
            "model": self._fingerprint,
            "dtype": self.config.dtype,
            "text_len": self.config.text_len,
        }

    @contextmanager
    def store(self, schema: pa.Schema, settings: dict[str, Any]) -> Iterator[SampleStore]:
        """Opens the store; afterwards writes what is left in it, and the report."""
        with open_store(
            self.config.out,
            schema=schema,
            samples_per_file=self.config.samples_per_file,
            settings=settings,
        ) as store:
            try:
                yield store
                store.finish()
                self.report.complete = True
            finally:
                self.report.samples = len(store.captions)
                self.report.elapsed_s = round(time.monotonic() - self._began, 3)
                write_json_atomically(self.config.out / REPORT_NAME, asdict(self.report))

    def embed(self, caption: str) -> torch.Tensor:
        """Returns the embedding [L, D] of a caption; clips often share one."""
        return self._embed_cached(caption)

    def _embed(self, caption: str) -> torch.Tensor:
        return self.text_encoder.encode([caption])[0].cpu()

    def encode(self, window: Window) -> torch.Tensor:
        """Returns the latents [C, T, H, W] of a window."""
        return encode_video(self._vae, frames_to_tensor(window.frames_THWC)[None])[0]

    def note_finished(self, sample_id: str, caption: str | None, store: SampleStore) -> None:
        """Counts a clip that an earlier run finished."""
        self.report.finished_before += 1
        if caption is not None and store.captions[sample_id] != caption:
            self.report.changed_captions.append(sample_id)

    def note_length(self, name: str, caption: str) -> None:
        """Notes a caption that will be cut."""
        if self.text_encoder.count_tokens(caption) > self.config.text_len:
            self.report.shortened_captions.append(name)

    def finished(self, count: int = 1) -> None:
        """Counts clips that are in the store now."""
        self.report.finished_now += count
        self.progress.advance(count)

    def skip(self, clip: _Clip, kind: str, reason: str) -> None:
        """Leaves a clip out."""
        self.report.skip(clip.name, kind, reason)
        self.progress.advance(1)


def _encode_clips(clips: Sequence[_Clip], spec: FrameSpec, run: _Run, store: SampleStore) -> None:
    """Encodes clips in order. A clip enters the store when all its windows are encoded."""
    latents: list[torch.Tensor] = []
    for clip, item in _read_ahead(_decode(clips, spec, run.config.max_windows), _WINDOWS_AHEAD):
        if isinstance(item, Window):
            latents.append(run.encode(item))
            continue
        if isinstance(item, VideoError):
            run.skip(clip, item.kind, item.reason)
        elif not all(bool(latent.isfinite().all()) for latent in latents):
            reason = f"its latents are not finite in {run.config.dtype}; use --dtype fp32"
            run.skip(clip, "not finite", reason)
        else:
            store.add(_clip_table(clip, latents, spec, run))
            if item.fps is not None and item.fps < spec.fps * _SLOWER:
                run.report.repeated_frames.append(clip.name)
            run.finished()
        latents = []


def _decode(
    clips: Iterable[_Clip], spec: FrameSpec, max_windows: int | None
) -> Iterator[tuple[_Clip, Window | VideoError | _ClipEnd]]:
    """Yields the windows of every clip, followed by its end or by what is wrong with it."""
    for clip in clips:
        try:
            fps = probe_video(clip.path).fps
            for window in read_windows(clip.path, spec, max_windows=max_windows):
                yield clip, window
            yield clip, _ClipEnd(fps)
        except VideoError as error:
            yield clip, error


def _read_ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yields ``items``, computing up to ``depth`` of them ahead in one other thread."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="video-decode")
    try:
        ahead = deque(pool.submit(next, items, end) for _ in range(depth))
        while True:
            item = ahead.popleft().result()
            if item is end:
                return
            ahead.append(pool.submit(next, items, end))
            yield cast("T", item)
    finally:
        pool.shutdown(cancel_futures=True)


def _clip_table(
    clip: _Clip, latents: Sequence[torch.Tensor], spec: FrameSpec, run: _Run
) -> pa.Table:
    run.note_length(clip.name, clip.caption)
    embedding = run.embed(clip.caption)
    count = len(latents)
    batch = VideoBatch(
        video_file_name=[clip.name, *(f"{clip.name}#{index}" for index in range(1, count))],
        prompt=[clip.caption] * count,
        latents=latents,
        prompt_embeds=[embedding] * count,
        width=[spec.width] * count,
        height=[spec.height] * count,
        fps=[spec.fps] * count,
    )
    records = basic_t2v_record_creator(batch)
    for record in records:
        record["file_name"] = clip.name
    return records_to_table(records, pyarrow_schema_t2v)


def _videos_in(root: Path) -> list[Path]:
    clips = find_videos(root)
    if not clips:
        endings = ", ".join(sorted(VIDEO_SUFFIXES))
        message = f"no video file below {root}; expected files ending in {endings}"
        raise DataError(message)
    return clips


def _named_captions(config: PreprocessConfig, report: PreprocessReport) -> dict[str, str]:
    """Returns the captions of text-only data by name; notes those that cannot be used."""
    named: dict[str, str] = {}
    for name, caption, place in _text_sources(config, report):
        report.clips += 1
        key = name or hashlib.sha256(caption.encode()).hexdigest()[:16]
        if not caption:
            report.skip(place, "no caption", "its caption is empty")
        elif named.get(key, caption) != caption:
            report.skip(place, "name taken", f"another caption has the name {key!r} already")
        elif key in named:
            report.duplicate_captions += 1
        else:
            named[key] = caption
    if report.clips == 0:
        message = f"no captions in {config.captions}; there is nothing to encode"
        raise DataError(message)
    return named


def _text_sources(
    config: PreprocessConfig, report: PreprocessReport
) -> Iterator[tuple[str, str, str]]:
    """Yields ``(name, caption, place)`` from a caption file, or from the clips of a folder."""
    if config.captions != AUTO:
        for record in load_captions(Path(config.captions).expanduser()):
            yield record.name, record.caption, record.place
        return
    if config.videos is None:
        message = "captions are 'auto' and there is no folder of videos; give a caption file"
        raise ConfigError(message)
    clips = _videos_in(config.videos)
    matched = match_captions(clips, AUTO, config.videos)
    report.unused_captions = matched.unused
    for clip in clips:
        name = clip.relative_to(config.videos).as_posix()
        if clip in matched.captions:
            yield name, matched.captions[clip], name
        else:
            report.clips += 1
            report.skip(name, "no caption", matched.problems[clip])
