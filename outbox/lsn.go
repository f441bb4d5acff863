package outbox

import (
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
)

// LSN is a byte position in PostgreSQL's write-ahead log. The zero LSN means "none": the server never
// gives it to a record.
type LSN uint64

// String writes the LSN as PostgreSQL does, for example 16/B374D848.
func (l LSN) String() string {
	return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l))
}

// ParseLSN reads the text form of an LSN. It accepts what PostgreSQL's pg_lsn accepts: two hexadecimal
// numbers of one to eight digits with a slash between.
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	if !ok || !isHex(hi) || !isHex(lo) {
		return 0, fmt.Errorf("parse LSN %q: want two hexadecimal numbers like 16/B374D848", s)
	}
	h, _ := strconv.ParseUint(hi, 16, 32)
	l, _ := strconv.ParseUint(lo, 16, 32)
	return LSN(h<<32 | l), nil
}

func isHex(s string) bool {
	if len(s) == 0 || len(s) > 8 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

// Scan reads an LSN from a query result of type pg_lsn or text. NULL becomes the zero LSN.
func (l *LSN) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*l = 0
		return nil
	case string:
		p, err := ParseLSN(v)
		*l = p
		return err
	case []byte:
		p, err := ParseLSN(string(v))
		*l = p
		return err
	}
	return fmt.Errorf("scan LSN: unexpected type %T", src)
}

// Value hands the LSN to a driver as text.
func (l LSN) Value() (driver.Value, error) { return l.String(), nil }
