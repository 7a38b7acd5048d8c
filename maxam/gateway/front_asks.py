"""Questions of operators to fronts: one to the front that has a session, or the same to all at once.

A front that does not answer within `ANSWER_S` is *silent*. An answer of all fronts then is incomplete.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import trio

from maxam.broker.session import Session
from maxam.cluster import wire
from maxam.errors import MaxamError, ProtocolError
from maxam.gateway.front_children import Front

ANSWER_S: Final = 1.0


@final
class FrontSilentError(MaxamError):
    """A front did not answer in time, or has ended."""

    code = "front-silent"


@final
class _Question:
    """A question that was sent."""

    def __init__(self, front: Front) -> None:
        self.front: Final = front
        self.answered: Final = trio.Event()
        self.answer: Any = None


@final
class FrontAsks:
    """Sends questions, and hands the answers to those who wait for them."""

    def __init__(self, running: Sequence[Front], find: Callable[[bytes], Front | None]) -> None:
        """Make it.

        Args:
            running: The fronts that run, at each time of asking.
            find: Returns a front by its identifier.
        """
        self._running: Final = running
        self._find: Final = find
        self._asked = 0
        self._open: Final[dict[int, _Question]] = {}

    async def all(self, what: str, **facts: object) -> tuple[list[Any], bool]:
        """Ask all fronts. Return the answers in the order of the fronts, and whether one is missing."""
        questions = [self._ask(front, what, facts) for front in self._running]
        told = [answer for question in questions if (answer := question[1]).front.ready]
        try:
            with trio.move_on_after(ANSWER_S):
                for question in told:
                    await question.answered.wait()
        finally:
            for number, _ in questions:
                self._open.pop(number, None)
        answers = [question.answer for question in told if question.answered.is_set()]
        return answers, len(answers) < len(questions)

    async def holder(self, session: Session, what: str, **facts: object) -> Any:  # noqa: ANN401  # JSON of a front of this release
        """Ask the front that has the connection of a session, and return its answer.

        Raises:
            FrontSilentError: It did not answer.
        """
        front = self._find(session.holder)
        if front is not None:
            number, question = self._ask(front, what, {"key": session.key, **facts})
            try:
                with trio.move_on_after(ANSWER_S):
                    await question.answered.wait()
                    return question.answer
            finally:
                self._open.pop(number, None)
        raise FrontSilentError(
            f"the front that has the session {session.client_id} of {session.principal} did not answer within {ANSWER_S:g} s. "
            "Try again; the gateway replaces a front that has ended"
        )

    def expel(self, session: Session, failure: ProtocolError) -> None:
        """Have the connection of a session closed with an ERROR. It waits for no answer."""
        front = self._find(session.holder)
        if front is not None:
            number, _ = self._ask(
                front, "kick", {"key": session.key, "message": failure.message, "detail": failure.detail}
            )
            del self._open[number]

    def answered(self, told: dict[str, Any]) -> None:
        """Take an answer. An answer that comes too late is dropped."""
        question = self._open.get(int(told["ask"]))
        if question is not None:
            question.answer = told["answer"]
            question.answered.set()

    def _ask(self, front: Front, what: str, facts: dict[str, Any]) -> tuple[int, _Question]:
        self._asked += 1
        question = self._open[self._asked] = _Question(front)
        front.link.send(wire.frame(wire.ASK, json.dumps({"ask": self._asked, "what": what, **facts}).encode()))
        return self._asked, question
