// The delivery ledger's calls, in the order in which an effect outside of the database needs them.
import os from 'node:os'

export class Permanent extends Error {} // the effect did not happen and never will
export class Retry extends Error {} // the effect did not happen, and may succeed another time

export class Ledger {
  #pool
  #worker = `${os.hostname()}-${process.pid}`

  constructor(pool) { this.#pool = pool }

  // Makes one delivery, unless it was made, and returns the ledger's word for what happened.
  async deliver(eventKey, recipient, channel, occurredAt, { eligible, send }) {
    const asked = performance.now() // before the call: the lease may not look longer than it is
    const r = await this.#row(
      `SELECT * FROM ledger.reserve(tenant => '', event_key => $1, recipient => $2, channel => $3, worker => $4, event_time => $5)`,
      eventKey, recipient, channel, this.#worker, occurredAt)
    if (r.outcome !== 'reserved') return r.outcome // already_delivered, already_skipped, dead, uncertain, not_due, ...
    const held = [r.id, r.fence] // bigint arrives as text: hand it back as it came
    const fail = (kind, error) => this.#word('SELECT ledger.fail($1, $2, kind => $3, reason => $4) AS word', ...held, kind, error.message)

    let refusal
    try {
      refusal = await eligible() // undefined: go on
    } catch (e) {
      return fail('retry', e) // not to be found out: nothing is sent, and it is asked again later
    }
    if (refusal) return this.#word('SELECT ledger.skip($1, $2, reason => $3) AS word', ...held, refusal)
    // The pool's own connection, outside of any transaction: the stamp is committed before anything is sent.
    const begun = await this.#word('SELECT ledger.begin_effect($1, $2) AS word', ...held)
    if (begun !== 'begun') return begun
    let ref
    try {
      const left = asked + Number(r.lease_ms) - 2000 - performance.now()
      ref = await send(r.provider_key, AbortSignal.timeout(Math.max(Math.floor(left), 0)))
    } catch (e) {
      if (e instanceof Permanent) return fail('permanent', e)
      if (e instanceof Retry) return fail('retry', e)
      return fail('ambiguous', e) // it may have happened: the channel's policy decides; hold waits for a person
    }
    return this.#word('SELECT ledger.complete($1, $2, provider_ref => $3) AS word', ...held, ref)
  }

  // Writes a row of the same database exactly once: both commit, or neither does.
  async once(eventKey, recipient, channel, occurredAt, write) {
    const client = await this.#pool.connect()
    try {
      await client.query('BEGIN')
      const { rows: [{ word }] } = await client.query(
        `SELECT ledger.once(tenant => '', event_key => $1, recipient => $2, channel => $3, event_time => $4) AS word`,
        [eventKey, recipient, channel, occurredAt])
      if (word === 'delivered') await write(client)
      await client.query('COMMIT')
      return word
    } catch (e) {
      await client.query('ROLLBACK')
      throw e
    } finally {
      client.release()
    }
  }

  async #row(sql, ...args) { return (await this.#pool.query(sql, args)).rows[0] }
  async #word(sql, ...args) { return (await this.#row(sql, ...args)).word }
}
