package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options is what a command line can say. Each command reads what it needs.
type options struct {
	systems []string
	rows    int
	repeats int
	k       []int // rows a transaction, one data set each
	json    bool

	partitions int
	keys       int
	payload    int // bytes
	major      int // PostgreSQL
	timeout    time.Duration

	rate    int // transactions a second
	warmup  time.Duration
	measure time.Duration

	clients int
	outage  time.Duration
	profile string
	vary    string // name=value,value: one data set each
	svg     string
}

// intList is a flag of several numbers.
type intList struct{ to *[]int }

func (l intList) String() string {
	if l.to == nil {
		return ""
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*l.to), " ", ","), "[]")
}

func (l intList) Set(text string) error {
	*l.to = nil
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is not a number from 1", part)
		}
		*l.to = append(*l.to, n)
	}
	return nil
}

// wordList is a flag of several names.
type wordList struct{ to *[]string }

func (l wordList) String() string {
	if l.to == nil {
		return ""
	}
	return strings.Join(*l.to, ",")
}

func (l wordList) Set(text string) error {
	*l.to = strings.Split(text, ",")
	return nil
}

// flags gives the command the flags that apply to it.
func (o *options) flags(name string, stderr io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet("bench "+name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	has := func(commands ...string) bool { return slices.Contains(commands, name) }
	fs.Var(wordList{&o.systems}, "systems", "what to measure, separated by commas")
	fs.IntVar(&o.repeats, "repeats", o.repeats, "runs of each system")
	fs.BoolVar(&o.json, "json", false, "end with one JSON object on a line")
	fs.IntVar(&o.major, "postgres", 0, "major version of PostgreSQL, 14 to 18; 0: what is installed")
	if !has("latency") {
		fs.IntVar(&o.rows, "rows", o.rows, "rows in all")
	}
	if has("drain", "write", "ledger") {
		fs.Var(intList{&o.k}, "k", "rows a transaction, several separated by commas")
	}
	if has("drain", "latency", "memory") {
		fs.IntVar(&o.partitions, "partitions", o.partitions, "partitions of the topic")
		fs.IntVar(&o.keys, "keys", o.keys, "distinct partition keys")
		fs.IntVar(&o.payload, "payload", o.payload, "bytes of a payload")
		fs.DurationVar(&o.timeout, "timeout", o.timeout, "longest run")
	}
	if has("drain") {
		fs.StringVar(&o.profile, "profile", "", "directory for CPU profiles of the relay")
		fs.StringVar(&o.vary, "vary", "", "rows, k, keys, partitions or payload and its values, as payload=10,200,4000")
		fs.StringVar(&o.svg, "svg", "", "file for a plot of rows a second over k, or over what --vary names")
	}
	if has("latency") {
		fs.IntVar(&o.rate, "rate", o.rate, "transactions a second, of one row each")
		fs.DurationVar(&o.warmup, "warmup", o.warmup, "time before measuring")
		fs.DurationVar(&o.measure, "measure", o.measure, "time of measuring")
	}
	if has("memory") {
		fs.DurationVar(&o.outage, "outage", o.outage, "how long the broker is paused")
	}
	if has("ledger", "write") {
		fs.IntVar(&o.clients, "clients", o.clients, "connections at work")
	}
	return fs
}

func (o *options) parse(name string, args []string, stderr io.Writer) error {
	fs := o.flags(name, stderr)
	if err := fs.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	var errs []error
	if fs.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"rows", o.rows}, {"repeats", o.repeats}, {"partitions", o.partitions}, {"keys", o.keys}, {"rate", o.rate}, {"clients", o.clients}} {
		if n.value < 1 {
			errs = append(errs, fmt.Errorf("--%s must be at least 1", n.flag))
		}
	}
	if o.payload < minPayload {
		errs = append(errs, fmt.Errorf("--payload must be at least %d", minPayload))
	}
	if len(errs) > 0 {
		return errors.Join(append([]error{errUsage}, errs...)...)
	}
	return nil
}

// defaults returns the options of a command that was given none.
func defaults(command string) *options {
	o := &options{
		rows: 300_000, repeats: 3, k: []int{10}, partitions: 6, keys: 10_001, payload: 200,
		timeout: 5 * time.Minute, rate: 500, warmup: 5 * time.Second, measure: 15 * time.Second,
		clients: min(8, 4*runtime.NumCPU()), outage: 10 * time.Second,
	}
	switch command {
	case "drain":
		o.systems = []string{"floor-receive", "floor-pipe", "relay"}
	case "latency":
		o.systems = []string{"none", "floor-pipe", "relay"}
	case "memory":
		o.systems, o.repeats = []string{"relay"}, 1
	case "ledger":
		o.systems, o.rows, o.k = []string{"bare", "ledger", "duplicate"}, 20_000, []int{1, 500}
	case "write":
		o.systems, o.rows, o.k = []string{"bare", "write", "publish"}, 20_000, []int{1, 100}
	}
	return o
}
