package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestConfig_EveryFieldHasAKey finds a field that nobody can set.
func TestConfig_EveryFieldHasAKey(t *testing.T) {
	t.Parallel()
	c := defaultConfig()
	addresses := map[uintptr]string{}
	names := map[string]bool{}
	for _, k := range c.keys() {
		if names[k.name] || names[flagName(k.name)] {
			t.Errorf("%s stands twice", k.name)
		}
		names[k.name], names[flagName(k.name)] = true, true
		if k.usage == "" {
			t.Errorf("%s has no usage", k.name)
		}
		addresses[reflect.ValueOf(k.value).Pointer()] = k.name
	}
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		if v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[Secret]() {
			for i := range v.NumField() {
				walk(v.Field(i), path+"."+v.Type().Field(i).Name)
			}
			return
		}
		if addresses[v.Addr().Pointer()] == "" {
			t.Errorf("field%s has no key", path)
		}
	}
	walk(reflect.ValueOf(c).Elem(), "")
}

// TestConfig_RoundTrip loads what relay config prints and gets the same configuration back.
func TestConfig_RoundTrip(t *testing.T) {
	t.Parallel()
	environ := []string{
		"RELAY_POSTGRES_SLOT=007", "RELAY_POSTGRES_TABLE=true.null", "RELAY_POSTGRES_PUBLICATION=a: b # ü\t", "RELAY_KAFKA_BROKERS=a:1, b:2",
		"RELAY_WINDOW_BYTES=3MB", "RELAY_DRAIN_TIMEOUT=90m", "RELAY_ADMIN_LISTEN=", "RELAY_LOG_LEVEL=error", "RELAY_POSTGRES_ENSURE=1",
	}
	first := loadConfig(configFlags(), environ)
	var printed bytes.Buffer
	if err := first.print(&printed); err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/relay.yaml"
	if err := os.WriteFile(path, printed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	second := loadConfig(configFlags(), []string{"RELAY_CONFIG=" + path})
	if len(first.mistakes)+len(second.mistakes) > 0 {
		t.Fatalf("mistakes: %v %v\n%s", first.mistakes, second.mistakes, printed.String())
	}
	if diff := cmp.Diff(first.config, second.config, cmp.Comparer(func(a, b Secret) bool { return a.Reveal() == b.Reveal() }), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
}

func TestByteSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ByteSize{"0": 0, "1": 1, "1B": 1, "1kB": 1000, "2MB": 2e6, "1GB": 1e9, "1KiB": 1024, "16MiB": 16 << 20, "1 GiB": 1 << 30} {
		var got ByteSize
		if err := got.Set(text); err != nil || got != want {
			t.Errorf("Set(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "1XB", "9223372036854775807KiB", "99999999999999999999", "1MiB1", "1 M iB", "0x10", "1_000"} {
		got := ByteSize(7)
		if err := got.Set(text); err == nil || got != 7 {
			t.Errorf("Set(%q) = %d, %v, want an error and 7", text, got, err)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		want := ByteSize(r.Int64() >> r.IntN(63))
		var got ByteSize
		if err := got.Set(want.String()); err != nil || got != want {
			t.Fatalf("Set(%q) = %d, %v, want %d", want.String(), got, err, want)
		}
	}
}

func TestDurationValue_String(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": 0, "20s": 20 * time.Second, "20m": 20 * time.Minute, "1h": time.Hour, "1h0m5s": time.Hour + 5*time.Second,
		"10h": 10 * time.Hour, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond, "2m10s": 130 * time.Second,
	} {
		v := durationValue(d)
		if got := v.String(); got != want {
			t.Errorf("String of %v = %q, want %q", d, got, want)
		}
		var back durationValue
		if err := back.Set(want); err != nil || time.Duration(back) != d {
			t.Errorf("Set(%q) = %v, %v", want, time.Duration(back), err)
		}
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	names := []string{"postgres.slot", "postgres.table", "kafka.brokers", "log.level"}
	for word, want := range map[string]string{
		"postgres.slto": "postgres.slot", "slot": "postgres.slot", "brokers": "kafka.brokers", "Log.Level": "log.level",
		"kafka.broker": "kafka.brokers", "log.lvl": "log.level", "something.else": "", "x": "",
	} {
		got := suggest(word, names, "")
		if want != "" {
			want = "did you mean " + want + "?"
		}
		if got != want {
			t.Errorf("suggest(%q) = %q, want %q", word, got, want)
		}
	}
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"abc", "abc", 0}} {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("editDistance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

// FuzzFlags looks for a command line that is neither understood nor refused.
func FuzzFlags(f *testing.F) {
	f.Add("--postgres-url=postgres://a:x@h/d")
	f.Add("--window-bytes\n1\n--ensure\n--route-topics=,")
	f.Add("--config\n/dev/null\n--=\n-x\n---")
	f.Fuzz(func(t *testing.T, line string) {
		var stdout, stderr bytes.Buffer
		p := testProcess([]string{"RELAY_SINK_TYPE=stdout"}, &stdout, &stderr)
		code := p.execute(t.Context(), append([]string{"config"}, strings.Split(line, "\n")...))
		if code == exitOK != (stderr.Len() == 0) || code == exitFailed {
			t.Errorf("exit code %d, stderr %q", code, stderr.String())
		}
	})
}
