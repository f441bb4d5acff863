package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// TestVerdict walks the table in the package's documentation, and wants every code that is not in it to mean that
// the same bytes are sent again.
func TestVerdict(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]class{"transient": transient, "missing": missing, "denied": denied, "poison": poison, "success": success, "fatal": fatal}
	columns := regexp.MustCompile(`  +`)
	seen := map[int]bool{}
	for _, row := range strings.Split(string(doc), "\n") {
		cells := columns.Split(strings.TrimPrefix(row, "//\t"), -1)
		want, ok := names[cells[0]]
		if !ok || len(cells) != 4 {
			continue
		}
		what, then := cells[1], cells[3]
		for _, word := range strings.FieldsFunc(cells[2], func(r rune) bool { return r == ' ' || r == ',' }) {
			n, err := strconv.Atoi(word)
			if err != nil {
				continue
			}
			seen[n] = true
			resent := strings.Contains(what, "answer was lost")
			v := verdictOf(fmt.Errorf("wrapped: %w", kafka.Error(n)), resent)
			if v.class != want {
				t.Errorf("code %d (%s): got class %d, want %s", n, what, v.class, cells[0])
			}
			if v.open != strings.Contains(what, "open") {
				t.Errorf("code %d (%s): got open %v", n, what, v.open)
			}
			if (want == fatal) != (v.ends != nil) {
				t.Errorf("code %d: ends is %v", n, v.ends)
			}
			if (v.ends == ErrFenced) != strings.Contains(then, "ErrFenced") || (v.ends == ErrSequence) != strings.Contains(then, "ErrSequence") {
				t.Errorf("code %d: ends with %v, the table says %s", n, v.ends, then)
			}
		}
	}
	if len(seen) < 30 {
		t.Fatalf("found only %d codes in the table", len(seen))
	}
	for n := -1; n < 140; n++ {
		if n == 0 || seen[n] {
			continue
		}
		if v := verdictOf(kafka.Error(n), false); v.class != transient || !v.open {
			t.Errorf("code %d is not in the table: got %+v, want transient and open", n, v)
		}
	}
}

func TestVerdict_errors(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	tests := []struct {
		err    error
		class  class
		reason reason
		open   bool
	}{
		{nil, success, 0, false},
		{io.EOF, transient, reasonNetwork, true},
		{io.ErrUnexpectedEOF, transient, reasonNetwork, true},
		{refused, transient, reasonNetwork, true},
		{context.DeadlineExceeded, transient, reasonTimeout, true},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, transient, reasonTimeout, true},
		{rawproduce.NewError(protocol.NewErrNoLeader("t", 0)), transient, reasonLeader, false},
		{rawproduce.NewError(protocol.NewErrNoTopic("t")), missing, reasonMissing, false},
		{rawproduce.NewError(protocol.NewErrNoPartition("t", 9)), missing, reasonMissing, false},
		{errors.New("never seen"), transient, reasonBroker, true},
	}
	for _, tt := range tests {
		v := verdictOf(tt.err, false)
		if v.class != tt.class || v.open != tt.open || tt.err != nil && v.reason != tt.reason {
			t.Errorf("%v: got %+v", tt.err, v)
		}
	}
}
