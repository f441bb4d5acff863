// Package sqltest holds the tests of the ledger that need nothing but SQL: the schema and the functions of
// migrations/ledger, called as a program in any language calls them, on a real server.
//
// testdata/transitions.csv, beside the Go package, is the state machine as data. TestTransitions puts a row into every
// situation it knows, makes every call on it, and compares what happened with the first line that fits, so that what no
// line allows is shown to change nothing.
//
// Time is made to pass by moving a row's times back, never by waiting: see bundle.age.
package sqltest
