"""What ctrl-c leaves behind, in words: each verb is cut short in its own way."""

from __future__ import annotations

from collections.abc import Mapping

_ORDERED = ("interrupted; an order that was recorded goes on", "`streamstate status {stream}` shows where it stands.")
_LOOKED = ("interrupted; it only looked, and nothing was changed", "")
_AGAIN = ("interrupted; what was done stays", "The same command again goes on where it was cut short.")
_UPGRADED = (
    "interrupted; an upgrade or a rollback that was begun stays under way",
    "`streamstate status {stream}` names it, `streamstate upgrade {stream} --continue` goes on with it.",
)
_WORDS: Mapping[str, tuple[str, str]] = {
    "adopt": (
        "interrupted; the query that runs was let go again, unless it had been adopted",
        "The same command again adopts it; `streamstate adopt {stream} --give-up` makes sure that it is free.",
    ),
    "plan": ("interrupted; its rehearsal was ended, and the stream was not touched", ""),
    **dict.fromkeys(("upgrade", "restart", "rollback"), _UPGRADED),
    **dict.fromkeys(
        ("status", "streams", "events", "logs", "snapshots", "verify", "audit", "state", "diff", "doctor"), _LOOKED
    ),
    **dict.fromkeys(("mirror", "restore-home", "prune", "pin", "retire"), _AGAIN),
}


def interrupted(verb: str, stream_id: str) -> dict[str, object]:
    """The error of a command that was interrupted, as ``{type, message, context, next_step}``.

    Args:
        verb: which command; "" where it was not known yet.
        stream_id: its stream; "" where it has none, or it was not known yet.
    """
    message, next_step = _WORDS.get(verb, _ORDERED)
    return {
        "type": "Interrupted",
        "message": message,
        "context": {"stream_id": stream_id} if stream_id else {},
        "next_step": next_step.format(stream=stream_id or "STREAM"),
    }
