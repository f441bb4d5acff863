package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"
)

// The kinds of values, as help shows them.
const (
	kindString   = "string"
	kindBool     = "bool"
	kindList     = "list"
	kindDuration = "duration"
	kindBytes    = "size"
	kindLevel    = "level"
	kindNumber   = "number"
)

// The value types parse and print one kind each. They satisfy pflag.Value. Set leaves the value alone when it
// returns an error. The error says what to write instead and does not quote the text: that is for the caller, who
// knows if it is a secret.

type stringValue string

func (v *stringValue) Set(s string) error { *v = stringValue(s); return nil }
func (v *stringValue) String() string     { return string(*v) }
func (v *stringValue) Type() string       { return kindString }

type secretValue Secret

func (v *secretValue) Set(s string) error { *v = secretValue(NewSecret(s)); return nil }
func (v *secretValue) String() string     { return Secret(*v).String() }
func (v *secretValue) Type() string       { return kindString }

type boolValue bool

func (v *boolValue) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return errors.New("write true or false")
	}
	*v = boolValue(b)
	return nil
}
func (v *boolValue) String() string { return strconv.FormatBool(bool(*v)) }
func (v *boolValue) Type() string   { return kindBool }

type listValue []string

func (v *listValue) Set(s string) error {
	list := []string{}
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	*v = list
	return nil
}
func (v *listValue) String() string { return strings.Join(*v, ",") }
func (v *listValue) Type() string   { return kindList }

type durationValue time.Duration

func (v *durationValue) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("write a duration with its unit, like 500ms, 20s or 1m30s")
	}
	*v = durationValue(d)
	return nil
}

// String leaves out the zero parts that time.Duration prints: 20m, not 20m0s.
func (v *durationValue) String() string {
	s := time.Duration(*v).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
func (v *durationValue) Type() string { return kindDuration }

type numberValue int

func (v *numberValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return errors.New("write a whole number")
	}
	*v = numberValue(n)
	return nil
}
func (v *numberValue) String() string { return strconv.Itoa(int(*v)) }
func (v *numberValue) Type() string   { return kindNumber }

type levelValue slog.Level

func (v *levelValue) Set(s string) error {
	switch s {
	case "debug":
		*v = levelValue(slog.LevelDebug)
	case "info":
		*v = levelValue(slog.LevelInfo)
	case "warn":
		*v = levelValue(slog.LevelWarn)
	case "error":
		*v = levelValue(slog.LevelError)
	default:
		return errors.New("use debug, info, warn or error")
	}
	return nil
}
func (v *levelValue) String() string { return strings.ToLower(slog.Level(*v).String()) }
func (v *levelValue) Type() string   { return kindLevel }

// ByteSize is a number of bytes. Its text form has a unit, 16MiB; a bare number is bytes.
type ByteSize int64

// Set parses the text form: a whole number and one of B, KiB, MiB, GiB, kB, MB, GB.
func (b *ByteSize) Set(s string) error {
	problem := errors.New("write a size like 16MiB, 500kB or 16777216")
	digits := strings.TrimRight(s, "BKMGki ")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 {
		return problem
	}
	unit := int64(1)
	switch strings.TrimSpace(s[len(digits):]) {
	case "", "B":
	case "kB":
		unit = 1000
	case "MB":
		unit = 1000 * 1000
	case "GB":
		unit = 1000 * 1000 * 1000
	case "KiB":
		unit = 1 << 10
	case "MiB":
		unit = 1 << 20
	case "GiB":
		unit = 1 << 30
	default:
		return problem
	}
	if n > math.MaxInt64/unit {
		return problem
	}
	*b = ByteSize(n * unit)
	return nil
}

// String prints the size exactly, in the largest binary unit that divides it.
func (b *ByteSize) String() string {
	n := int64(*b)
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n != 0 && n%u.size == 0 {
			return fmt.Sprintf("%d%s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}

// Type names the kind for help.
func (b *ByteSize) Type() string { return kindBytes }
