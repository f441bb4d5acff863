package examples_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// R31: each example answers the nine questions, each with a test that exists.
func TestReadmes(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	for _, pattern := range []string{"*_test.go", "../ledger/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, error %v", pattern, len(files), err)
		}
		for _, name := range files {
			code, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(code), -1) {
				tests[m[1]] = true
			}
		}
	}
	for language := range languages() {
		page, err := os.ReadFile(filepath.Join(language, "README.md"))
		if err != nil {
			t.Error(err)
			continue
		}
		for question := 1; question <= 9; question++ {
			row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d\. [^|]+\? \| ([^|]+) \|$`, question)).FindStringSubmatch(string(page))
			if row == nil {
				t.Errorf("%s: question %d has no answer", language, question)
				continue
			}
			named := regexp.MustCompile("`(Test\\w+)(/\\w+)?`").FindAllStringSubmatch(row[1], -1)
			if len(named) == 0 {
				t.Errorf("%s: the answer to question %d names no test", language, question)
			}
			for _, m := range named {
				if !tests[m[1]] || m[2] != "" && strings.TrimPrefix(m[2], "/") != language {
					t.Errorf("%s: the answer to question %d names %s, which does not exist", language, question, m[0])
				}
			}
		}
	}
}
