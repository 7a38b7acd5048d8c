"""The memory of tickets: it is bounded by those that wait to be used."""

from maxam.config import Limits
from maxam.gateway.grants import Grants, Maker
from maxam.gateway.tickets import Tickets
from maxam.records import Identity
from tests.support.sans_io import EVERYTHING, fingerprint_of, policy


def test_used_tickets_leave_nothing() -> None:
    """A maker whose pages come and go within the validity of their tickets keeps a bounded number of them."""
    rights = policy(web=EVERYTHING | {"admin": ["ticket"]})
    tickets = Tickets(Grants(Limits(), lambda: rights, lambda _: None, lambda: None))
    maker = Maker(Identity("web", fingerprint_of("web")), ())
    kept, _ = tickets.make(maker, "waits", ["X/**"], [], None, None, 3600, 0.0)
    for _ in range(5000):
        secret, _ = tickets.make(maker, "page", ["X/**"], [], None, None, 3600, 0.0)
        tickets.take(secret.encode(), None, None, 1.0)
    assert len(tickets) == 1
    assert len(tickets._ends) < 2000
    assert tickets.take(kept.encode(), None, None, 1.0).client_id is None
    tickets.make(maker, "late", ["X/**"], [], None, None, 60, 10.0)
    tickets.make(maker, "next", ["X/**"], [], None, None, 60, 71.0)
    assert len(tickets) == 1
