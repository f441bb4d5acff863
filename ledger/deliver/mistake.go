package deliver

import (
	"fmt"
	"slices"
	"strings"
)

// Mistake is one thing that is wrong with a rules file.
type Mistake struct {
	Path         string // such as rules.welcome.recipients
	Line, Column int    // 0: not known
	Problem      string
	Hint         string // what to do; may be empty
}

func (m Mistake) Error() string {
	if m.Line == 0 {
		return fmt.Sprintf("rules %s: %s", m.Path, m.Problem)
	}
	return fmt.Sprintf("rules %s (line %d column %d): %s", m.Path, m.Line, m.Column, m.Problem)
}

// Mistakes are all that is wrong with a rules file.
type Mistakes []Mistake

func (ms Mistakes) Error() string {
	lines := make([]string, len(ms))
	for i, m := range ms {
		lines[i] = m.Error()
		if m.Hint != "" {
			lines[i] += " (" + m.Hint + ")"
		}
	}
	return strings.Join(lines, "\n")
}

func (ms Mistakes) errorOrNil() error {
	if len(ms) == 0 {
		return nil
	}
	slices.SortStableFunc(ms, func(a, b Mistake) int { return a.Line - b.Line })
	return ms
}

// suggest words a hint: the nearest of the known words, or otherwise.
func suggest(word string, known []string, otherwise string) string {
	best, least := "", len(word)/3+2
	for _, k := range known {
		if d := distance(word, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return otherwise
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// distance counts the insertions, deletions and substitutions that lead from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			last, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, last+cost)
		}
	}
	return row[len(b)]
}
