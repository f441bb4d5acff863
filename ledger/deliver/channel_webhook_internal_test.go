package deliver

import (
	"net/netip"
	"testing"
	"time"

	"github.com/outboxrelay/relay/ledger"
)

func TestReach(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ public, private, loopback bool }{
		"93.184.215.14":          {true, true, false},
		"::ffff:93.184.215.14":   {true, true, false},
		"2606:2800:21f:cb07::1":  {true, true, false},
		"127.0.0.1":              {false, true, true},
		"127.9.9.9":              {false, true, true},
		"::1":                    {false, true, true},
		"::ffff:127.0.0.1":       {false, true, true},
		"10.1.2.3":               {false, true, false},
		"172.31.0.1":             {false, true, false},
		"192.168.0.1":            {false, true, false},
		"::ffff:192.168.0.1":     {false, true, false},
		"100.64.0.1":             {false, true, false},
		"fd12::1":                {false, true, false},
		"169.254.169.254":        {},
		"::ffff:169.254.169.254": {},
		"fd00:ec2::254":          {},
		"100.100.100.200":        {},
		"168.63.129.16":          {},
		"0.0.0.0":                {},
		"::":                     {},
		"::127.0.0.1":            {},
		"224.0.0.1":              {},
		"255.255.255.255":        {},
		"fe80::1":                {},
		"fe80::1%eth0":           {},
		"ff02::1":                {},
		"64:ff9b::a00:1":         {},
		"2002:a00:1::":           {},
		"2001:0:a00:1::":         {},
		"4000::1":                {},
	} {
		ip := netip.MustParseAddr(text)
		for r, want := range map[reach]bool{reachPublic: want.public, reachPrivate: want.private, reachLoopback: want.loopback} {
			if got := r.allows(ip); got != want {
				t.Errorf("%s: reach %d allows it: %v, want %v", text, r, got, want)
			}
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC)
	for code, want := range map[int]ledger.Kind{
		408: "retry", 409: "retry", 421: "retry", 425: "retry", 429: "retry", 503: "retry", 500: "ambiguous", 502: "ambiguous", 504: "ambiguous",
		599: "ambiguous", 400: "permanent", 401: "permanent", 404: "permanent", 410: "permanent", 301: "permanent", 308: "permanent", 304: "permanent",
	} {
		if kind, after := ledger.Classify(judge(code, "", now)); kind != want || after != 0 {
			t.Errorf("%d: %s, %v", code, kind, after)
		}
	}
	for _, code := range []int{200, 201, 202, 204, 299} {
		if err := judge(code, "7", now); err != nil {
			t.Errorf("%d: %v", code, err)
		}
	}
	for text, want := range map[string]time.Duration{
		"": 0, "soon": 0, "-5": 0, "7": 7 * time.Second, "99999999999": maxRetryAfter, "7200": maxRetryAfter,
		"Sat, 31 Jan 2026 09:01:30 GMT": 90 * time.Second, "Sat, 31 Jan 2026 08:00:00 GMT": 0, "Sat, 31 Jan 2036 09:00:00 GMT": maxRetryAfter,
	} {
		if _, after := ledger.Classify(judge(429, text, now)); after != want {
			t.Errorf("Retry-After %q: %v, want %v", text, after, want)
		}
	}
}
