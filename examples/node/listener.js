// Notifies the subscribers of a post that was published: in the database, then by mail.
//
//     relay run --sink-type stdout | node listener.js
//
// Every line is a record as the relay prints it. DATABASE_URL is the consumer's database with the ledger in it,
// MAIL_URL the mail provider's API.
import readline from 'node:readline'
import pg from 'pg'
import { eventKey, recipient } from './keys.js'
import { Ledger, Permanent, Retry } from './ledger.js'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
const ledger = new Ledger(pool)

// The service: listener, backfill and command line all call it.
async function postPublished({ post, title, subscribers }, occurredAt) {
  const key = eventKey('scheduled-post-published', String(post))
  for (const user of subscribers) {
    const to = recipient('user', String(user))
    const outcomes = {
      database: await ledger.once(key, to, 'database', occurredAt, (tx) => tx.query(
        `INSERT INTO ledger.notifications (event_key, recipient, type, data) VALUES ($1, $2, 'post', $3)`, [key, to, { post }])),
      email: await ledger.deliver(key, to, 'email', occurredAt, {
        async eligible() { // now, not when the event was written
          const { rows } = await pool.query('SELECT subscribed FROM subscribers WHERE id = $1', [user])
          return rows[0]?.subscribed ? undefined : 'not subscribed'
        },
        async send(providerKey, signal) {
          const { rows: [{ email }] } = await pool.query('SELECT email FROM subscribers WHERE id = $1', [user])
          return sendMail(email, title, providerKey, signal)
        },
      }),
    }
    for (const [channel, outcome] of Object.entries(outcomes)) console.log(key, to, channel, outcome)
  }
}

async function sendMail(to, subject, providerKey, signal) {
  const response = await fetch(process.env.MAIL_URL, {
    method: 'POST', signal, body: JSON.stringify({ to, subject }),
    headers: { 'Content-Type': 'application/json', 'Idempotency-Key': providerKey },
  })
  const problem = `mail API answered ${response.status}`
  if (response.status === 429) throw new Retry(problem) // it was not taken
  if (response.status >= 400 && response.status < 500) throw new Permanent(problem)
  if (!response.ok) throw new Error(problem) // it may have been taken
  return (await response.json()).id
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { headers, value } = JSON.parse(line)
  if (headers.event_type !== 'PostPublished') continue
  await postPublished(value, headers.occurred_at)
  // A Kafka consumer commits its offset here: every row is in the ledger, and claim_due carries on.
  // Only busy, or an error, must come again.
}
await pool.end()
