"""A picture that is drawn on in pixels, with matplotlib behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards import palette
from fastvideo.errors import import_extra
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from pathlib import Path

logger = init_logger(__name__)

DPI: Final = 100
_FONTS: Final = ("Inter", "Roboto", "Helvetica Neue", "Liberation Sans", "Arial", "DejaVu Sans")


@dataclass(frozen=True, slots=True)
class Box:
    """Where something is drawn, in pixels from the top left corner of the picture."""

    left: float
    top: float
    width: float
    height: float

    def inside(self, left: float, top: float, right: float, bottom: float) -> Box:
        """Returns the box without margins of these pixels."""
        return Box(
            self.left + left,
            self.top + top,
            max(1.0, self.width - left - right),
            max(1.0, self.height - top - bottom),
        )


class Canvas:
    """A picture that is drawn on in pixels.

    Args:
        width_px: Its width.
        height_px: Its height.

    Attributes:
        figure: The matplotlib figure.
    """

    def __init__(self, width_px: int, height_px: int) -> None:
        # Neither pyplot nor the user's matplotlib settings: a library leaves those alone.
        figures = import_extra("matplotlib.figure", extra="dashboards")
        managers = import_extra("matplotlib.font_manager", extra="dashboards")
        self._matplotlib = import_extra("matplotlib", extra="dashboards")
        known = {font.name for font in managers.fontManager.ttflist}
        self.fonts = [name for name in _FONTS if name in known]
        self.width_px, self.height_px = width_px, height_px
        self.figure: Any = figures.Figure(
            figsize=(width_px / DPI, height_px / DPI), dpi=DPI, facecolor=palette.BACKGROUND
        )

    def axes(self, box: Box, *, background: str = "none") -> Any:  # noqa: ANN401 - untyped
        """Returns axes that fill a box, without ticks and frame."""
        axes = self.figure.add_axes(
            (
                box.left / self.width_px,
                1 - (box.top + box.height) / self.height_px,
                box.width / self.width_px,
                box.height / self.height_px,
            ),
            facecolor=background,
        )
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(colors=palette.FAINT, labelsize=8, length=0, pad=4)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_fontfamily(self.fonts)
        return axes

    def text(self, left: float, top: float, words: str, **style: Any) -> Any:  # noqa: ANN401
        """Writes words; returns matplotlib's text.

        Args:
            left: Pixels from the left.
            top: Pixels from the top.
            words: What to write; never read as mathematics.
            **style: Of matplotlib's text.
        """
        style = {"color": palette.TEXT, "fontsize": 9, "va": "center"} | style
        return self.figure.text(
            left / self.width_px,
            1 - top / self.height_px,
            words,
            family=self.fonts,
            parse_math=False,
            **style,
        )

    def rectangle(self, box: Box, color: str, *, edge: str = "none", radius: float = 2) -> None:
        """Fills a box, with round corners."""
        patches = import_extra("matplotlib.patches", extra="dashboards")
        self.figure.add_artist(
            patches.FancyBboxPatch(
                (box.left + radius, self.height_px - box.top - box.height + radius),
                box.width - 2 * radius,
                box.height - 2 * radius,
                boxstyle=f"round,pad={radius},rounding_size={radius}",
                facecolor=color,
                edgecolor=edge,
                linewidth=0.8,
                transform=self._pixels(),
                zorder=-1,
            )
        )

    def _pixels(self) -> Any:  # noqa: ANN401 - untyped
        transforms = import_extra("matplotlib.transforms", extra="dashboards")
        scaled = transforms.Affine2D().scale(1 / self.width_px, 1 / self.height_px)
        return scaled + self.figure.transFigure

    def text_width(self, words: str, fontsize: float, weight: str = "normal") -> float:
        """Returns how many pixels wide words are."""
        paths = import_extra("matplotlib.textpath", extra="dashboards")
        fonts = import_extra("matplotlib.font_manager", extra="dashboards")
        prop = fonts.FontProperties(family=self.fonts, size=fontsize, weight=weight)
        width, _, _ = paths.TextToPath().get_text_width_height_descent(words, prop, ismath=False)
        return float(width) * DPI / 72

    def fit(self, words: str, width: float, fontsize: float, weight: str = "normal") -> str:
        """Returns words, cut with an ellipsis where they are wider than so many pixels."""
        if self.text_width(words, fontsize, weight) <= width:
            return words
        while words and self.text_width(words + "…", fontsize, weight) > width:
            words = words[:-1]
        return words.rstrip() + "…"

    def save(self, path: Path) -> None:
        """Writes the picture as PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.figure.savefig(path, format="png", dpi=DPI, facecolor=palette.BACKGROUND)
        logger.info("wrote %s", path)
