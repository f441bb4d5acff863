package doctor

import "strings"

// splitHint takes the statements out of a hint of the relay's. By convention a hint that has one begins with it, and ends
// it with a semicolon or a full stop before its words go on.
func splitHint(hint string) (words string, run []string) {
	for _, verb := range []string{"ALTER ", "GRANT ", "CREATE ", "SELECT "} {
		if !strings.HasPrefix(hint, verb) {
			continue
		}
		statement, rest, found := strings.Cut(hint, ";")
		if !found {
			break
		}
		return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(rest), ".")), []string{statement + ";"}
	}
	return hint, nil
}
