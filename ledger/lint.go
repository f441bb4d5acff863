package ledger

import (
	"regexp"
	"strings"
)

// KeyWarning is a reason to doubt an event key. A warned key works: whether it is right, only who made it knows.
type KeyWarning string

// The warnings.
const (
	// NamesNoEvent: there is no part after the name, so the key names a kind of event and every later one is taken
	// for a repetition of the first.
	NamesNoEvent KeyWarning = "names a kind of event, not an event"
	// LooksRandom: a part looks like a random id. If it is made for each delivery, nothing is ever recognised as a
	// repetition. It is right where the id is the business row's own and was stored before.
	LooksRandom KeyWarning = "holds what looks like a random id"
)

// LintEventKey returns what is doubtful about an event key, nil if nothing is. It is meant for tests, start-up and
// reviews; the ledger itself does not call it.
func LintEventKey(eventKey string) []KeyWarning {
	var list []KeyWarning
	_, rest, found := strings.Cut(eventKey, ":")
	if !found || rest == "" {
		list = append(list, NamesNoEvent)
	}
	uuid4 := regexp.MustCompile(`(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}`)
	hex := regexp.MustCompile(`(?i)[0-9a-f]{24,}`)
	for _, part := range strings.Split(eventKey, ":") {
		// Long hexadecimal with letters and digits: a random token, or a hash, which is as stable as what it is of.
		if uuid4.MatchString(part) || hex.MatchString(part) && strings.ContainsAny(part, "abcdefABCDEF") {
			return append(list, LooksRandom)
		}
	}
	return list
}
