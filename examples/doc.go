// Package examples holds small programs that publish through the outbox and consume through the ledger: one folder a
// language, each with a README. They talk to real servers and are run by this package's tests.
package examples
