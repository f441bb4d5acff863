"""The delivery ledger's calls, in the order in which an effect outside of the database needs them."""

import os
import socket
import time

from psycopg.rows import dict_row


class Permanent(Exception):
    """The effect did not happen and never will."""


class Retry(Exception):
    """The effect did not happen, and may succeed another time."""


class Ledger:
    def __init__(self, conn):
        # Without autocommit the first statement would open a transaction that the effect then runs in.
        assert conn.autocommit
        self.conn = conn
        self.worker = f"{socket.gethostname()}-{os.getpid()}"

    def deliver(self, event_key, recipient, channel, occurred_at, eligible, send):
        """Makes one delivery, unless it was made, and returns the ledger's word for what happened."""
        asked = time.monotonic()  # before the call: the lease may not look longer than it is
        row = self._row(
            """SELECT * FROM ledger.reserve(tenant => '', event_key => %s, recipient => %s, channel => %s,
                                            worker => %s, event_time => %s)""",
            event_key, recipient, channel, self.worker, occurred_at)
        if row["outcome"] != "reserved":
            return row["outcome"]  # already_delivered, already_skipped, dead, uncertain, not_due, ...
        held = (row["id"], row["fence"])
        try:
            ok, why = eligible()
        except Exception as e:  # not to be found out: nothing is sent, and it is asked again later
            return self._fail(held, "retry", e)
        if not ok:
            return self._word("SELECT ledger.skip(%s, %s, reason => %s) AS word", *held, why)
        begun = self._word("SELECT ledger.begin_effect(%s, %s) AS word", *held)  # committed before it is sent
        if begun != "begun":
            return begun
        try:
            ref = send(row["provider_key"], asked + row["lease_ms"] / 1000 - 2 - time.monotonic())
        except Permanent as e:
            return self._fail(held, "permanent", e)
        except Retry as e:
            return self._fail(held, "retry", e)
        except Exception as e:  # it may have happened: the channel's policy decides; hold waits for a person
            return self._fail(held, "ambiguous", e)
        return self._word("SELECT ledger.complete(%s, %s, provider_ref => %s) AS word", *held, ref)

    def once(self, event_key, recipient, channel, occurred_at, write):
        """Writes a row of the same database exactly once: both commit, or neither does."""
        with self.conn.transaction():
            outcome = self._word(
                """SELECT ledger.once(tenant => '', event_key => %s, recipient => %s, channel => %s,
                                      event_time => %s) AS word""",
                event_key, recipient, channel, occurred_at)
            if outcome == "delivered":
                write(self.conn)
            return outcome

    def _fail(self, held, kind, error):
        return self._word("SELECT ledger.fail(%s, %s, kind => %s, reason => %s) AS word", *held, kind, str(error))

    def _row(self, sql, *args):
        return self.conn.cursor(row_factory=dict_row).execute(sql, args).fetchone()

    def _word(self, sql, *args):
        return self._row(sql, *args)["word"]
