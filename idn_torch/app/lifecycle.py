"""How every kind of run passes and ends: its progress bar, and a directory that says what became of it."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["ended_in_order", "progress"]

log = logging.getLogger(__name__)


@contextlib.contextmanager
def ended_in_order(leave: Callable[[str], None]) -> Iterator[None]:
    """Call `leave("interrupted")` or `leave("failed")` for a run that an exception ends, and let it pass."""
    try:
        yield
    except KeyboardInterrupt:
        leave("interrupted")
        raise
    except Exception:
        log.info("failed", exc_info=True)
        with contextlib.suppress(Exception):  # the error that stopped the run is the one to report
            leave("failed")
        raise


@contextlib.contextmanager
def progress(total: int, unit: str, wanted: bool | None, done: int = 0) -> Iterator[Any]:
    """A progress bar on standard error, where that is a terminal or the configuration asks for one."""
    from tqdm import tqdm

    shown = sys.stderr.isatty() if wanted is None else wanted
    with tqdm(total=total, initial=done, unit=unit, disable=not shown, file=sys.stderr) as bar:
        yield bar
