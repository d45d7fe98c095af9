"""What an answer of a server means for a store, in words that every server has in common."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Answer(enum.Enum):
    """The kinds of answers that callers tell apart."""

    ABSENT = "absent"
    PRECONDITION = "precondition"  # the condition of a conditional write did not hold
    BUSY = "busy"  # another conditional write was under way: read again, then try again
    NOT_DONE = "not_done"  # turned away or never reached: nothing was changed
    UNKNOWN = "unknown"  # a write may have landed
    REFUSED = "refused"  # the same request will be refused again

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered otherwise a moment later."""
        return self in (Answer.BUSY, Answer.NOT_DONE, Answer.UNKNOWN)


@dataclass(eq=False)
class RequestFailure(Exception):  # noqa: N818 - never leaves this room
    """One request that did not succeed.

    Attributes:
        answer: what it means.
        status: HTTP status; 0 where there was no response.
        code: the server's code, or the name of the client's error.
        reason: in the words of the server or client; holds no credential.
        region: where the bucket lies, if S3 said so; else "".
    """

    answer: Answer
    status: int
    code: str
    reason: str
    region: str = ""

    @property
    def is_mute(self) -> bool:
        """Whether it says no more than its status: answers to HEAD have no body."""
        return self.status != 0 and self.code in ("", str(self.status))
