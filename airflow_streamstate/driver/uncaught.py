"""What Python itself prints of errors that nobody caught, without secrets.

An error without a secret is printed by Python's own hook, to the letter. A script that sets a hook of its own keeps it.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

Redact = Callable[[str], str]


def hide_in_uncaught(redacted: Redact) -> None:
    """Hide secrets in what Python prints of uncaught errors: of the main thread, of others, and of finalizers.

    Called again, as more secrets become known, it hides those as well.

    Args:
        redacted: gives a text without secrets.
    """
    in_main, in_thread, unraisable = sys.excepthook, threading.excepthook, sys.unraisablehook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not _printed_redacted(redacted, "", kind, error, trace):
            in_main(kind, error, trace)

    def thread_excepthook(args: threading.ExceptHookArgs) -> None:
        # SystemExit of a thread is silent.
        name = threading.get_ident() if args.thread is None else args.thread.name
        lead = f"Exception in thread {name}:\n"
        if args.exc_type is SystemExit or not _printed_redacted(
            redacted, lead, args.exc_type, args.exc_value, args.exc_traceback
        ):
            in_thread(args)

    def unraisablehook(args: sys.UnraisableHookArgs) -> None:
        words = args.err_msg or "Exception ignored in"
        lead = f"{words}: {_repr(args.object)}\n" if args.object is not None else f"{words}:\n"
        if not _printed_redacted(redacted, lead, args.exc_type, args.exc_value, args.exc_traceback):
            unraisable(args)

    sys.excepthook, threading.excepthook, sys.unraisablehook = excepthook, thread_excepthook, unraisablehook


def _printed_redacted(
    redacted: Redact,
    lead: str,
    kind: type[BaseException],
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool:
    """Print it without its secrets; False where it holds none, and nothing was printed."""
    text = lead + "".join(traceback.format_exception(kind, error, trace))
    shown = redacted(text)
    if shown == text:
        return False
    if sys.stderr is not None:
        sys.stderr.write(shown)
        sys.stderr.flush()
    return True


def _repr(thing: object) -> str:
    try:
        return repr(thing)
    except Exception:
        return "<object repr() failed>"
