"""`fastvideo preprocess`: video files and captions become a data set to train on."""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fastvideo.errors import ConfigError, import_extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo.dataset.preprocess import PreprocessConfig, PreprocessReport

_DESCRIPTION = """\
Encodes video clips and their captions with a model's VAE and text encoder, and writes
them as parquet files to OUT/combined_parquet_dataset. Run it again to go on after an
interruption or to add clips; finished clips are not made again.

A clip that is damaged, too short or without a caption is skipped and reported. The exit
status is 0 if the data set has any sample, 1 if not or, with --strict, if any clip was
skipped."""

_SHOWN_SKIPS = 20


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "preprocess",
        help="turn video clips and captions into a data set",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    _add_inputs(parser.add_argument_group("input and output"))
    _add_frames(parser.add_argument_group("frames"))
    _add_execution(parser.add_argument_group("execution"))


def _add_inputs(group: Any) -> None:  # noqa: ANN401 - argparse's type is private
    group.add_argument(
        "--model",
        required=True,
        metavar="DIR|ID",
        help="model directory, hub id or tiny-random:wan2.1",
    )
    group.add_argument(
        "--videos",
        type=Path,
        metavar="DIR",
        help="folder that is searched for video files at any depth",
    )
    group.add_argument(
        "--captions",
        default="auto",
        metavar="FILE|auto",
        help="json, jsonl or csv that names clips and captions (for text_only also txt, a prompt "
        "per line); auto: CLIP.txt beside each clip, else captions.json, .jsonl or .csv in the "
        "folder of videos (default: auto)",
    )
    group.add_argument("--out", type=Path, required=True, metavar="DIR", help="output directory")
    group.add_argument(
        "--task",
        choices=("t2v", "text_only"),
        default="t2v",
        help="t2v: latents and text embeddings; text_only: text embeddings alone (default: t2v)",
    )
    group.add_argument(
        "--samples-per-file",
        type=int,
        default=64,
        metavar="N",
        help="rows per parquet file (default: 64)",
    )


def _add_frames(group: Any) -> None:  # noqa: ANN401 - argparse's type is private
    group.add_argument("--height", type=int, metavar="PX", help="multiple of 16")
    group.add_argument("--width", type=int, metavar="PX", help="multiple of 16")
    group.add_argument("--num-frames", type=int, metavar="N", help="frames per sample: 4k+1")
    group.add_argument("--fps", type=float, metavar="HZ", help="frames per second of a sample")
    group.add_argument(
        "--windows-per-clip",
        type=_count_or_all,
        default=1,
        metavar="N|all",
        help="samples taken from one clip, one after the other from its start (default: 1)",
    )


def _add_execution(group: Any) -> None:  # noqa: ANN401 - argparse's type is private
    group.add_argument(
        "--device",
        default="auto",
        help="where the encoders run (default: auto, which is cuda if there is one, else cpu)",
    )
    group.add_argument(
        "--dtype",
        choices=("fp32", "bf16", "fp16"),
        default="fp32",
        help="type the encoders run in (default: fp32)",
    )
    group.add_argument(
        "--text-len",
        type=int,
        default=512,
        metavar="N",
        help="most tokens of a caption (default: 512)",
    )
    group.add_argument(
        "--strict", action="store_true", help="exit with status 1 if anything was skipped"
    )


def run(args: argparse.Namespace) -> int:
    """Preprocesses, draws a progress bar, and prints a closing table.

    Args:
        args: The parsed options.

    Raises:
        ConfigError: An option is missing or cannot be used.
        DataError: The model or the captions cannot be read.
    """
    import_extra("rich", extra="train")
    from fastvideo.dataset import preprocess  # noqa: PLC0415 - imports torch

    config = _config(args)
    work = preprocess.preprocess_videos if args.task == "t2v" else preprocess.preprocess_captions
    with _progress_bar() as progress:
        report = work(config, progress=progress)
    thing = "clip" if args.task == "t2v" else "caption"
    _print_report(report, config.out / preprocess.REPORT_NAME, thing)
    return 0 if report.succeeded and not (args.strict and report.skipped) else 1


