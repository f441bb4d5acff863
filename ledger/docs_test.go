package ledger_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testsIn returns the names of the tests in files of this repository.
func testsIn(t *testing.T, pattern string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, error %v", pattern, len(files), err)
	}
	names := map[string]bool{}
	for _, name := range files {
		code, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(code), -1) {
			names[m[1]] = true
		}
	}
	return names
}

// docs/ledger.md has every requirement and every situation, each with a test that exists where the page says.
func TestDocs_everyRequirement(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/ledger.md")
	if err != nil {
		t.Fatal(err)
	}
	inGo, inSQL := testsIn(t, "*_test.go"), testsIn(t, "sqltest/*_test.go")
	named := func(row, cell string, exists func(name string) bool) int {
		t.Helper()
		list := regexp.MustCompile("`(Test\\w+)").FindAllStringSubmatch(cell, -1)
		for _, m := range list {
			if !exists(m[1]) {
				t.Errorf("%s names %s, which does not exist there", row, m[1])
			}
		}
		return len(list)
	}
	cells := func(row string, n int) []string {
		t.Helper()
		m := regexp.MustCompile(`(?m)^\| `+row+` \| (.*) \|$`).FindAllStringSubmatch(string(page), -1)
		if len(m) != 1 {
			t.Errorf("%s stands %d times on the page", row, len(m))
			return nil
		}
		if c := strings.Split(m[0][1], " | "); len(c) == n {
			return c
		}
		t.Errorf("%s is no row of %d cells", row, n+1)
		return nil
	}
	for i := 1; i <= 31; i++ {
		row := fmt.Sprintf("R%d", i)
		anywhere := func(name string) bool {
			return inGo[name] || inSQL[name] || testsIn(t, "../examples/*_test.go")[name] || testsIn(t, "../internal/lint/*_test.go")[name]
		}
		if c := cells(row, 2); c != nil && named(row, c[1], anywhere) == 0 {
			t.Errorf("%s has no test", row)
		}
	}
	for i := 1; i <= 40; i++ {
		row := fmt.Sprintf("T%d", i)
		if c := cells(row, 3); c != nil &&
			named(row, c[1], func(name string) bool { return inGo[name] })+named(row, c[2], func(name string) bool { return inSQL[name] }) == 0 {
			t.Errorf("%s has no test", row)
		}
	}
}
