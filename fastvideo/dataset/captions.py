"""Captions of clips: files that list them, and text files beside the clips."""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fastvideo.errors import ConfigError, DataError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

logger = init_logger(__name__)

NAME_KEYS = ("file_name", "filename", "file", "path", "video_path", "video", "clip", "name", "id")
"""Keys or columns that may name a clip; the first one present is used."""

CAPTION_KEYS = ("caption", "captions", "cap", "text", "prompt")
"""Keys or columns that may hold a caption; the first one present is used."""

AUTO = "auto"
"""Take ``<clip>.txt`` beside each clip, and else a caption file in the folder of the videos."""

AUTO_FILES = tuple(
    stem + suffix
    for stem in ("captions", "metadata", "videos2caption")
    for suffix in (".json", ".jsonl", ".csv")
)
"""Caption files that :data:`AUTO` looks for, in this order."""


@dataclass(frozen=True, slots=True)
class CaptionRecord:
    """One caption.

    Attributes:
        name: The clip it names, as written; empty if it names none.
        caption: The text, without white space at its ends; may be empty.
        place: File and entry, for messages.
    """

    name: str
    caption: str
    place: str


@dataclass(frozen=True, slots=True)
class MatchedCaptions:
    """Which clip has which caption.

    Attributes:
        captions: Caption of every clip that has one.
        problems: For every other clip, why it has none.
        unused: Places of the captions that name no clip.
    """

    captions: dict[Path, str] = field(default_factory=dict)
    problems: dict[Path, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def load_captions(path: Path) -> list[CaptionRecord]:
    """Reads a caption file.

    * ``.json``: a list of objects, an object whose ``data`` is one, or an object that maps clip
      names to captions.
    * ``.jsonl``: an object per line.
    * ``.csv``: a table with a header.
    * ``.txt``: a prompt per line, without clip names (for text-only data).

    Objects and tables name the clip under one of :data:`NAME_KEYS` and the caption under one of
    :data:`CAPTION_KEYS`. Where a caption is a list of texts, its first is used.

    Raises:
        ConfigError: The file is missing, or its ending is not one of these.
        DataError: The content is not what the ending promises; the message names the place.
    """
    readers = {".json": _read_json, ".jsonl": _read_jsonl, ".csv": _read_csv, ".txt": _read_lines}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        message = f"captions file {path} ends in {path.suffix!r}; expected {', '.join(readers)}"
        raise ConfigError(message)
    if not path.is_file():
        message = f"captions file {path} does not exist"
        raise ConfigError(message)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"captions file {path} is not UTF-8 text: {error}"
        raise DataError(message) from error
    return reader(path, text)


def match_captions(clips: Sequence[Path], source: str, root: Path) -> MatchedCaptions:
    """Finds the caption of every clip.

    A record belongs to a clip when its name equals the end of the clip's path, whole path parts
    only and with or without the file's ending: ``clip``, ``clip.mp4`` and ``part1/clip.mp4`` all
    name ``<root>/part1/clip.mp4``. Names may also be relative to the caption file. The longest
    name wins.

    Args:
        clips: Video files.
        source: Path of a caption file, or :data:`AUTO`.
        root: Folder of the videos.

    Raises:
        ConfigError: The file is missing or of an unknown kind, or holds no clip names.
        DataError: The file's content cannot be understood.
    """
    if source != AUTO:
        return _match_records(clips, Path(source).expanduser(), root)
    matched = MatchedCaptions()
    rest = []
    for clip in clips:
        sidecar = _sidecar(clip)
        if sidecar is None:
            rest.append(clip)
        else:
            _use_sidecar(clip, sidecar, matched)
    listed = next((root / name for name in AUTO_FILES if (root / name).is_file()), None)
    if listed is None:
        reason = f"no {{}}.txt beside it, and no {AUTO_FILES[0]}, .jsonl or .csv in {root}"
        matched.problems.update({clip: reason.format(clip.stem) for clip in rest})
        return matched
    others = _match_records(clips, listed, root)
    matched.captions.update({c: others.captions[c] for c in rest if c in others.captions})
    matched.problems.update({c: others.problems[c] for c in rest if c in others.problems})
    matched.unused.extend(others.unused)
    return matched


def _match_records(clips: Sequence[Path], path: Path, root: Path) -> MatchedCaptions:
    records = load_captions(path)
    if records and not any(record.name for record in records):
        message = (
            f"captions file {path} names no clips; expected one of {', '.join(NAME_KEYS)} in every "
            f"entry, or --captions {AUTO}"
        )
        raise ConfigError(message)
    candidates = [_Candidate.of(record, path) for record in records if record.name]
    by_end: dict[tuple[str, ...], list[_Candidate]] = {}
    for candidate in candidates:
        for end in {candidate.parts, candidate.beside_file}:
            by_end.setdefault(end, []).append(candidate)
    matched = MatchedCaptions()
    for clip in clips:
        _match_clip(clip, by_end, matched, path)
    _refuse_shared(candidates, matched, root)
    matched.unused.extend(c.record.place for c in candidates if not c.clips)
    return matched


@dataclass(slots=True)
class _Candidate:
    """A record with the ends of paths that it names, and the clips it matched.

    ``parts`` is the name itself, ``beside_file`` the whole path it has from the caption file.
    """

    record: CaptionRecord
    parts: tuple[str, ...]
    beside_file: tuple[str, ...]
    clips: list[Path] = field(default_factory=list)

    @classmethod
    def of(cls, record: CaptionRecord, file: Path) -> _Candidate:
        name = record.name.replace("\\", "/")
        parts = tuple(part for part in PurePosixPath(name).parts if part != ".")
        return cls(record, parts, _whole_path(file.parent / name))


def _match_clip(
    clip: Path,
    by_end: dict[tuple[str, ...], list[_Candidate]],
    matched: MatchedCaptions,
    file: Path,
) -> None:
    winners = _longest_match(clip, by_end)
    if not winners:
        matched.problems[clip] = f"no caption in {file.name} names it"
        return
    texts = {candidate.record.caption for candidate in winners}
    for candidate in winners:
        candidate.clips.append(clip)
    if len(texts) > 1:
        places = ", ".join(candidate.record.place for candidate in winners[:3])
        matched.problems[clip] = f"{len(texts)} different captions name it ({places})"
    elif texts == {""}:
        matched.problems[clip] = f"its caption is empty ({winners[0].record.place})"
    else:
        matched.captions[clip] = texts.pop()


def _longest_match(clip: Path, by_end: dict[tuple[str, ...], list[_Candidate]]) -> list[_Candidate]:
    """Returns the records that name most of a clip's path, with or without the file's ending."""
    whole = _whole_path(clip)
    for length in range(len(whole), 0, -1):
        end = whole[-length:]
        found = [*by_end.get(end, []), *by_end.get((*end[:-1], clip.stem), [])]
        if found:
            return found
    return []


def _whole_path(path: Path) -> tuple[str, ...]:
    """Returns the parts of the absolute path; links keep their names, ``..`` is resolved."""
    return Path(os.path.normpath(path.absolute())).parts


def _refuse_shared(candidates: Iterable[_Candidate], matched: MatchedCaptions, root: Path) -> None:
    """Takes the caption back from clips that one record names together: it is unclear which."""
    for candidate in candidates:
        if len(candidate.clips) > 1:
            names = ", ".join(os.path.relpath(clip, root) for clip in candidate.clips[:3])
            for clip in candidate.clips:
                matched.captions.pop(clip, None)
                matched.problems[clip] = (
                    f"the caption at {candidate.record.place} names {len(candidate.clips)} clips "
                    f"({names}); write the folder in front of the name"
                )


def _sidecar(clip: Path) -> Path | None:
    beside = (clip.with_suffix(".txt"), clip.with_name(clip.name + ".txt"))
    return next((path for path in beside if path.is_file()), None)


def _use_sidecar(clip: Path, sidecar: Path, matched: MatchedCaptions) -> None:
    try:
        text = sidecar.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError:
        matched.problems[clip] = f"its caption file {sidecar.name} is not UTF-8 text"
        return
    if text:
        matched.captions[clip] = text
    else:
        matched.problems[clip] = f"its caption file {sidecar.name} is empty"


def _read_json(path: Path, text: str) -> list[CaptionRecord]:
    try:
        content = json.loads(text)
    except ValueError as error:
        message = f"captions file {path} is not valid JSON: {error}"
        raise DataError(message) from error
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        content = content["data"]
    if isinstance(content, list):
        return [_record(item, f"{path.name}[{index}]") for index, item in enumerate(content)]
    if isinstance(content, dict):
        return [_named_record(name, value, path) for name, value in content.items()]
    message = (
        f"captions file {path} holds a JSON {type(content).__name__}; expected a list of objects "
        "or an object that maps clip names to captions"
    )
    raise DataError(message)


def _named_record(name: str, value: Any, path: Path) -> CaptionRecord:  # noqa: ANN401 - JSON
    place = f"{path.name}[{name!r}]"
    if isinstance(value, dict):
        return _record({NAME_KEYS[0]: name, **value}, place)
    return CaptionRecord(name, _caption_text(value, place), place)


def _read_jsonl(path: Path, text: str) -> list[CaptionRecord]:
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path.name}:{number}"
        try:
            item = json.loads(line)
        except ValueError as error:
            message = f"{place} is not valid JSON: {error}"
            raise DataError(message) from error
        records.append(_record(item, place))
    return records


