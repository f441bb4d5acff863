package sink

import "time"

// appendOccurred appends a timestamptz in the server's ISO form as RFC 3339 in UTC with microseconds. What it
// does not know is appended as it is: infinity, years before Christ or beyond 9999, a column of another type.
// Such a value is the application's own, and no reason to stop its stream.
func appendOccurred(dst, in []byte) []byte {
	if n := len(in) - 3; n >= 19 && n <= 26 && string(in[n:]) == "+00" && isClock(in[:n]) {
		// In UTC already, as the relay's own session has it: nothing to compute.
		dst = append(dst, in[:10]...)
		dst = append(dst, 'T')
		dst = append(dst, in[11:n]...)
		if n == 19 {
			dst = append(dst, '.')
			n++
		}
		return append(append(dst, "000000"[n-20:]...), 'Z')
	}
	t, offset, ok := parseTimestamp(in)
	if !ok {
		return append(dst, in...)
	}
	utc := time.Date(t.year, time.Month(t.month), t.day, t.hour, t.minute, t.second-offset, t.micro*1000, time.UTC)
	if y := utc.Year(); y < 1 || y > 9999 {
		return append(dst, in...)
	}
	return utc.AppendFormat(dst, "2006-01-02T15:04:05.000000Z")
}

// isClock reports whether s has the shape of 2026-11-30 18:57:22[.123456]. A dot has a digit behind it.
func isClock(s []byte) bool {
	const shape = "0000-00-00 00:00:00.000000"
	for i, c := range s {
		if shape[i] == '0' && c-'0' > 9 || shape[i] != '0' && c != shape[i] {
			return false
		}
	}
	return len(s) != 20
}

type timestamp struct{ year, month, day, hour, minute, second, micro int }

// parseTimestamp reads 2026-11-30 18:57:22[.123456]+00[:30[:15]]; offset is in seconds east of UTC.
func parseTimestamp(s []byte) (t timestamp, offset int, ok bool) {
	if len(s) < 22 || s[4] != '-' || s[7] != '-' || s[10] != ' ' || s[13] != ':' || s[16] != ':' {
		return t, 0, false
	}
	fields := [...]struct {
		to   *int
		from int
		n    int
		max  int
	}{
		{&t.year, 0, 4, 9999}, {&t.month, 5, 2, 12}, {&t.day, 8, 2, 31},
		{&t.hour, 11, 2, 23}, {&t.minute, 14, 2, 59}, {&t.second, 17, 2, 59},
	}
	for _, f := range fields {
		if *f.to, ok = number(s[f.from : f.from+f.n]); !ok || *f.to > f.max {
			return t, 0, false
		}
	}
	s = s[19:]
	if s[0] == '.' {
		n := 1
		for scale := 100000; n < len(s) && s[n] >= '0' && s[n] <= '9'; n, scale = n+1, scale/10 {
			t.micro += int(s[n]-'0') * scale
		}
		if n < 2 || n > 7 {
			return t, 0, false
		}
		s = s[n:]
	}
	if len(s) < 3 || s[0] != '+' && s[0] != '-' {
		return t, 0, false
	}
	sign, unit := s[0], 3600
	for {
		v, good := number(s[1:3])
		if !good {
			return t, 0, false
		}
		offset += v * unit
		if s = s[3:]; len(s) == 0 {
			break
		}
		if unit /= 60; len(s) < 3 || s[0] != ':' || unit == 0 {
			return t, 0, false
		}
	}
	if sign == '-' {
		offset = -offset
	}
	return t, offset, true
}

func number(s []byte) (n int, ok bool) {
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}
