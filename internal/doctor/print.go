package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Print writes the report for a person: a line a check, by section, and below it what to do. Colour marks what is not in
// order.
func (r *Report) Print(w io.Writer, colour bool) error {
	width := 0
	for _, c := range r.Checks {
		width = max(width, min(len(c.Name), 32))
	}
	var b strings.Builder
	section := ""
	for _, c := range folded(r.Checks) {
		if c.Section != section {
			if section != "" {
				b.WriteByte('\n')
			}
			section = c.Section
			fmt.Fprintf(&b, "%s\n", section)
		}
		fmt.Fprintf(&b, "  %s  %-*s  %s\n", paint(c.Status, colour), width, printable(c.Name), printable(c.Seen))
		indent := strings.Repeat(" ", 8)
		if c.Fix != "" {
			fmt.Fprintf(&b, "%s-> %s\n", indent, printable(c.Fix))
		}
		for _, line := range c.Run {
			fmt.Fprintf(&b, "%s   %s\n", indent, printable(line))
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %d to look at, %d failed", r.OK, r.Warn, r.Fail)
	if r.Skip > 0 {
		fmt.Fprintf(&b, ", %d not looked at", r.Skip)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// folded makes one line of neighbours that are skipped for the same cause.
func folded(checks []Check) (out []Check) {
	for _, c := range checks {
		if n := len(out); n > 0 && c.Status == Skip && out[n-1].Status == Skip && out[n-1].Section == c.Section && out[n-1].Seen == c.Seen {
			out[n-1].Name += ", " + c.Name
			continue
		}
		out = append(out, c)
	}
	return out
}

// paint pads a status and colours it.
func paint(s Status, colour bool) string {
	text := fmt.Sprintf("%-4s", s)
	if !colour {
		return text
	}
	code := map[Status]string{OK: "32", Warn: "33", Fail: "31;1", Skip: "2"}[s]
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// printable keeps control characters, which may have come with a name from the database, off the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
