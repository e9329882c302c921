"""What a callback is: named hooks that the trainer calls, all of them doing nothing by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.train.callbacks.callback_dict import CallbackDict
    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import TrainingMethod


class Callback:
    """Something that acts at fixed moments of a run; subclasses fill in the hooks they need.

    Attributes:
        training_config: The run's ``training`` section, set by the :class:`CallbackDict`.
        name: The key under ``callbacks`` in the run file.
        shared_state_keys: Keys of :meth:`state_dict` that hold tensors by name which belong to the
            model: sharded over the ranks or the same on all of them. A checkpoint keeps these once
            and fits them to other numbers of ranks; every other key is kept for each rank.
    """

    shared_state_keys: ClassVar[frozenset[str]] = frozenset()
    training_config: TrainingConfig | None = None
    name: str = ""
    _callback_dict: CallbackDict | None = None

    def check_settings(self, training_config: TrainingConfig) -> None:
        """Refuses settings before a model is loaded; called for callbacks of this package.

        The launcher asks too, so nothing may be written, and at most small files be read.

        Args:
            training_config: The run's ``training`` section.

        Raises:
            FastVideoError: A setting cannot be used.
        """

    def on_train_start(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Runs once, before a checkpoint is restored.

        Args:
            method: The training method.
            iteration: The step that the caller asked to start from.
        """

    def on_before_optimizer_step(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Runs between the last backward and the optimizer step; not for managed methods.

        Args:
            method: The training method, whose gradients are complete.
            iteration: The current step, counted from 1.
        """

    def on_training_step_end(
        self, method: TrainingMethod, loss_dict: Mapping[str, float], iteration: int = 0
    ) -> None:
        """Runs after every step.

        Args:
            method: The training method.
            loss_dict: The step's scalars by name: losses, metrics, times.
            iteration: The step that has just ended, counted from 1.
        """

    def on_validation_begin(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Runs before the first step and after every step; decides itself whether to validate.

        Args:
            method: The training method.
            iteration: The step that has just ended; the start step before the first one.
        """

    def on_validation_end(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Runs after every step, when validation of that step is over.

        Args:
            method: The training method.
            iteration: The step that has just ended.
        """

    def on_train_end(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Runs once, after the last step; not when the run ends with an exception.

        Args:
            method: The training method.
            iteration: The last step.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of this callback."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` returned.

        Args:
            state_dict: The saved state.
        """