def _config(args: argparse.Namespace) -> PreprocessConfig:
    from fastvideo.dataset.preprocess import PreprocessConfig  # noqa: PLC0415 - imports torch
    from fastvideo.dataset.video import FrameSpec  # noqa: PLC0415 - imports torch

    spec = None
    if args.task == "t2v":
        needed = ("videos", "height", "width", "num_frames", "fps")
        missing = [name for name in needed if getattr(args, name) is None]
        if missing:
            options = ", ".join("--" + name.replace("_", "-") for name in missing)
            message = f"--task t2v also needs {options}"
            raise ConfigError(message)
        spec = FrameSpec(args.height, args.width, args.num_frames, args.fps)
    return PreprocessConfig(
        model=args.model,
        out=args.out,
        videos=args.videos,
        captions=args.captions,
        spec=spec,
        max_windows=args.windows_per_clip,
        samples_per_file=args.samples_per_file,
        device=_device(args.device),
        dtype=args.dtype,
        text_len=args.text_len,
    )


def _device(name: str) -> str:
    import torch  # noqa: PLC0415 - slow to import

    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if has_cuda else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        message = f"--device is {name!r}; expected auto, cpu, cuda or cuda:N"
        raise ConfigError(message) from error
    if kind == "cuda" and not has_cuda:
        message = f"--device is {name!r}, and PyTorch sees no CUDA device; use --device cpu"
        raise ConfigError(message)
    return name


def _count_or_all(text: str) -> int | None:
    if text == "all":
        return None
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        message = f"expected a whole number of at least 1, or all; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return count


@final
class _Bar:
    """Draws how far a run is."""

    def __init__(self, progress: Any) -> None:  # noqa: ANN401 - rich is imported late
        self._progress = progress
        self._task: Any = None

    def begin(self, total: int, finished: int) -> None:
        """Shows the bar."""
        self._task = self._progress.add_task("encoding", total=total, completed=finished)

    def advance(self, count: int) -> None:
        """Moves the bar."""
        self._progress.advance(self._task, count)


@contextmanager
def _progress_bar() -> Iterator[_Bar]:
    from rich import progress  # noqa: PLC0415 - optional

    from fastvideo.cli.help import make_console  # noqa: PLC0415 - beside the other rich import

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=make_console()) as drawn:
        yield _Bar(drawn)


def _print_report(report: PreprocessReport, path: Path, thing: str) -> None:
    from fastvideo.cli.help import print_table  # noqa: PLC0415 - beside the other rich import

    if report.skipped:
        rows = [(skip.name, skip.reason) for skip in report.skipped[:_SHOWN_SKIPS]]
        hidden = len(report.skipped) - len(rows)
        if hidden:
            rows.append((f"and {hidden} more", f"see {path}"))
        print_table("Skipped", (thing, "reason"), rows)
    print_table("Data set", ("item", "value"), _summary(report, path, thing))


def _summary(report: PreprocessReport, path: Path, thing: str) -> list[tuple[str, ...]]:
    kinds: dict[str, int] = {}
    for skip in report.skipped:
        kinds[skip.kind] = kinds.get(skip.kind, 0) + 1
    rows = [
        (f"{thing}s found", str(report.clips)),
        ("finished by this run", str(report.finished_now)),
        ("finished before", str(report.finished_before)),
        *((f"skipped: {kind}", str(count)) for kind, count in sorted(kinds.items())),
    ]
    notes = {
        "slower than --fps, frames repeat": len(report.repeated_frames),
        "captions cut to --text-len": len(report.shortened_captions),
        "captions changed since, old one kept": len(report.changed_captions),
        "captions that name no clip": len(report.unused_captions),
        "captions that occur twice": report.duplicate_captions,
    }
    rows += [(text, str(count)) for text, count in notes.items() if count]
    return [
        *rows,
        ("samples in the data set", str(report.samples)),
        ("seconds", f"{report.elapsed_s:.1f}"),
        ("data set", report.dataset),
        ("report", str(path)),
    ]
