// Keys as docs/keys.md specifies them: the same bytes in every language.
//
//     node keys.js vectors.json    prints what it makes of the vectors, one line a case
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

export class KeyRefused extends Error {} // its message is the code of the rule that the key breaks

// Name of the event, then 1 to 8 parts that say which one: scheduled-post-published:42.
export function eventKey(name, ...parts) {
  const refuse = (rule) => { throw new KeyRefused(rule) }
  if (typeof name !== 'string' || name.length > 64 || !/^[a-z][a-z0-9]*([-._][a-z0-9]+)*$/.test(name)) refuse('name_invalid')
  if (parts.length === 0 || parts.some((p) => p == null)) refuse('parts_missing')
  if (parts.length > 8) refuse('parts_too_many')
  let key = name
  for (const part of parts) {
    if (part === '') refuse('part_empty')
    if (/[\u0000-\u001f\u007f-\u009f]/.test(part)) refuse('part_control')
    if (part.startsWith(' ') || part.endsWith(' ')) refuse('part_space')
    if (part !== part.normalize('NFC')) refuse('part_not_nfc')
    key += ':' + part.replaceAll('%', '%25').replaceAll(':', '%3A')
  }
  if ([...key].length > 255) refuse('key_too_long') // code points, not UTF-16 units
  return key
}

// Who gets a delivery: user:42.
export const recipient = (type, id) => eventKey(type, id)

export const payloadHash = (bytes) => 'sha256:' + createHash('sha256').update(bytes).digest('hex')

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const vectors = JSON.parse(readFileSync(process.argv[2], 'utf8'))
  const show = (cases, build) => {
    for (const c of cases) {
      try {
        console.log(build(c))
      } catch (e) {
        if (!(e instanceof KeyRefused)) throw e
        console.log('refused: ' + e.message)
      }
    }
  }
  show(vectors.event_key, (c) => eventKey(c.name, ...c.parts))
  show(vectors.recipient, (c) => recipient(c.type, c.id))
  show(vectors.payload_hash, (c) => payloadHash(Buffer.from(c.base64, 'base64')))
}
