"""Compiling the blocks of a transformer, and nothing around them.

The blocks are where the time goes, they are alike, so one of them is compiled for all, and whatever
is around them stays ordinary Python: profiler regions, gradient checkpointing, and FSDP, which
gathers a block's weights before it and frees them behind it.
"""

from __future__ import annotations

import os
import shutil
import warnings
from typing import TYPE_CHECKING, Any

from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

_COMPILERS = ("g++", "c++", "clang++")
_INDUCTOR = "inductor"
_WHERE = "training.model"


def compile_blocks(transformer: nn.Module, options: Mapping[str, Any]) -> None:
    """Makes the first forward of each block compile it, in place; names stay as they are.

    Call it before the blocks are sharded.

    Args:
        transformer: A transformer with ``blocks``.
        options: Arguments of ``torch.compile``, ``training.model.torch_compile_kwargs``.

    Raises:
        ConfigError: An option is none, there are no blocks, or no compiler that inductor could use.
    """
    blocks = getattr(transformer, "blocks", None)
    if not blocks:
        message = (
            f"{_WHERE}.enable_torch_compile: {type(transformer).__name__} has no blocks to "
            f"compile. Set --{_WHERE}.enable_torch_compile false"
        )
        raise ConfigError(message)
    if options.get("backend", _INDUCTOR) == _INDUCTOR:
        _look_for_compiler()
    # The compiler looks at that attribute of every tensor itself.
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is", UserWarning)
    for block in blocks:
        try:
            block.compile(**options)
        except (TypeError, ValueError, RuntimeError) as error:
            message = f"{_WHERE}.torch_compile_kwargs {dict(options)}: {error}"
            raise ConfigError(message) from error


def _look_for_compiler() -> None:
    compiler = os.environ.get("CXX", "")
    if not any(shutil.which(name) for name in (compiler, *_COMPILERS) if name):
        message = (
            f"{_WHERE}.enable_torch_compile needs a C++ compiler, and none of "
            f"{', '.join(_COMPILERS)} is on the PATH. Install one, name it in CXX, set "
            f"--{_WHERE}.torch_compile_kwargs '{{backend: aot_eager}}', or "
            f"--{_WHERE}.enable_torch_compile false"
        )
        raise ConfigError(message)
