package lint_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// onceTables are the ledger's tables of which two callers may come to make the same row.
const onceTables = `(notification_dispatches|events)`

// guarded finds "look whether it is there, if not insert": between the two, another one inserts. To look first and be
// done where it is there is right: duplicates then cost no write.
func guarded(sql string) (problems []string) {
	sql = regexp.MustCompile(`--[^\n]*`).ReplaceAllString(sql, "")
	for _, m := range regexp.MustCompile(`(?is)\bINSERT\s+INTO\s+ledger\.`+onceTables+`\b[^;]*;`).FindAllString(sql, -1) {
		if !regexp.MustCompile(`(?is)\bON\s+CONFLICT\b`).MatchString(m) {
			problems = append(problems, "an INSERT without ON CONFLICT: "+strings.Join(strings.Fields(m), " "))
		}
	}
	for _, m := range regexp.MustCompile(`(?is)\bIF\s+NOT\s+EXISTS\s*\(\s*SELECT\b[^;]*?\bFROM\s+ledger\.`+onceTables+`\b[^;]*`).FindAllString(sql, -1) {
		problems = append(problems, "an insert that hangs on a look: "+strings.Join(strings.Fields(m), " "))
	}
	return problems
}

// R5: reserving is one INSERT that the constraint decides about. No SQL of the ledger looks first, and nothing but that
// SQL writes to, or decides by, the table at all.
func TestLedger_noGuardedInsert(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../migrations/ledger/*.sql")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	inserts := 0
	for _, path := range files {
		sql, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range guarded(string(sql)) {
			t.Errorf("%s: %s", path, problem)
		}
		inserts += len(regexp.MustCompile(`(?i)INSERT\s+INTO\s+ledger\.`+onceTables).FindAll(sql, -1))
	}
	if inserts < 3 {
		t.Errorf("found %d inserts", inserts)
	}
	table := regexp.MustCompile(`(?i)ledger\.notification_dispatches`)
	for _, pattern := range []string{"../../ledger/*.go", "../../ledger/*/*.go", "../../examples/*/*.go", "../../examples/*/*.php", "../../examples/*/*.js", "../../examples/*/*.py"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") || filepath.Base(filepath.Dir(path)) == "sqltest" {
				continue
			}
			code, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if table.Match(code) {
				t.Errorf("%s names the table of deliveries: ask the ledger's functions, which decide and write in one step", path)
			}
		}
	}
}

// The rule finds what it is for.
func TestGuarded(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]int{
		"INSERT INTO ledger.notification_dispatches (id) VALUES (1) ON CONFLICT DO NOTHING;":                                                     0,
		"INSERT INTO ledger.notification_dispatches (id) VALUES (1);":                                                                            1,
		"IF NOT EXISTS (SELECT FROM ledger.notification_dispatches d WHERE d.id = 1) THEN":                                                       1,
		"IF EXISTS (SELECT FROM ledger.events e) THEN RETURN false; END IF;":                                                                     0,
		"-- IF NOT EXISTS (SELECT FROM ledger.events)\nSELECT 1;":                                                                                0,
		"if not exists (select 1 from ledger.events) then insert into ledger.events values (1) ; end if;":                                        2,
		"IF NOT EXISTS (SELECT FROM pg_policy) THEN PERFORM 1; END IF; INSERT INTO ledger.audit SELECT 1; INSERT INTO ledger.channels SELECT 1;": 0,
	} {
		if got := guarded(sql); len(got) != want {
			t.Errorf("%s: %q, want %d", sql, got, want)
		}
	}
}
