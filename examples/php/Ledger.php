<?php
// The delivery ledger's calls, in the order in which an effect outside of the database needs them.
declare(strict_types=1);

/** The effect did not happen and never will. */
final class Permanent extends RuntimeException {}
/** The effect did not happen, and may succeed another time. */
final class Retry extends RuntimeException {}

final class Ledger
{
    private string $worker;

    public function __construct(private PDO $db)
    {
        $this->worker = gethostname() . '-' . getmypid();
    }

    /**
     * Makes one delivery, unless it was made, and returns the ledger's word for what happened. $eligible returns null
     * to go on, or why not; $send takes the provider's key and the seconds it has, and returns the provider's reference.
     */
    public function deliver(string $eventKey, string $recipient, string $channel, string $occurredAt, callable $eligible, callable $send): string
    {
        if ($this->db->inTransaction()) { // in Laravel: not inside DB::transaction
            throw new LogicException('a stamp that is not committed before the effect protects nobody');
        }
        $asked = hrtime(true); // before the call: the lease may not look longer than it is
        $r = $this->row(
            "SELECT * FROM ledger.reserve(tenant => '', event_key => ?, recipient => ?, channel => ?, worker => ?, event_time => ?)",
            [$eventKey, $recipient, $channel, $this->worker, $occurredAt]);
        if ($r['outcome'] !== 'reserved') {
            return $r['outcome']; // already_delivered, already_skipped, dead, uncertain, not_due, ...
        }
        $held = [$r['id'], $r['fence']];
        $fail = fn (string $kind, Throwable $e): string => $this->word('SELECT ledger.fail(?, ?, kind => ?, reason => ?)', [...$held, $kind, $e->getMessage()]);
        try {
            $refusal = $eligible();
        } catch (Throwable $e) {
            return $fail('retry', $e); // not to be found out: nothing is sent, and it is asked again later
        }
        if ($refusal !== null) {
            return $this->word('SELECT ledger.skip(?, ?, reason => ?)', [...$held, $refusal]);
        }
        $begun = $this->word('SELECT ledger.begin_effect(?, ?)', $held);
        if ($begun !== 'begun') {
            return $begun;
        }
        try {
            $ref = $send($r['provider_key'], $r['lease_ms'] / 1e3 - 2 - (hrtime(true) - $asked) / 1e9);
        } catch (Permanent $e) {
            return $fail('permanent', $e);
        } catch (Retry $e) {
            return $fail('retry', $e);
        } catch (Throwable $e) {
            return $fail('ambiguous', $e); // it may have happened: the channel's policy decides; hold waits for a person
        }
        return $this->word('SELECT ledger.complete(?, ?, provider_ref => ?)', [...$held, $ref]);
    }

    /** Writes a row of the same database exactly once: both commit, or neither does. */
    public function once(string $eventKey, string $recipient, string $channel, string $occurredAt, callable $write): string
    {
        $this->db->beginTransaction();
        try {
            $outcome = $this->word("SELECT ledger.once(tenant => '', event_key => ?, recipient => ?, channel => ?, event_time => ?)",
                [$eventKey, $recipient, $channel, $occurredAt]);
            if ($outcome === 'delivered') {
                $write($this->db);
            }
            $this->db->commit();
            return $outcome;
        } catch (Throwable $e) {
            $this->db->rollBack();
            throw $e;
        }
    }

    private function row(string $sql, array $args): array
    {
        $statement = $this->db->prepare($sql);
        $statement->execute($args);
        return $statement->fetch(PDO::FETCH_ASSOC);
    }

    private function word(string $sql, array $args): string
    {
        return current($this->row($sql, $args));
    }
}
