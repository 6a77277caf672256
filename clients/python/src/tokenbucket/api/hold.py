"""What holds do, for threads and asyncio alike."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic

from ..transport.call import Call, Steps
from ..transport.commands import Command, renewing
from ..values.constants import AGAIN_S
from ..values.decision import Decision
from ..values.errors import BadArgument, ServerAway, TokenBucketError
from ..values.limit import Number, exactly
from .operations import Backend, DecisionT, Part, Parts, checked_ms, done, words_of

Used = Number | Mapping[str, Number]


class HoldOperations(Generic[DecisionT]):
    """What is held for one piece of work until it is settled, or its holder is gone.

    Work that was let through while the server was away has a hold too: the first renewal after its
    return takes it, given room, and a settlement that the server answers charges in any case.
    """

    # What threads and asyncio do in ways of their own.
    _end: Callable[[Used | None], DecisionT]

    def __init__(self, backend: Backend[Any, Any, Any], parts: Parts, ttl_ms: int, call: Call) -> None:
        checked_ms("ttl_ms", ttl_ms, 1)
        self._backend = backend
        self._parts = parts
        self._held = [part for part in parts if exactly(part.amount) != 0]
        """Those that hold more than nothing, which the server forgets at once."""
        self._ttl_ms = ttl_ms
        self._terms = call
        """Says how the first call waits; renewals do not wait."""
        self._process = os.getpid()
        self._was_granted = self._was_local = self._is_denied = self._is_away = False
        self._is_sent = self._is_known = False
        """Say whether the server may have the hold, and whether it has had it."""
        self._late: Parts = ()
        """The buckets in which a call without a reply may still take it."""
        self._lasts_until = 0.0
        """When the server ends the hold unless it is renewed."""
        self.lost = False
        """True once the server no longer has the hold. Other calls may have its tokens: stop the work.

        The holder was suspended for longer than `ttl_ms`, the server was away for more than half of it,
        every renewal for all of it failed with an error such as NOPERM, or a failover lost it. The next
        renewal finds out: within a third of `ttl_ms`, or when the server is back or accepts writes again.
        """
        self.on_lost: Callable[[], object] | None = None
        """Is called once when the hold is lost, where it is renewed: a thread, or the event loop.

        It must not block, since it would delay the renewals of other holds.
        """
        self.id = uuid.uuid4().hex
        self.amounts = {} if call.each else {part.which: part.amount for part in parts}
        """What is held of each limit; of a single limit, under the name \"\"."""
        self.used: Used | None = None
        """What the work used, for the end of `with`: of several limits, by their names.

        What is not reported counts as used in a bucket that refills; slots of a pool (rate 0) come back.
        """
        self.decision = Decision(allowed=False)
        """The first decision, then that of the last renewal; `granted` of alternatives stays the first."""
        self.remaining: dict[str, int] = {}
        """What each limit had left at the last reply of the server."""

    def settle(self, used: Used | None = None) -> DecisionT:
        """Ends the hold: charges `used` (or the attribute) and refunds the rest. The first call is final.

        Unreported use counts as used in a bucket that refills; slots of a pool come back. With asyncio, a
        cancelled caller is cancelled after the settlement.
        """
        return self._end(self.used if used is None else used)

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def _renew_every_s(self) -> float:
        """A third of the ttl, or a tenth while the server is away, so that one of them comes in time."""
        return self._ttl_ms / (10_000 if self._is_away else 3000)

    @property
    def _is_inert(self) -> bool:
        """Returns whether there is nothing to renew or settle: it was denied, if only in shadow mode, or
        it is the parent's, in a forked process."""
        return self._process != os.getpid() or self._is_denied

    def _command(self, name: str, parts: Parts, *ttl_ms: int) -> Command:
        return (name, len(parts), *ttl_ms, self.id, *words_of(parts))

    def _renew(self, first: bool = False) -> Steps[Decision]:
        parts = self._parts if first else self._held
        call, is_kept = self._terms if first else Call(renews=self._is_known), not first
        if call.each:
            words = self._command("TB.HOLDANY", parts, call.each, self._ttl_ms)
        else:
            words = self._command("TB.MHOLD", parts, self._ttl_ms)
        try:
            decision = yield from self._backend._ask(parts, words, call)
            is_kept = is_kept or decision.allowed or not call.was_sent
        except Exception as error:
            self._is_away = isinstance(error, ServerAway)
            is_kept = is_kept or not call.was_sent
            is_over = self._backend._clock.monotonic() > self._lasts_until
            if call.renews and is_over and not (self._is_away or self.lost):
                self._lose()
            raise
        finally:  # of a cancelled call, too
            self._is_sent = self._is_sent or call.was_sent
            if call.was_sent and not call.renews:
                self._late = self._late or parts
            if not is_kept:
                self._abandon()
        if call.each:
            self._choose(decision, call)
        return self._renewed(decision)

    def _choose(self, decision: Decision, call: Call) -> None:
        """Keeps the granted alternative alone. Another is ended that the server may hold without a reply."""
        if parts := call.chosen(self._parts, decision.granted):
            if decision.degraded and call.was_sent:
                kept = {part.key for part in parts if part in self._held}
                self._abandon([part for part in self._parts if part.key not in kept])
            self._parts, self._held = parts, [part for part in parts if part in self._held]
            self.amounts = {part.which: part.amount for part in parts}

    def _renewed(self, decision: Decision) -> Decision:
        self._was_granted = self._was_granted or decision.allowed
        self._is_denied = not self._was_granted
        self._is_away = decision.degraded
        self._is_sent = self._is_sent or not decision.degraded
        if decision.allowed and not decision.degraded:
            self._is_known = True
            self._lasts_until = self._backend._clock.monotonic() + self._ttl_ms / 1000
        if self._backend._shadow:
            decision = decision._in_shadow_mode()
        if self._terms.each and self.decision.granted:  # whose number no renewal says
            decision = replace(decision, granted=self.decision.granted)
        self.decision = decision
        self._note(decision)
        if self._is_known and not (decision.allowed or decision.degraded or self.lost):
            self._lose()
        return decision

    def _lose(self) -> None:
        self.lost = True
        log = self._backend.server.log
        log.warning("a hold of %s was lost", self._parts[0].key)
        if self.on_lost:
            try:
                self.on_lost()
            except Exception:
                log.exception("on_lost has failed")

    @property
    def _is_renewed(self) -> bool:
        """Returns whether it is worth a renewal: a lost hold is not taken anew."""
        return bool(self._held) and not self.lost and not self._is_inert

    def _renewal(self) -> Command:
        """Returns what renews it, to be sent together with the renewals of others."""
        self._is_sent = self._is_sent or not self._is_away
        words = self._command("TB.MHOLD", self._held, self._ttl_ms)
        return renewing(words) if self._is_known else words

    def _abandon(self, parts: Parts | None = None, in_s: float = 0.0) -> None:
        """Ends, by its id, a hold that the server may have and no caller knows of."""
        of = {part.key: part._replace(amount=0) for part in (self._parts if parts is None else parts)}
        if of:
            self._settle_later(list(of.values()), in_s)

    def _settle_later(self, parts: Parts, in_s: float = 0.0) -> None:
        """Charges nothing if the hold is not there, so that it may be sent again and again."""
        words = self._command("TB.MSETTLE", parts)
        came_back = partial(self._backend._came_back, parts)
        server = self._backend.server
        server._unsettled.add(words, self._ttl_ms / 1000, in_s, self._is_known, came_back)
        server._settle_in(in_s)

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
            if list(self.amounts) == [""]:
                raise BadArgument("used: the hold has one limit, and takes one number")
            raise BadArgument(f"used: the hold has no {unknown[0]!r}, only {', '.join(self.amounts)}")
        for part in self._parts:
            _check_used(part, of.get(part.which, 0))
        parts = [part._replace(amount=of.get(part.which, self._unreported(part))) for part in self._parts]
        if self._terms.each:  # what fills up an alternative has no hold
            held = {part.which for part in self._held}
            parts = [part for part in parts if part.which in held or exactly(part.amount)]
            # Without a reply they are all alternatives, which may share a limit.
            parts = list({part.key: part for part in parts}.values())
        return parts

    def _unreported(self, part: Part) -> Number:
        return part.amount if self._was_granted and part.limit.tokens_per_s else 0

    def _settle(self, parts: list[Part]) -> Steps[Decision]:
        """What was not used comes back, what was used beyond the hold is charged.

        A hold that is not there (it expired, or the server was away when the work began) is charged
        what was used. Sent once: a second "not there" could mean that the first has settled. Without a
        reply, the hold is settled by its id later.
        """
        if not parts:  # an alternative that wants nothing
            return self.decision
        began, is_settled = self._backend._clock.monotonic(), False
        try:
            words = self._command("TB.MSETTLE", parts)
            settled = yield from self._backend._ask(parts, words, Call(once=True))
            is_settled = not settled.degraded
        except BadArgument:
            is_settled = True
            raise
        finally:  # of a cancelled call, too
            self._backend._came_back(parts)
            if self._is_sent and not is_settled:
                self._settle_later(parts, AGAIN_S)
        if is_settled and self._late:
            self._abandon(self._late, AGAIN_S)
        self._note(settled)
        each = {part.which: settled.each.get(part.which, settled) for part in parts}
        if self._was_local and not settled.degraded:
            self._backend.server._local.execute(*words)
        for part in [] if settled.degraded else parts:
            if not each[part.which].allowed and float(part.amount) > 0:
                words = ("TB.CHARGE", *part.words)
                each[part.which] = yield from self._backend._ask([part], words, Call(once=True))
                self._note(replace(settled, each=each))
        self._backend._report(parts, replace(settled, each=each), began)
        lost = any(one.lost for one in each.values())
        return replace(settled, each=each if settled.each else {}, lost=lost)

    async def _leave(self, error: BaseException | None) -> None:
        """Ends the block. Why the hold was not settled is logged if its work has failed: that is raised."""
        try:
            try:
                await done(self.settle())
            except BadArgument:  # of `used`: the hold ends all the same
                await done(self._end(None))
                raise
        except TokenBucketError:
            if error is None:
                raise
            self._backend.server.log.exception("a hold was not settled as its work has reported")

    def _note(self, decision: Decision) -> None:
        self._was_local = self._was_local or decision.degraded
        if not decision.degraded:
            each = decision.each or dict.fromkeys(self.amounts, decision)
            self.remaining |= {which: one.remaining for which, one in each.items()}


def _check_used(part: Part, used: Number) -> None:
    of = f" of {part.which!r}" if part.which else ""
    amount = exactly(used)
    if amount is None:
        raise BadArgument(f"used: {used!r}{of} is not a number from 0 to 1e12")
    if amount and not part.limit.tokens_per_s:
        raise BadArgument(f"used: {used!r}{of} is not 0, and a pool (rate 0) has slots that come back")