def _read_csv(path: Path, text: str) -> list[CaptionRecord]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [column or "" for column in reader.fieldnames or []]
    if not any(key in columns for key in CAPTION_KEYS):
        message = (
            f"captions file {path} has the columns {', '.join(columns) or 'none'}; expected a "
            f"header with one of {', '.join(CAPTION_KEYS)}"
        )
        raise DataError(message)
    return [_record(row, f"{path.name}:{reader.line_num}") for row in reader]


def _read_lines(path: Path, text: str) -> list[CaptionRecord]:
    return [
        CaptionRecord("", line.strip(), f"{path.name}:{number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]


def _record(item: Any, place: str) -> CaptionRecord:  # noqa: ANN401 - parsed JSON
    if isinstance(item, str):
        return CaptionRecord("", item.strip(), place)
    if not isinstance(item, dict):
        message = f"{place} is a {type(item).__name__}; expected an object with a caption"
        raise DataError(message)
    key = next((key for key in CAPTION_KEYS if item.get(key) is not None), None)
    if key is None:
        message = (
            f"{place} has the keys {', '.join(map(str, item))}; expected one of "
            f"{', '.join(CAPTION_KEYS)}"
        )
        raise DataError(message)
    name = next((item[key] for key in NAME_KEYS if item.get(key) not in (None, "")), "")
    return CaptionRecord(str(name).strip(), _caption_text(item[key], place), place)


def _caption_text(value: Any, place: str) -> str:  # noqa: ANN401 - parsed JSON
    if isinstance(value, list):
        value = next((text for text in value if isinstance(text, str) and text.strip()), "")
    if not isinstance(value, str):
        message = f"{place} has a caption of type {type(value).__name__}; expected text"
        raise DataError(message)
    return value.strip()
