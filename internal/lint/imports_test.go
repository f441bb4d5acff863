package lint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// goPackage is what go list tells of a package.
type goPackage struct {
	ImportPath   string
	Dir          string
	Module       struct{ Path string }
	Imports      []string
	Deps         []string // of the package itself, without its tests
	TestImports  []string
	XTestImports []string
}

// rel is the package's path inside the module, "." for the root.
func (p *goPackage) rel() string { return p.inside(p.ImportPath) }

// inside strips the module from an import path; a path of another module comes back as it is.
func (p *goPackage) inside(path string) string {
	if path == p.Module.Path {
		return "."
	}
	return strings.TrimPrefix(path, p.Module.Path+"/")
}

// packages lists the module's packages.
func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,Module,Imports,Deps,TestImports,XTestImports", "../../...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var list []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 3 {
		t.Fatalf("go list found %d packages", len(list))
	}
	return list
}

// under reports whether a path is one of the roots or below one.
func under(path string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") })
}

// dependencies says which packages may import what others made. Where tests may do more, testsToo is false.
var dependencies = []struct {
	modules  []string // import paths, each with everything below it
	only     []string // packages of this module, each with everything below it
	testsToo bool     // the rule holds for test files as well
	reason   string
}{
	{[]string{"github.com/jackc/pglogrepl"}, []string{"cdc", "bench"}, true, "the replication protocol has one owner; the benchmark's floor is what its example gives"},
	{[]string{"github.com/segmentio/kafka-go"}, []string{"sink", "ledger/deliver"}, true, "Kafka has one owner on each side"},
	{[]string{"github.com/wneessen/go-mail", "net/smtp"}, []string{"ledger/deliver"}, true, "mails are sent in one place"},
	{[]string{"github.com/prometheus"}, []string{"cmd/relay"}, true, "libraries count, the binary exports"},
	{[]string{"github.com/spf13", "github.com/knadh/koanf"}, []string{"cmd/relay"}, true, "configuration and commands are the binary's"},
	{[]string{"github.com/pressly/goose"}, []string{"migrations"}, true, "migrations are applied in one place"},
	{[]string{"github.com/twmb/franz-go"}, []string{"internal", "bench"}, false, "a second Kafka client is for tests and the demo"},
	{[]string{"github.com/fergusstrange/embedded-postgres"}, []string{"internal", "bench"}, true, "downloading a server is for tests and the demo"},
	{[]string{"github.com/chromedp"}, []string{"examples"}, true, "a browser is for the test of the page"},
	{[]string{"github.com/chromedp"}, nil, false, "no browser in what is shipped"},
	{[]string{"testing", "github.com/google/go-cmp"}, []string{"internal/testenv", "internal/faultproxy", "internal/kafkaserver", "internal/pgserver", "sink/sinktest"}, false, "no test code in what is shipped"},
}

func TestImports_Dependencies(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, rule := range dependencies {
			imports := p.Imports
			if rule.testsToo {
				imports = slices.Concat(p.Imports, p.TestImports, p.XTestImports)
			}
			for _, path := range imports {
				if under(path, rule.modules...) && !under(p.rel(), rule.only...) {
					t.Errorf("%s imports %s: %s, so only %v may", p.rel(), path, rule.reason, rule.only)
				}
			}
		}
	}
}

// apart lists packages of this module that must not come to depend on one another, however indirectly.
var apart = []struct {
	from   string   // with everything below it
	never  []string // with everything below each; "" is everything in the module
	except []string
	reason string
}{
	{"outbox", []string{""}, []string{"outbox"}, "applications import the domain, which knows nobody"},
	{"cdc", []string{"sink", "ledger", "cmd", "migrations"}, nil, "adapters know only the domain"},
	{"sink", []string{"cdc", "ledger", "cmd", "migrations"}, nil, "adapters know only the domain"},
	{"ledger", []string{"cdc", "sink", "cmd"}, nil, "adapters know only the domain"},
	{"migrations", []string{"cdc", "sink", "ledger", "cmd"}, nil, "SQL stands by itself"},
	{"internal/state", []string{""}, []string{"internal/state"}, "everybody reports states"},
	{"internal/testenv", []string{"cdc", "sink", "ledger", "cmd"}, nil, "a test kit that uses what it tests proves nothing"},
	{"cdc", []string{"internal/testenv", "internal/pgserver", "internal/kafkaserver", "internal/faultproxy"}, nil, "servers are for tests and the demo"},
	{"sink", []string{"internal/testenv", "internal/pgserver", "internal/kafkaserver", "internal/faultproxy"}, nil, "servers are for tests and the demo"},
	{"ledger", []string{"internal/testenv", "internal/pgserver", "internal/kafkaserver", "internal/faultproxy"}, nil, "servers are for tests and the demo"},
	{"migrations", []string{"internal/testenv", "internal/pgserver", "internal/kafkaserver", "internal/faultproxy"}, nil, "servers are for tests and the demo"},
	{"cmd", []string{"internal/testenv"}, nil, "the test kit is not shipped"},
}

func TestImports_Directions(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, rule := range apart {
			if !under(p.rel(), rule.from) {
				continue
			}
			for _, path := range p.Deps {
				dep := p.inside(path)
				ours := dep != path || path == p.Module.Path
				forbidden := ours && (slices.Contains(rule.never, "") || under(dep, rule.never...))
				if forbidden && !under(dep, rule.except...) {
					t.Errorf("%s depends on %s: %s", p.rel(), dep, rule.reason)
				}
			}
		}
	}
}
