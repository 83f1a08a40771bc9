"""Asking again, for callers who want that: only after refusals, and only as far as the server's own words give hope."""

from __future__ import annotations

import dataclasses

from .errors import DeadlineUnreachable, Overloaded, PunctualError, Unavailable


@dataclasses.dataclass(frozen=True)
class Again:
    """What to do after a refusal."""

    #: How long to wait first, in seconds.
    wait_s: float
    #: The deadline of the next try, in milliseconds.
    deadline_ms: float | None


@dataclasses.dataclass(frozen=True)
class Retry:
    """How long to keep asking.

    After a refusal that names the earliest possible deadline, the next try has that deadline and a margin, if the budget
    allows it. After one that names a time to come back (``Retry-After``), it comes after that time. Anything else is final:
    what was answered with an error, computed in vain or can't be understood isn't asked again.
    """

    #: All tries and waits together, in milliseconds.
    budget_ms: float
    #: Tries, the first one included.
    attempts: int = 5
    #: The next deadline is the earliest possible one times this: what was possible then may not quite be now.
    margin: float = 1.25

    def __post_init__(self) -> None:
        if not self.budget_ms > 0 or self.attempts < 1 or self.margin < 1:
            raise ValueError(f"{self}: the budget must be above 0, the attempts and the margin at least 1")

    def after(self, error: PunctualError, attempt: int, deadline_ms: float | None, left_ms: float) -> Again | None:
        """What to do after the refusal of a try (1 is the first), with so much of the budget left; None: give up."""
        if attempt >= self.attempts or left_ms <= 0:
            return None
        earliest = error.earliest_deadline_ms
        if isinstance(error, (DeadlineUnreachable, Overloaded)) and earliest is not None and earliest <= left_ms:
            return Again(0.0, min(earliest * self.margin, left_ms))
        if isinstance(error, Unavailable) and error.retry_after is not None:
            left_then = left_ms - error.retry_after * 1000
            if left_then > 0:
                return Again(error.retry_after, left_then if deadline_ms is None else min(deadline_ms, left_then))
        return None
