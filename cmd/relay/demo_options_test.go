package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDemo_flags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]*demoOptions{
		"":                        {events: demoMaxEvents, rate: demoLiveRate},
		"--events 7":              {events: 7, rate: demoLiveRate},
		"--rate 2.5":              {events: demoMaxEvents, rate: 2.5},
		"--rate 0":                {events: demoMaxEvents},
		"--once":                  {events: demoOnceEvents, once: true},
		"--once --rate 9":         {events: demoOnceEvents, rate: 9, once: true},
		"--once --events 1000000": {events: 1000000, once: true},
		"--json":                  {events: demoMaxEvents, rate: demoLiveRate, json: true},
		"--postgres-major 17":     {events: demoMaxEvents, rate: demoLiveRate, major: 17},

		"--events 0":                    nil,
		"--events -1":                   nil,
		"--events 1000001":              nil,
		"--events 99999999999999999999": nil,
		"--events 1e3":                  nil,
		"--events=":                     nil,
		"--rate -1":                     nil,
		"--rate 100001":                 nil,
		"--rate NaN":                    nil,
		"--rate Inf":                    nil,
		"--rate fast":                   nil,
		"--postgres-major 13":           nil,
		"--postgres-major 19":           nil,
		"--once extra":                  nil,
		"--evnets 7":                    nil,
		"--events postgres://u:" + canary + "@h/d": nil,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			var got *demoOptions
			p := testProcess(nil, &stdout, &stderr)
			p.actions.demo = func(_ context.Context, _ *process, o *demoOptions) error {
				got = o
				return nil
			}
			code := p.execute(t.Context(), append([]string{"demo"}, strings.Fields(args)...))
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(demoOptions{})); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if want != nil && code != exitOK || want == nil && code != exitUsage {
				t.Errorf("exit code %d", code)
			}
			if want == nil && !strings.Contains(stderr.String(), "\nhint: ") {
				t.Errorf("no hint: %s", stderr.String())
			}
			if strings.Contains(stderr.String(), canary) {
				t.Errorf("the password is shown: %s", stderr.String())
			}
		})
	}
}
