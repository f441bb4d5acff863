package sink

import (
	"fmt"
	"regexp"
	"strings"
)

// rewrite makes a topic of a value by a regular expression, as Debezium's route.topic.regex and
// route.topic.replacement do: the expression has to match all of the value; then its first match is replaced. A
// value that it does not match is the topic itself.
type rewrite struct {
	whole *regexp.Regexp
	find  *regexp.Regexp
	repl  []replacement
}

// replacement is a piece of the replacement: text, or a group of the expression.
type replacement struct {
	text  string
	group int // -1: text
}

func newRewrite(expr, repl string) (*rewrite, error) {
	find, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("topic regex %q: %w (look-around and back references do not exist here)", expr, err)
	}
	whole, err := regexp.Compile(`\A(?:` + expr + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("topic regex %q: %w", expr, err)
	}
	parts, err := parseReplacement(repl, find)
	if err != nil {
		return nil, fmt.Errorf("topic replacement %q: %w", repl, err)
	}
	return &rewrite{whole: whole, find: find, repl: parts}, nil
}

// parseReplacement reads a replacement as Java's Matcher.replaceFirst does: $1 and ${name} are groups, a backslash
// takes the next character for itself.
func parseReplacement(repl string, expr *regexp.Regexp) ([]replacement, error) {
	var parts []replacement
	text := func(s string) {
		if n := len(parts); n > 0 && parts[n-1].group < 0 {
			parts[n-1].text += s
			return
		}
		parts = append(parts, replacement{text: s, group: -1})
	}
	for i := 0; i < len(repl); {
		switch c := repl[i]; {
		case c == '\\':
			if i+1 == len(repl) {
				return nil, fmt.Errorf("a backslash stands at the end")
			}
			text(repl[i+1 : i+2])
			i += 2
		case c != '$':
			text(repl[i : i+1])
			i++
		case i+1 < len(repl) && repl[i+1] == '{':
			name, _, closed := strings.Cut(repl[i+2:], "}")
			group := expr.SubexpIndex(name)
			if !closed || group < 0 {
				return nil, fmt.Errorf("the expression has no group of the name that ${ is followed by")
			}
			parts = append(parts, replacement{group: group})
			i += len(name) + 3
		default:
			// As many digits as make a group that there is.
			group, n := -1, i+1
			for ; n < len(repl) && repl[n] >= '0' && repl[n] <= '9'; n++ {
				next := max(group, 0)*10 + int(repl[n]-'0')
				if next > expr.NumSubexp() {
					break
				}
				group = next
			}
			if group < 0 {
				return nil, fmt.Errorf("$ is followed by no group of the expression; write \\$ for the character")
			}
			parts = append(parts, replacement{group: group})
			i = n
		}
	}
	return parts, nil
}

// constant reports whether something of the topic does not come from the value.
func (w *rewrite) constant() bool {
	for _, p := range w.repl {
		if p.group < 0 {
			return true
		}
	}
	return false
}

// topic returns what the value makes, and whether the expression matched.
func (w *rewrite) topic(value []byte) (string, bool) {
	m := w.find.FindSubmatchIndex(value)
	if m == nil || !w.whole.Match(value) {
		return string(value), false
	}
	out := append([]byte(nil), value[:m[0]]...)
	for _, p := range w.repl {
		switch {
		case p.group < 0:
			out = append(out, p.text...)
		case m[2*p.group] >= 0:
			out = append(out, value[m[2*p.group]:m[2*p.group+1]]...)
		}
	}
	return string(append(out, value[m[1]:]...)), true
}
