"""Notifies the subscribers of a post that was published: in the database, then by mail.

    relay run --sink-type stdout | python listener.py

Every line is a record as the relay prints it. DATABASE_URL is the consumer's database with the ledger in it, MAIL_URL
the mail provider's API.
"""

import json
import os
import sys
import urllib.error
import urllib.request

import psycopg

from keys import event_key, recipient
from ledger import Ledger, Permanent, Retry


def post_published(ledger, event, occurred_at):
    """The service: listener, backfill and command line all call it."""
    key = event_key("scheduled-post-published", str(event["post"]))
    for user in event["subscribers"]:
        to = recipient("user", str(user))

        def notify(conn):
            conn.execute("INSERT INTO ledger.notifications (event_key, recipient, type, data) VALUES (%s, %s, 'post', %s)",
                         (key, to, json.dumps({"post": event["post"]})))

        def subscribed():  # now, not when the event was written
            row = ledger.conn.execute("SELECT subscribed FROM subscribers WHERE id = %s", (user,)).fetchone()
            return (row is not None and row[0]), "not subscribed"

        def mail(provider_key, seconds):
            (address,) = ledger.conn.execute("SELECT email FROM subscribers WHERE id = %s", (user,)).fetchone()
            return send_mail(address, event["title"], provider_key, seconds)

        yield key, to, "database", ledger.once(key, to, "database", occurred_at, notify)
        yield key, to, "email", ledger.deliver(key, to, "email", occurred_at, subscribed, mail)


def send_mail(address, subject, provider_key, seconds):
    request = urllib.request.Request(
        os.environ["MAIL_URL"], json.dumps({"to": address, "subject": subject}).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": provider_key})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return json.load(response)["id"]
    except urllib.error.HTTPError as e:
        if e.code >= 500:
            raise
        raise (Retry if e.code == 429 else Permanent)(f"mail API answered {e.code}") from e


def main():
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        ledger = Ledger(conn)
        for line in sys.stdin:
            record = json.loads(line)
            if record["headers"]["event_type"] != "PostPublished":
                continue
            for words in post_published(ledger, record["value"], record["headers"]["occurred_at"]):
                print(*words, flush=True)
            # A Kafka consumer commits its offset here: every row is in the ledger, and claim_due carries on.
            # Only busy, or an error, must come again.


if __name__ == "__main__":
    main()
