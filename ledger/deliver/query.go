package deliver

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Query is a query of a rules file with named parameters, :name. They are bound and never spliced in: each
// place is a parameter of its own, so that one name may stand for a number here and for text there.
type Query struct {
	rule, field  string // where it stands
	line, column int    // of its first character in the file
	indent       int    // of its further lines

	text   string   // with $1, $2 ..
	names  []string // of the parameters, in order
	starts []int    // for each parameter: where it begins in text, and how much longer the name is than $n
	grows  []int
}

// newQuery parses source. allowed are the names that mean something there.
func newQuery(source string, allowed []string) (*Query, error) {
	q := &Query{}
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("is empty")
	}
	if strings.IndexByte(source, 0) >= 0 {
		return nil, errors.New("holds a NUL character")
	}
	var out strings.Builder
	ended := false
	for i := 0; i < len(source); {
		n := skipOpaque(source[i:])
		comment := n > 0 && (strings.HasPrefix(source[i:], "--") || strings.HasPrefix(source[i:], "/*"))
		switch {
		case ended && !comment && strings.IndexByte(" \t\r\n;", source[i]) < 0:
			return nil, errors.New("is more than one statement")
		case source[i] == ';': // a blank, so that the query can stand in another one
			ended = true
			out.WriteByte(' ')
			i++
			continue
		case n > 0:
			out.WriteString(source[i : i+n])
			i += n
			continue
		}
		name := ""
		if source[i] == ':' && (i == 0 || source[i-1] != ':') {
			name = identifier(source[i+1:])
		}
		if name == "" {
			out.WriteByte(source[i])
			i++
			continue
		}
		if !slices.Contains(allowed, name) {
			return nil, &unknownParam{name, allowed}
		}
		q.names = append(q.names, name)
		placed := fmt.Sprintf("$%d", len(q.names))
		q.starts = append(q.starts, out.Len())
		q.grows = append(q.grows, len(name)+1-len(placed))
		out.WriteString(placed)
		i += 1 + len(name)
	}
	q.text = out.String()
	return q, nil
}

type unknownParam struct {
	name    string
	allowed []string
}

func (e *unknownParam) Error() string { return fmt.Sprintf("has an unknown parameter :%s", e.name) }
func (e *unknownParam) Hint() string {
	return suggest(e.name, e.allowed, "the parameters here are :"+strings.Join(e.allowed, ", :"))
}

// skipOpaque returns the length of what s begins with where a colon means nothing: a string, a quoted name, a
// dollar-quoted string, a comment, a cast. 0: none of them.
func skipOpaque(s string) int {
	switch {
	case strings.HasPrefix(s, "::"), strings.HasPrefix(s, ":="):
		return 2
	case strings.HasPrefix(s, "--"):
		if n := strings.IndexByte(s, '\n'); n >= 0 {
			return n + 1
		}
		return len(s)
	case strings.HasPrefix(s, "/*"):
		return commentLength(s)
	case s[0] == '\'':
		return quotedLength(s, '\'', false)
	case s[0] == '"':
		return quotedLength(s, '"', false)
	case (s[0] == 'e' || s[0] == 'E') && len(s) > 1 && s[1] == '\'':
		return 1 + quotedLength(s[1:], '\'', true)
	case s[0] == '$':
		return dollarLength(s)
	}
	// A word is passed whole: its end may look like the beginning of E'..' or of a dollar quote.
	n := 0
	for n < len(s) && isWord(s[n]) {
		n++
	}
	return n
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
}

func identifier(s string) string {
	n := 0
	for n < len(s) && (isWord(s[n]) && (n > 0 || s[n] < '0' || s[n] > '9')) {
		n++
	}
	return s[:n]
}

func quotedLength(s string, quote byte, escapes bool) int {
	for i := 1; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case s[i] == quote && i+1 < len(s) && s[i+1] == quote:
			i++
		case s[i] == quote:
			return i + 1
		}
	}
	return len(s)
}

func commentLength(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); i++ {
		switch s[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// dollarLength is that of $tag$..$tag$; 0: s does not begin with one.
func dollarLength(s string) int {
	tag := "$" + identifier(s[1:]) + "$"
	if !strings.HasPrefix(s, tag) {
		return 0
	}
	end := strings.Index(s[len(tag):], tag)
	if end < 0 {
		return len(s)
	}
	return end + 2*len(tag)
}

// args returns the values in the order of the places.
func (q *Query) args(values map[string]any) []any {
	args := make([]any, len(q.names))
	for i, name := range q.names {
		args[i] = values[name]
	}
	return args
}

// QueryError says which query of a rule went wrong. Err is the driver's or the worker's own, and may quote values where
// PostgreSQL does; SafeText does not.
type QueryError struct {
	Rule, Field  string
	Line, Column int // in the rules file; 0: not known
	Err          error
}

func (e *QueryError) Error() string {
	at := ""
	if e.Line > 0 {
		at = fmt.Sprintf(", line %d column %d", e.Line, e.Column)
	}
	return fmt.Sprintf("rule %q, %s%s: %v", e.Rule, e.Field, at, e.Err)
}

func (e *QueryError) Unwrap() error { return e.Err }

// SafeText is the error without what it may quote of the data.
func (e *QueryError) SafeText() string {
	pg, ok := errors.AsType[*pgconn.PgError](e.Err)
	if !ok {
		return e.Error()
	}
	safe := *e
	safe.Err = fmt.Errorf("PostgreSQL refuses it (SQLSTATE %s)", pg.Code)
	if len(pg.Code) == 5 && pg.Code[:2] == "42" { // names of the schema, and nothing of a row
		safe.Err = fmt.Errorf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	return safe.Error()
}

// fail wraps an error of running the query, with the place that PostgreSQL points at.
func (q *Query) fail(err error) error {
	e := &QueryError{Rule: q.rule, Field: q.field, Err: err}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Position > 0 && q.line > 0 {
		e.Line, e.Column = q.place(int(pg.Position))
	}
	return e
}

// place translates a position in text, in characters from 1, to line and column in the file.
func (q *Query) place(position int) (line, column int) {
	runes := []rune(q.text)
	at := len(string(runes[:min(position-1, len(runes))]))
	line, column = q.line, q.column
	lineStart := 0
	if i := strings.LastIndexByte(q.text[:at], '\n'); i >= 0 {
		line += strings.Count(q.text[:at], "\n")
		lineStart, column = i+1, q.indent+1
	}
	column += len([]rune(q.text[lineStart:at]))
	for i, start := range q.starts {
		if start >= lineStart && start < at {
			column += q.grows[i]
		}
	}
	return line, column
}
