"""What holds do, for threads and asyncio alike."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from itertools import chain

from ..transport.call import Call, Steps, Terms
from ..transport.commands import command
from ..values.decision import Decision, JointDecision
from ..values.errors import BadArgument, TokenBucketError
from ..values.limit import Number
from .operations import Backend, Part, keep

Used = Number | Mapping[str, Number]

MAX_HOLD_TTL_MS = 30 * 86_400_000


class HoldOperations:
    """What is held for one piece of work until it is settled, or its holder is gone.

    Work that was let through while the server was away has a hold too: the first renewal after its
    return takes it, given room, and the settlement charges in any case.
    """

    def __init__(self, backend: Backend, parts: Sequence[Part], ttl_ms: int, terms: Terms) -> None:
        if not 0 < ttl_ms <= MAX_HOLD_TTL_MS:
            raise BadArgument(f"ttl_ms: {ttl_ms!r} is not from 1 to 30 days")
        self._backend = backend
        self._parts = parts
        self._ttl_ms = ttl_ms
        self._terms = terms
        """Says how the first call waits; renewals do not wait."""
        self._process = os.getpid()
        self._was_granted = self._was_local = False
        self.id = uuid.uuid4().hex
        self.amounts = {part.which: part.amount for part in parts}
        """What is held of each limit; of a single limit, under the name \"\"."""
        self.used: Used | None = None
        """What the work used, for the end of `with`: of several limits, by their names.

        What is not reported counts as used in a bucket that refills; slots of a pool (rate 0) come back.
        """
        self.decision = JointDecision(allowed=False)
        """The first decision, then that of the last renewal."""
        self.remaining: dict[str, int] = {}
        """What each limit had left at the last reply of the server."""

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    @property
    def renew_every_s(self) -> float:
        """Three times a ttl, so that one renewal may fail and the next still comes in time."""
        return self._ttl_ms / 3000

    @property
    def _is_inherited(self) -> bool:
        """Returns whether a fork made this one: the hold is the parent's to renew and to settle."""
        return self._process != os.getpid()

    def _renew(self, first: bool = False) -> Steps[JointDecision]:
        # A late renewal is the hold of work that goes on; of a hold that was denied, nothing may stay.
        self.decision = yield from self._backend._decide_all(
            self._parts,
            *("TB.MHOLD", len(self._parts), self._ttl_ms, self.id),
            terms=self._terms if first else Terms(late=keep),
        )
        self._was_granted = self._was_granted or self.decision.allowed
        self._note(self.decision)
        return self.decision

    def _amounts_used(self, used: Used | None) -> list[Part]:
        """Returns the parts with what was used of each. Raises BadArgument before anything is sent."""
        of: Mapping[str, Number] = {}
        if isinstance(used, Mapping):
            of = used
        elif used is not None:
            of = dict.fromkeys(self.amounts, used)
            if len(of) > 1 and used != 0:
                raise BadArgument(f"used: {used!r} does not say of which of {list(of)}")
        if unknown := [which for which in of if which not in self.amounts]:
            raise BadArgument(f"used: the hold has no {unknown[0]!r}, only {', '.join(self.amounts)}")
        for part in self._parts:
            _check_used(part, of.get(part.which, 0))
        return [replace(part, amount=of.get(part.which, self._unreported(part))) for part in self._parts]

    def _unreported(self, part: Part) -> Number:
        return part.amount if self._was_granted and part.limit.tokens_per_s else 0

    def _settle(self, parts: list[Part], calls: list[Call] | None = None) -> Steps[JointDecision]:
        """What was not used comes back, what was used beyond the hold is charged.

        A hold that is not there (it expired, or the server was away when the work began) is charged
        what was used. Asked also while the server is thought to be away: what a settlement does not
        tell is lost. Sent once: a second "not there" could mean that the first has settled.
        """
        settled = yield from self._backend._decide_all(
            parts, "TB.MSETTLE", len(parts), self.id, terms=Terms(once=True, always=True, calls=calls)
        )
        self._note(settled)
        if settled.degraded:
            return settled
        if self._was_local:
            arguments = (command(part.key, part.limit, part.amount) for part in parts)
            self._backend.server.local.execute(
                "TB.MSETTLE", len(parts), self.id, *chain.from_iterable(arguments)
            )
        each = dict(settled.each)
        for part in parts:
            if not each[part.which].allowed and float(part.amount) > 0:
                words = command("TB.CHARGE", part.key, part.limit, part.amount)
                terms = Terms(once=True, always=True)
                each[part.which] = Decision.read(*(yield from self._backend._ask(words, terms)))
        settled = replace(settled, each=each, lost=any(one.lost for one in each.values()))
        self._note(settled)
        return settled

    @contextmanager
    def _masking_nothing(self, error: BaseException | None) -> Iterator[None]:
        """Logs why the hold was not settled if its work has failed: that is what the caller hears."""
        try:
            yield
        except TokenBucketError:
            if error is None:
                raise
            self._backend.server.log.exception("a hold was not settled as its work has reported")

    def _note(self, decision: JointDecision) -> None:
        self._was_local = self._was_local or decision.degraded
        if not decision.degraded:
            self.remaining |= {which: one.remaining for which, one in decision.each.items()}


def _check_used(part: Part, used: Number) -> None:
    of = f" of {part.which!r}" if part.which else ""
    try:
        is_amount = Decimal(str(used)) >= 0
    except InvalidOperation:
        is_amount = False
    if not is_amount:
        raise BadArgument(f"used: {used!r}{of} is not a number of at least 0")
    if float(used) and not part.limit.tokens_per_s:
        raise BadArgument(f"used: {used!r}{of} is not 0, and a pool (rate 0) has slots that come back")
